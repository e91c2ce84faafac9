"""``knee.prepare_sweep`` and ``knee.run_sweep``: a grid of real runs; its status, its end, and another try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from knee.base.errors import InputError, SpecError, argument
from knee.base.files import real_path
from knee.base.limits import MOST_RUNS
from knee.base.progress import Progress, watched
from knee.commands.study.questions import StudyPoint, all_points, check_count, job_of
from knee.commands.study.study_file import GridChanges, changes_of, load_study
from knee.commands.sweep.result import SweepPlan, SweepStatus
from knee.specs.argument_types import checked_arguments, not_in_range
from knee.specs.catalog import nearest
from knee.specs.choices import Device, Launcher
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS
from knee.specs.load import forget_files
from knee.training.launch.environment import stored_site, without_secrets
from knee.training.launch.run_status import STATES, Status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import Sweep, SweepRun, locked, read_sweep
from knee.training.sweeps import checks, slurm
from knee.training.sweeps import run_local as local
from knee.training.sweeps.control import cancel_runs, current_statuses, prepare_folder, requeue
from knee.training.sweeps.job_for_trainer import RunSettings
from knee.training.sweeps.preflight import RequestedRun, plan_runs

OnRun = Callable[[int, int, SweepRun, Status], None]
"""Called when a run starts, ends or is left out: its number, of how many, the run, and its status."""
Say = Callable[[str], None]
"""Takes a sentence on what happens in Slurm's queue."""
ENDED = tuple(state for state in STATES if state not in ("pending", "running"))


@checked_arguments
def prepare_sweep(
    grid: str | Path,
    *,
    out: str | Path,
    launcher: Launcher = "local",
    site: Site | None = None,
    overrides: GridChanges = (),
    steps: int | None = None,
    warmup: int | None = None,
    trace_steps: int = TRACE_STEPS,
    device: Device | None = None,
    checkpoint_every: int = 0,
    timeout_s: float = TIMEOUT_S,
    program: Sequence[str] = (),
    max_gpu_hours: float | None = None,
    until_knee: bool = False,
    anyway: bool = False,
    pack: int = 1,
    check_launcher: bool = True,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> SweepPlan:
    """Expand a grid into runs, check and estimate each; nothing is written or started.

    ``grid`` is a study's name or a TOML file of grids, ``out`` the folder of the sweep. ``site`` has the options of
    the launcher. ``program`` is started for each run instead of the trainer, with the run's folder as its last
    argument. ``until_knee`` stops a series once measurements show that more GPUs do not pay off. ``anyway`` also starts
    runs that do not fit according to the simulator. ``pack`` is the number of runs per Slurm job. Without
    ``check_launcher``, a sweep can be estimated on a machine without its launcher. ``command`` is written into the
    sweep's files, without the values of variables.

    >>> from knee.commands.sweep.api import prepare_sweep
    >>> plan = prepare_sweep("fig6", out="sweep", launcher="slurm", check_launcher=False)
    >>> plan.estimate.runs_to_start > 0
    True
    """
    site, folder = site or Site(), checks.checked_folder(out)
    checks.check_run_numbers(steps, warmup, trace_steps, timeout_s)
    if pack < 1:
        raise not_in_range("pack", str(pack), "it must be at least 1")
    if max_gpu_hours is not None and not max_gpu_hours >= 0:
        rule = "it cannot be negative" if max_gpu_hours < 0 else "it must be a number"
        raise not_in_range("max_gpu_hours", f"{max_gpu_hours:g}", rule)
    checks.check_container(site, launcher)
    program = checks.program_paths(program)
    forget_files()
    requested = requested_runs(str(grid), overrides, progress)
    if check_launcher:
        checks.require_launcher(launcher, site, program)
    command = without_secrets(command)
    planned = plan_runs(
        requested,
        RunSettings(
            steps=steps,
            warmup=warmup,
            trace_steps=trace_steps,
            device=device,
            checkpoint_every=checkpoint_every,
            timeout_s=timeout_s,
        ),
        gpus_per_node=max(one.gpus for one in requested) if launcher == "local" else site.gpus_per_node,
        anyway=anyway,
        command=command,
        refusal=checks.refusal_by(launcher, site, own_program=bool(program), ask_slurm=check_launcher),
    )
    sweep = Sweep(
        folder=folder,
        name=str(grid),
        entries=tuple(one.entry for one in planned),
        launcher=launcher,
        options={
            "until_knee": until_knee,
            "pack": pack,
            "timeout_s": timeout_s,
            "site": site.plain(),
            "program": program,
        },
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(command),
    )
    return SweepPlan(
        sweep=sweep,
        planned=tuple(planned),
        site=site,
        duplicates=len(requested) - len(planned),
        max_gpu_hours=max_gpu_hours,
    )


@checked_arguments
def run_sweep(
    plan: SweepPlan,
    *,
    wait: bool = False,
    on_run: OnRun | None = None,
    say: Say | None = None,
    progress: Progress | None = None,
) -> SweepStatus:
    """Write the sweep's folder and start the missing runs; with Slurm, submit them.

    ``wait`` waits until all runs that were submitted to Slurm have ended. If the folder already contains this sweep,
    runs that were cancelled, preempted or lost their node are restarted. Runs that failed are not restarted (use
    ``retry_sweep``).
    """
    plan.check()
    plan.check_startable()
    with locked(plan.sweep.folder):
        prepare_folder(plan.sweep, watched(plan.planned, "writing", len(plan.planned), progress), plan.site)
        return _start_missing(plan.sweep, plan.site, wait=wait, only=None, on_run=on_run, say=say)


@checked_arguments
def sweep_status(folder: str | Path) -> SweepStatus:
    """Return the state of the runs of a sweep; for runs in Slurm's queue, Slurm is asked."""
    sweep = read_sweep(real_path(folder))
    return SweepStatus(sweep=sweep, statuses=current_statuses(sweep))


@checked_arguments
def cancel_sweep(folder: str | Path) -> tuple[int, int]:
    """Stop the runs of a sweep, and return how many were running and how many were waiting."""
    return cancel_runs(read_sweep(real_path(folder)))


@checked_arguments
def retry_sweep(
    folder: str | Path,
    *,
    states: Sequence[str] = ("failed",),
    runs: Collection[str] = (),
    wait: bool = False,
    on_requeued: Callable[[int], None] | None = None,
    on_run: OnRun | None = None,
    say: Say | None = None,
) -> SweepStatus:
    """Restart runs that have ended in one of these states, with the options of the sweep.

    ``runs`` are the ids of the runs to restart; default: all. ``on_requeued`` is called with their number before they
    are started.
    """
    sweep = read_sweep(real_path(folder))
    _check_states(states)
    _check_ids(sweep, runs)
    site = stored_site(sweep.folder, sweep.options.get("site", {}))
    with locked(sweep.folder):
        count = requeue(sweep, states, runs)
        if on_requeued is not None:
            on_requeued(count)
        if not count:
            return SweepStatus(sweep=sweep, statuses=current_statuses(sweep))
        found = _start_missing(sweep, site, wait=wait, only=frozenset(runs) or None, on_run=on_run, say=say)
        return replace(found, requeued=count)


def _start_missing(
    sweep: Sweep, site: Site, *, wait: bool, only: Collection[str] | None, on_run: OnRun | None, say: Say | None
) -> SweepStatus:
    numbers = {entry.id: number for number, entry in enumerate(sweep.entries, start=1)}

    def report(entry: SweepRun, status: Status) -> None:
        if on_run is not None:
            on_run(numbers[entry.id], len(numbers), entry, status)

    signal = None
    if sweep.launcher == "slurm":
        slurm.submit_missing(sweep, site, wait=wait, say=say or (lambda _: None), only=only)
    else:
        signal = local.start_missing(sweep, site, only=only, on_run=report)
    return SweepStatus(sweep=sweep, statuses=current_statuses(sweep), signal=signal)


def requested_runs(grid: str, overrides: GridChanges, progress: Progress | None = None) -> list[RequestedRun]:
    """The points of a grid with their jobs."""
    study = load_study(grid)
    changes = changes_of(overrides)
    check_count([study], changes, most=MOST_RUNS)
    points = list(all_points(study, changes))
    if not points:
        text = f"{grid} contains no grid of training runs"
        raise InputError(text, hint="`knee study list` shows which studies have runs", code="no-grid", field="grid")
    # what a series keeps while its GPUs grow: the batch of each of them, or the batch of all
    given = {name for name in ("local_batch", "global_batch") if name in changes}
    weak = "global_batch" not in given and bool(given or any(grid.local_batch is not None for grid in study.grid))
    return [_requested_run(point, weak=weak) for point in watched(points, "checking", len(points), progress)]


def _requested_run(point: StudyPoint, *, weak: bool) -> RequestedRun:
    """``weak``: the series of the point keeps the batch of each GPU."""
    question = point.question
    batch = f"{question.global_batch / question.gpus:.12g} per GPU" if weak else f"{question.global_batch} in total"
    series = (
        f"{point.series} ({question.model}, {question.cluster}, {question.profile}, {question.seq_len}, "
        f"batch {batch}{''.join(f', {key} {value}' for key, value in question.sets)})"
    )
    one = RequestedRun(
        name=point.name,
        series=series,
        model=question.model,
        gpus=question.gpus,
        question={"study": point.study, "series": point.series, **asdict(question)},
    )
    try:
        return replace(one, job=job_of(question))
    except SpecError as error:
        return replace(one, why=error.message)


def _check_states(states: Sequence[str]) -> None:
    for state in states:
        if state in STATES and state not in ENDED:
            text = f"{argument('states')} {state}: runs in this state have not ended, so they cannot be restarted"
            hint = "`knee sweep GRID --out DIR` starts pending runs; `knee sweep cancel` stops running ones"
            raise InputError(text, hint=hint, code="not-ended", field="states")
    wrong = [state for state in states if state not in ENDED]
    if wrong or not states:
        text = f"{argument('states')} {','.join(states)!r} is not one of {', '.join(ENDED)}"
        raise InputError(text, hint=nearest(wrong[0], ENDED) if wrong else None, code="unknown-choice", field="states")


def _check_ids(sweep: Sweep, runs: Collection[str]) -> None:
    known = [entry.id for entry in sweep.entries]
    unknown = next((run for run in runs if run not in set(known)), None)
    if unknown is not None:
        hint = nearest(unknown, known)
        raise InputError(f"the sweep has no run {unknown!r}", hint=hint, code="unknown-run", field="runs")
