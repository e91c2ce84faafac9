"""knee: how many GPUs a training run can use, before they are rented.

>>> import knee
>>> model, cluster, profile = knee.load_model("llama2-7b"), knee.load_cluster("dgx-h100"), knee.load_profile("paper")
>>> job, notes = knee.make_job(model.spec, cluster.spec, profile.spec, gpus=256, local_batch=2)
>>> knee.simulate(job).mfu_frac  # doctest: +SKIP
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without importing it: a command has to hear signals soon
if TYPE_CHECKING:
    from typing import Any

    from knee.errors import KneeError as KneeError
    from knee.record.measurement import Measurement as Measurement
    from knee.simulator import Results as Results
    from knee.simulator import simulate_table as simulate_table
    from knee.simulator import simulate_tables as simulate_tables
    from knee.single import events_of as events_of
    from knee.single import simulate as simulate
    from knee.specs import Cluster as Cluster
    from knee.specs import Job as Job
    from knee.specs import Model as Model
    from knee.specs import Plan as Plan
    from knee.specs import Profile as Profile
    from knee.specs.load import load_cluster as load_cluster
    from knee.specs.load import load_job as load_job
    from knee.specs.load import load_model as load_model
    from knee.specs.load import load_profile as load_profile
    from knee.specs.load import make_job as make_job
    from knee.specs.table import PlanTable as PlanTable
    from knee.specs.table import table_of as table_of

_HOMES = {
    "Cluster": "specs",
    "Job": "specs",
    "KneeError": "errors",
    "Measurement": "record.measurement",
    "Model": "specs",
    "Plan": "specs",
    "PlanTable": "specs.table",
    "Profile": "specs",
    "Results": "simulator",
    "events_of": "single",
    "load_cluster": "specs.load",
    "load_job": "specs.load",
    "load_model": "specs.load",
    "load_profile": "specs.load",
    "make_job": "specs.load",
    "simulate": "single",
    "simulate_table": "simulator",
    "simulate_tables": "simulator",
    "table_of": "specs.table",
}
__version__ = "0.1.0"
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is asked for: ``import knee`` itself stays quick."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'knee' has no attribute {name!r}")
    return getattr(import_module(f"knee.{_HOMES[name]}"), name)
