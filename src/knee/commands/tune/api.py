"""``knee.tune``: the best plan of a real cluster, found in a few short runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, KneeError, argument
from knee.base.files import real_path, write_text
from knee.base.progress import Progress
from knee.commands.calibrate.api import calibrate
from knee.commands.job_request import (
    ClusterLike,
    ModelLike,
    Overrides,
    ProfileLike,
    is_job_file,
    named_cluster,
    pairs_of,
)
from knee.commands.plan.request import searched_parts, takes_search_arguments
from knee.commands.tune.loop import Limits, Why
from knee.commands.tune.replay import check_within
from knee.commands.tune.result import BEST, Tuned
from knee.commands.tune.searched_plans import SearchedPlans, outside_of, refusal_of, searched_plans
from knee.commands.tune.session import OnStep, Session, check_room, start_runs
from knee.commands.tune.stages import USUAL, Knob, Smaller, candidates_for, planner_of
from knee.commands.tune.tuned_state import TunedState, read_state, with_new_runs, write_state
from knee.commands.tune.tuning_folder import open_folder, read_tuning
from knee.specs import Cluster, Job, Profile
from knee.specs.argument_types import checked_arguments, not_in_range
from knee.specs.choices import Device, Launcher
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS, WITHIN_FRAC
from knee.specs.load import forget_files, load_profile
from knee.training.launch.environment import without_secrets
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import Sweep, SweepRun, locked, read_sweep
from knee.training.sweeps import checks
from knee.training.sweeps.control import current_statuses
from knee.training.sweeps.job_for_trainer import RunSettings, train_job

TRAINER = "knee"
"""The catalogue's profile of knee's trainer."""
PROFILE = "profile.toml"
"""Of the folder: the profile that was calibrated on its runs."""
OnRun = Callable[[SweepRun, Status], None]


@checked_arguments
@takes_search_arguments("precision", "reduce_dtype", "state_dtype")
def tune(
    model: ModelLike,
    *,
    out: str | Path,
    cluster: ClusterLike | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
    local_batch: float | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    only: str | None = None,
    launcher: Launcher = "local",
    site: Site | None = None,
    within: float = WITHIN_FRAC,
    max_gpu_hours: float | None = None,
    max_runs: int | None = None,
    at_once: int = 1,
    smaller_gpus: int | None = None,
    smaller_layers: int | None = None,
    knobs: Sequence[Knob] = USUAL,
    steps: int | None = None,
    warmup: int | None = None,
    trace_steps: int = TRACE_STEPS,
    device: Device | None = None,
    timeout_s: float = TIMEOUT_S,
    program: Sequence[str] = (),
    command: Sequence[str] = (),
    on_run: OnRun | None = None,
    on_step: OnStep | None = None,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    **limits: Any,
) -> Tuned:
    """Find the fastest plan of a job on the real cluster with a few short runs.

    The job and the limits of the search (``limits``) are those of ``knee.plan``; the default ``profile`` is that of
    knee's trainer if the trainer runs on GPUs; ``out``, ``launcher``, ``site``, ``steps`` and ``program`` are
    those of ``knee.prepare_sweep``. The loop runs the plan with the largest expected gain per GPU-hour,
    learns from its throughput, its memory or its failure, and stops when no untried plan is expected to be faster by
    more than the share ``within``. ``max_gpu_hours`` and ``max_runs`` end it earlier. ``at_once`` runs several plans
    side by side. ``smaller_gpus`` and ``smaller_layers`` run each plan with fewer replicas or layers; the answer is
    then the plan that is expected to be fastest at full size, and its bound has the error of that transfer. ``knobs``
    lists the settings that are varied after the plan, one at a time: micro_batch, recompute, prefetch, compile,
    reduce_dtype and precision (they change the numerics) and nccl (a few variables of NCCL). ``on_step`` is called
    whenever something new is known.

    All state is in the folder ``out``. If the call is interrupted, the same call continues it.

    >>> import knee
    >>> found = knee.tune("llama2-7b", cluster="dgx-h100", gpus=64, global_batch=128, out="tuned")  # doctest: +SKIP
    >>> found.best_plan, found.bound_frac  # doctest: +SKIP
    ('fsdp, dp_shard 64, micro-batch 2', 0.031)
    """
    check_within(within)
    if max_gpu_hours is not None and not max_gpu_hours > 0:
        raise not_in_range("max_gpu_hours", f"{max_gpu_hours:g}", "it must be positive")
    if max_runs is not None and max_runs < 1:
        raise not_in_range("max_runs", str(max_runs), "it must be at least 1")
    checks.check_run_numbers(steps, warmup, trace_steps, timeout_s)
    forget_files()
    site, folder, program = site or Site(), checks.checked_folder(out), checks.program_paths(program)
    checks.check_container(site, launcher)
    sizes = {"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len}
    stack = profile or _profile_of_trainer(model, cluster, own_program=bool(program))
    parts = searched_parts(model, cluster, stack, sizes, pairs_of(overrides))
    smaller = Smaller(gpus=smaller_gpus, layers=smaller_layers)
    smaller.check(gpus=parts.gpus, layers=parts.model.layers)
    space = parts.space(limits)
    settings = RunSettings(steps=steps, warmup=warmup, trace_steps=trace_steps, device=device, timeout_s=timeout_s)
    checks.require_launcher(launcher, site, program)
    by_launcher = checks.refusal_by(launcher, site, own_program=bool(program), ask_slurm=True)
    refused = refusal_of(
        lambda job: train_job(smaller.of(job), settings, out="", command=[]), lambda job: by_launcher(smaller.of(job))
    )
    outside = outside_of(space, only)

    def searched(stack: Profile) -> SearchedPlans:
        return searched_plans(space, parts.cluster, stack, only=only, refused=refused, progress=progress)

    plans = searched(parts.profile)
    check_room(smaller.of(plans.jobs[0]), launcher, site, at_once)
    _check_budget([smaller.of(job) for job in plans.jobs], settings, max_gpu_hours)
    shown = without_secrets(command)
    session = Session(
        job=_job_words(plans, only, settings, smaller),
        plans=plans,
        settings=settings,
        limits=Limits(within_frac=within, max_gpu_h=max_gpu_hours, max_runs=max_runs),
        planner=planner_of(
            settings, gpus_per_node=parts.gpus if launcher == "local" else site.gpus_per_node, command=shown
        ),
        refused=lambda job: outside(job) or refused(job),
        search=searched,
        start=lambda now, ids: start_runs(
            now, site, ids, at_once=at_once, on_run=on_run or (lambda *_: None), say=say or (lambda _: None)
        ),
        smaller=smaller,
        knobs=tuple(knobs),
        at_once=at_once,
        on_step=on_step or (lambda _: None),
    )
    sweep = Sweep(
        folder=folder,
        name=f"tune {parts.model.name}",
        entries=(),
        launcher=launcher,
        options={"until_knee": False, "pack": 1, "timeout_s": timeout_s, "site": site.plain(), "program": program},
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(shown),
    )
    with locked(folder):
        done = session.run(open_folder(sweep, {"job": session.job}, site))
        if (text := session.best_job()) is not None:
            write_text(folder / BEST, text)
        state = session.finish(*_calibrated(folder, profile, parts.cluster, done.why, smaller))
        write_state(folder, state)
    return replace(_tuned(done.sweep, state, done.sweep.statuses()), signal=done.signal)


@checked_arguments
def tune_status(folder: str | Path) -> Tuned:
    """Return what a tuning knows, what runs now, and what is next; nothing is started."""
    path = real_path(folder)
    read_tuning(path)
    sweep = read_sweep(path)
    statuses = current_statuses(sweep)
    return _tuned(sweep, with_new_runs(read_state(path), sweep, statuses), statuses)


def _tuned(sweep: Sweep, state: TunedState, statuses: Mapping[str, Status]) -> Tuned:
    return Tuned(
        folder=sweep.folder,
        state=state,
        statuses=statuses,
        launcher=sweep.launcher,
        own_program=bool(sweep.options.get("program")),
    )


def _profile_of_trainer(model: ModelLike, cluster: ClusterLike | None, *, own_program: bool) -> str | None:
    """The profile of knee's trainer, where it is what runs and the GPU has its attention kernel."""
    if own_program or cluster is None or is_job_file(model):
        return None
    attention = load_profile(TRAINER).spec.attention
    return TRAINER if attention in named_cluster(cluster).spec.gpu.attention else None


def _calibrated(
    folder: Path, profile: ProfileLike | None, cluster: Cluster, why: Why, smaller: Smaller
) -> tuple[list[str], str | None]:
    """Calibrate a profile on the runs; why not, where it cannot be."""
    if why == "interrupted":
        return [], None
    if smaller.layers is not None:
        return ["no profile was calibrated: the runs have fewer layers than the model"], None
    target = folder / PROFILE
    try:
        calibrate(folder, profile=profile if isinstance(profile, (str, Path)) else None, cluster=cluster, out=target)
    except KneeError as error:
        return [f"no profile was calibrated: {error.message.partition(chr(10))[0].rstrip(':')}"], None
    return [], str(target)


def _job_words(plans: SearchedPlans, only: str | None, settings: RunSettings, smaller: Smaller) -> dict[str, Any]:
    job = plans.jobs[0]
    return {
        "model": job.model.name,
        "layers": job.model.layers,
        "cluster": job.cluster.name,
        "profile": job.profile.name,
        **{name: getattr(job, name) for name in ("gpus", "global_batch", "seq_len")},
        "only": only,
        "smaller_gpus": smaller.gpus,
        "smaller_layers": smaller.layers,
        **{name: value for name, value in asdict(settings).items() if name != "timeout_s"},
    }


def _check_budget(jobs: Sequence[Job], settings: RunSettings, max_gpu_hours: float | None) -> None:
    least = float(candidates_for(jobs, settings).gpu_h.min())
    if max_gpu_hours is not None and least > max_gpu_hours:
        raise InputError(
            f"the shortest run is estimated to take {least:,.2g} GPU-hours, and {argument('max_gpu_hours')} is "
            f"{max_gpu_hours:g}",
            hint=f"allow more, or use fewer {argument('steps')}",
            code="too-many-gpu-hours",
            field="max_gpu_hours",
        )
