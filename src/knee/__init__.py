"""How many GPUs a training run can use, before they are rented.

    >>> import knee
    >>> step = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=256, local_batch=2)
    >>> step.fits
    True

Questions, each a function of plain names and keyword arguments, the same words as on the command line:

    simulate       one training step of a model, cluster and plan: time, memory, power, cost
    plan           the best parallel plan of a job, out of all there are
    scale          what more GPUs buy, and where adding them stops paying off: the knee
    budget         the best model that GPUs, days, dollars or MWh can train
    read_traces    where the time of anyone's PyTorch job went, from its traces
    validate       published or own runs and bandwidths against predictions: how far off knee is
    calibrate      own runs into a software profile that predicts them
    compare        measured, simulated and published records side by side
    dryrun         one step of the trainer on fake ranks, without hardware: FLOP and collectives of each rank
    study          the paper's experiments, and questions beyond it, held against its claims
    list_studies, describe_study    all studies, and what one asks, runs, assumes and is judged by
    prepare_sweep, run_sweep, sweep_status, cancel_sweep, retry_sweep    a grid of real runs, here, on hosts or in Slurm
    tune, tune_status, replay_tuning    the fastest plan of a cluster in a few short runs; the same on published runs
    read_records   one's own records, measured beside simulated, as rows and as one page
    budget_check   training runs whose cost was published, against what knee predicts for them
    probe_kernels, probe_collectives, probe_power, probe_steps    this machine, measured and written as a cluster file
    catalog_entries, catalog_entry    what knee knows, and from where; an entry as a complete file
    catalog_schema                    JSON Schemas of the files that people write
    doctor         what works on this machine, and what is missing for the rest

``from knee.api.train import train`` trains a model for real under the same plan and measures it (``knee.train`` is the
package that its ranks run); ``prepare_shards`` of ``knee.api.shard_data`` makes tokens of text files for it.

Every result is a frozen dataclass with units in its field names. It has ``to_dict()`` (what ``--json`` prints),
``rows()`` and ``to_frame()`` (pandas or polars), and shows itself in a notebook. What is wrong raises a ``KneeError``
with a stable ``code``, the ``field`` it is about, and a ``hint``.

Parts, for those who build on the engine:

    load_model, load_cluster, load_profile, load_job     specs by name or from files, with the source of every value
    make_job, Job, Model, Cluster, Profile, Plan         specs as values
    simulate_table, simulate_tables, PlanTable, table_of thousands of plans at once, as columns
    events_of                                            the kernels of a simulated step
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without importing it: a command has to hear signals soon
if TYPE_CHECKING:
    from typing import Any

    from knee.api.budget import budget as budget
    from knee.api.budget import budget_check as budget_check
    from knee.api.calibrate import calibrate as calibrate
    from knee.api.catalog import catalog_entries as catalog_entries
    from knee.api.catalog import catalog_entry as catalog_entry
    from knee.api.catalog import catalog_schema as catalog_schema
    from knee.api.compare import compare as compare
    from knee.api.doctor import doctor as doctor
    from knee.api.dryrun import DryRun as DryRun
    from knee.api.dryrun import dryrun as dryrun
    from knee.api.plan import plan as plan
    from knee.api.probe import probe_collectives as probe_collectives
    from knee.api.probe import probe_kernels as probe_kernels
    from knee.api.probe import probe_power as probe_power
    from knee.api.probe import probe_steps as probe_steps
    from knee.api.report import read_records as read_records
    from knee.api.scale import scale as scale
    from knee.api.simulate import Simulation as Simulation
    from knee.api.simulate import simulate as simulate
    from knee.api.study import Studies as Studies
    from knee.api.study import study as study
    from knee.api.study_list import describe_study as describe_study
    from knee.api.study_list import list_studies as list_studies
    from knee.api.sweep import cancel_sweep as cancel_sweep
    from knee.api.sweep import prepare_sweep as prepare_sweep
    from knee.api.sweep import retry_sweep as retry_sweep
    from knee.api.sweep import run_sweep as run_sweep
    from knee.api.sweep import sweep_status as sweep_status
    from knee.api.traces import TraceAnalysis as TraceAnalysis
    from knee.api.traces import TraceDiff as TraceDiff
    from knee.api.traces import read_traces as read_traces
    from knee.api.tuning.replay import replay_tuning as replay_tuning
    from knee.api.tuning.tune import tune as tune
    from knee.api.tuning.tune import tune_status as tune_status
    from knee.api.validate import validate as validate
    from knee.errors import KneeError as KneeError
    from knee.inputs.request import make_job as make_job
    from knee.record.measurement import Measurement as Measurement
    from knee.results.budget_check_result import BudgetCheck as BudgetCheck
    from knee.results.budget_result import Budget as Budget
    from knee.results.calibrate_result import Calibration as Calibration
    from knee.results.catalog_result import CatalogEntries as CatalogEntries
    from knee.results.catalog_result import CatalogEntry as CatalogEntry
    from knee.results.compare_result import Comparison as Comparison
    from knee.results.doctor_result import MachineCheck as MachineCheck
    from knee.results.plan_result import PlanSearch as PlanSearch
    from knee.results.plans.ranked_plan import RankedPlan as RankedPlan
    from knee.results.records_report import RecordsReport as RecordsReport
    from knee.results.scale_result import Scaling as Scaling
    from knee.results.study_description import StudyDescription as StudyDescription
    from knee.results.study_description import StudySummary as StudySummary
    from knee.results.sweep_result import SweepPlan as SweepPlan
    from knee.results.sweep_result import SweepStatus as SweepStatus
    from knee.results.tuning.replay_result import TuneReplay as TuneReplay
    from knee.results.tuning.tune_result import Tuned as Tuned
    from knee.results.validate_result import BandwidthsValidation as BandwidthsValidation
    from knee.results.validate_result import CarriedValidation as CarriedValidation
    from knee.results.validate_result import RunsValidation as RunsValidation
    from knee.simulator import Results as Results
    from knee.simulator import simulate_table as simulate_table
    from knee.simulator import simulate_tables as simulate_tables
    from knee.single import events_of as events_of
    from knee.specs import Cluster as Cluster
    from knee.specs import Job as Job
    from knee.specs import Model as Model
    from knee.specs import Plan as Plan
    from knee.specs import Profile as Profile
    from knee.specs.load import load_cluster as load_cluster
    from knee.specs.load import load_job as load_job
    from knee.specs.load import load_model as load_model
    from knee.specs.load import load_profile as load_profile
    from knee.specs.plan_table import PlanTable as PlanTable
    from knee.specs.plan_table import table_of as table_of

_HOMES = {
    "BandwidthsValidation": "results.validate_result",
    "Budget": "results.budget_result",
    "BudgetCheck": "results.budget_check_result",
    "Calibration": "results.calibrate_result",
    "CarriedValidation": "results.validate_result",
    "CatalogEntries": "results.catalog_result",
    "CatalogEntry": "results.catalog_result",
    "Cluster": "specs",
    "Comparison": "results.compare_result",
    "DryRun": "api.dryrun",
    "Job": "specs",
    "KneeError": "errors",
    "MachineCheck": "results.doctor_result",
    "Measurement": "record.measurement",
    "Model": "specs",
    "Plan": "specs",
    "PlanSearch": "results.plan_result",
    "PlanTable": "specs.plan_table",
    "Profile": "specs",
    "RankedPlan": "results.plans.ranked_plan",
    "RecordsReport": "results.records_report",
    "Results": "simulator",
    "RunsValidation": "results.validate_result",
    "Scaling": "results.scale_result",
    "Simulation": "api.simulate",
    "Studies": "api.study",
    "StudyDescription": "results.study_description",
    "StudySummary": "results.study_description",
    "SweepPlan": "results.sweep_result",
    "SweepStatus": "results.sweep_result",
    "TraceAnalysis": "api.traces",
    "TraceDiff": "api.traces",
    "TuneReplay": "results.tuning.replay_result",
    "Tuned": "results.tuning.tune_result",
    "budget": "api.budget",
    "budget_check": "api.budget",
    "calibrate": "api.calibrate",
    "cancel_sweep": "api.sweep",
    "catalog_entries": "api.catalog",
    "catalog_entry": "api.catalog",
    "catalog_schema": "api.catalog",
    "compare": "api.compare",
    "describe_study": "api.study_list",
    "doctor": "api.doctor",
    "dryrun": "api.dryrun",
    "events_of": "single",
    "list_studies": "api.study_list",
    "load_cluster": "specs.load",
    "load_job": "specs.load",
    "load_model": "specs.load",
    "load_profile": "specs.load",
    "make_job": "inputs.request",
    "plan": "api.plan",
    "prepare_sweep": "api.sweep",
    "probe_collectives": "api.probe",
    "probe_kernels": "api.probe",
    "probe_power": "api.probe",
    "probe_steps": "api.probe",
    "read_records": "api.report",
    "read_traces": "api.traces",
    "replay_tuning": "api.tuning.replay",
    "retry_sweep": "api.sweep",
    "run_sweep": "api.sweep",
    "scale": "api.scale",
    "simulate": "api.simulate",
    "simulate_table": "simulator",
    "simulate_tables": "simulator",
    "study": "api.study",
    "sweep_status": "api.sweep",
    "table_of": "specs.plan_table",
    "tune": "api.tuning.tune",
    "tune_status": "api.tuning.tune",
    "validate": "api.validate",
}
"""Where each name is at home; a module of the same name (``knee.trace``) is itself."""
_ROOMS = ("trace",)
"""Modules that are reached without importing them first."""
__version__ = "0.2.0"
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is asked for: ``import knee`` itself stays quick."""
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"knee.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'knee' has no attribute {name!r}")
    return getattr(import_module(f"knee.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
