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
    train          one real training run under the same plan, measured
    prepare_shards, read_shards    tokens for it, made of text files
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

    from knee.base.errors import KneeError as KneeError
    from knee.commands.budget.api import budget as budget
    from knee.commands.budget.api import budget_check as budget_check
    from knee.commands.budget.result import Budget as Budget
    from knee.commands.budget.result import BudgetCheck as BudgetCheck
    from knee.commands.calibrate.api import calibrate as calibrate
    from knee.commands.calibrate.result import Calibration as Calibration
    from knee.commands.catalog.api import catalog_entries as catalog_entries
    from knee.commands.catalog.api import catalog_entry as catalog_entry
    from knee.commands.catalog.api import catalog_schema as catalog_schema
    from knee.commands.catalog.result import CatalogEntries as CatalogEntries
    from knee.commands.catalog.result import CatalogEntry as CatalogEntry
    from knee.commands.compare.api import Comparison as Comparison
    from knee.commands.compare.api import compare as compare
    from knee.commands.data.api import ShardFolder as ShardFolder
    from knee.commands.data.api import prepare_shards as prepare_shards
    from knee.commands.data.api import read_shards as read_shards
    from knee.commands.doctor.api import MachineCheck as MachineCheck
    from knee.commands.doctor.api import doctor as doctor
    from knee.commands.dryrun.api import DryRun as DryRun
    from knee.commands.dryrun.api import dryrun as dryrun
    from knee.commands.job_request import make_job as make_job
    from knee.commands.plan.api import plan as plan
    from knee.commands.plan.result import PlanSearch as PlanSearch
    from knee.commands.plan.result import RankedPlan as RankedPlan
    from knee.commands.probe.api import probe_collectives as probe_collectives
    from knee.commands.probe.api import probe_kernels as probe_kernels
    from knee.commands.probe.api import probe_power as probe_power
    from knee.commands.probe.api import probe_steps as probe_steps
    from knee.commands.report.api import RecordsReport as RecordsReport
    from knee.commands.report.api import read_records as read_records
    from knee.commands.scale.api import scale as scale
    from knee.commands.scale.result import Scaling as Scaling
    from knee.commands.simulate.api import simulate as simulate
    from knee.commands.simulate.result import Simulation as Simulation
    from knee.commands.study.api import Studies as Studies
    from knee.commands.study.api import StudyDescription as StudyDescription
    from knee.commands.study.api import StudySummary as StudySummary
    from knee.commands.study.api import describe_study as describe_study
    from knee.commands.study.api import list_studies as list_studies
    from knee.commands.study.api import study as study
    from knee.commands.sweep.api import cancel_sweep as cancel_sweep
    from knee.commands.sweep.api import prepare_sweep as prepare_sweep
    from knee.commands.sweep.api import retry_sweep as retry_sweep
    from knee.commands.sweep.api import run_sweep as run_sweep
    from knee.commands.sweep.api import sweep_status as sweep_status
    from knee.commands.sweep.result import SweepPlan as SweepPlan
    from knee.commands.sweep.result import SweepStatus as SweepStatus
    from knee.commands.trace.api import TraceAnalysis as TraceAnalysis
    from knee.commands.trace.api import TraceDiff as TraceDiff
    from knee.commands.trace.api import read_traces as read_traces
    from knee.commands.train.api import TrainedRun as TrainedRun
    from knee.commands.train.api import train as train
    from knee.commands.tune.api import tune as tune
    from knee.commands.tune.api import tune_status as tune_status
    from knee.commands.tune.replay import TuneReplay as TuneReplay
    from knee.commands.tune.replay import replay_tuning as replay_tuning
    from knee.commands.tune.result import Tuned as Tuned
    from knee.commands.validate.api import validate as validate
    from knee.commands.validate.result import BandwidthsValidation as BandwidthsValidation
    from knee.commands.validate.result import CarriedValidation as CarriedValidation
    from knee.commands.validate.result import RunsValidation as RunsValidation
    from knee.engine.measurement import Measurement as Measurement
    from knee.engine.one_job import events_of as events_of
    from knee.engine.simulator import Results as Results
    from knee.engine.simulator import simulate_table as simulate_table
    from knee.engine.simulator import simulate_tables as simulate_tables
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

_NAMES = {
    "base.errors": "KneeError",
    "commands.budget.api": "budget budget_check",
    "commands.budget.result": "Budget BudgetCheck",
    "commands.calibrate.api": "calibrate",
    "commands.calibrate.result": "Calibration",
    "commands.catalog.api": "catalog_entries catalog_entry catalog_schema",
    "commands.catalog.result": "CatalogEntries CatalogEntry",
    "commands.compare.api": "Comparison compare",
    "commands.data.api": "ShardFolder prepare_shards read_shards",
    "commands.doctor.api": "MachineCheck doctor",
    "commands.dryrun.api": "DryRun dryrun",
    "commands.job_request": "make_job",
    "commands.plan.api": "plan",
    "commands.plan.result": "PlanSearch RankedPlan",
    "commands.probe.api": "probe_collectives probe_kernels probe_power probe_steps",
    "commands.report.api": "RecordsReport read_records",
    "commands.scale.api": "scale",
    "commands.scale.result": "Scaling",
    "commands.simulate.api": "simulate",
    "commands.simulate.result": "Simulation",
    "commands.study.api": "Studies StudyDescription StudySummary describe_study list_studies study",
    "commands.sweep.api": "cancel_sweep prepare_sweep retry_sweep run_sweep sweep_status",
    "commands.sweep.result": "SweepPlan SweepStatus",
    "commands.trace.api": "TraceAnalysis TraceDiff read_traces",
    "commands.train.api": "TrainedRun train",
    "commands.tune.api": "tune tune_status",
    "commands.tune.replay": "TuneReplay replay_tuning",
    "commands.tune.result": "Tuned",
    "commands.validate.api": "validate",
    "commands.validate.result": "BandwidthsValidation CarriedValidation RunsValidation",
    "engine.measurement": "Measurement",
    "engine.one_job": "events_of",
    "engine.simulator": "Results simulate_table simulate_tables",
    "specs": "Cluster Job Model Plan Profile",
    "specs.load": "load_cluster load_job load_model load_profile",
    "specs.plan_table": "PlanTable table_of",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Module -> names that are at home in it, and each name -> its module."""
__version__ = "0.2.0"
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is asked for: ``import knee`` itself stays quick."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'knee' has no attribute {name!r}")
    return getattr(import_module(f"knee.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
