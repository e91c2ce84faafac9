"""``knee.tune``: the best plan of a real cluster, found in a few short runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from knee.api.tuning.replay import check_within
from knee.errors import InputError, argument
from knee.files import real_path
from knee.inputs.argument_types import checked_arguments
from knee.inputs.plan_request import searched_parts
from knee.inputs.request import ClusterLike, ModelLike, Overrides, ProfileLike, pairs_of
from knee.launch.environment import redacted
from knee.launch.run_status import Status
from knee.launch.site import Site, in_folder
from knee.launch.sweep_folder import Sweep, SweepRun, locked, read_sweep
from knee.progress import Progress
from knee.record.plan_words import plan_words
from knee.results.tuning.tune_result import Tuned
from knee.search.space import Space
from knee.specs import Plan
from knee.specs.choices import Device, Launcher
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS, WITHIN_FRAC
from knee.specs.hardware import Precision
from knee.specs.kept_files import forget_files
from knee.specs.plan import Recompute, ReduceDtype, Schedule, Sharding
from knee.sweeps.control import current_statuses
from knee.sweeps.job_for_trainer import RunSettings, train_job
from knee.sweeps.launchers import refusal_by, require_launcher
from knee.tuning.loop import Limits, Progressed, Stage, run_stage
from knee.tuning.plan_stage import candidates_for, planner_of, stage_of_plans
from knee.tuning.searched_plans import SearchedPlans, refusal_of, searched_plans
from knee.tuning.start_runs import check_room, start_runs
from knee.tuning.tuned_state import TunedState, candidate_states, read_state, run_states, step_states, write_state
from knee.tuning.tuning_folder import open_folder, read_tuning

OnRun = Callable[[SweepRun, Status], None]
OnStep = Callable[[TunedState], None]
"""Called whenever something new is known."""


@checked_arguments
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
    precision: Precision | None = None,
    reduce_dtype: ReduceDtype | None = None,
    max_tp: int | None = None,
    max_pp: int | None = None,
    max_cp: int | None = None,
    max_ep: int | None = None,
    sharding: Sequence[Sharding] = (),
    schedule: Sequence[Schedule] = (),
    recompute: Sequence[Recompute] = (),
    micro_batch: Sequence[int] = (),
    only: str | None = None,
    launcher: Launcher = "local",
    site: Site | None = None,
    within: float = WITHIN_FRAC,
    max_gpu_hours: float | None = None,
    max_runs: int | None = None,
    at_once: int = 1,
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
) -> Tuned:
    """Find the fastest plan of a job on the real cluster with a few short runs.

    The job and the limits of the search are those of ``knee.plan``; ``out``, ``launcher``, ``site``, ``steps`` and
    ``program`` are those of ``knee.prepare_sweep``. The loop runs the plan with the largest expected gain per GPU-hour,
    learns from its throughput, its memory or its failure, and stops when no untried plan is expected to be faster by
    more than the share ``within``. ``max_gpu_hours`` and ``max_runs`` end it earlier. ``at_once`` runs several plans
    side by side.

    All state is in the folder ``out``. If the call is interrupted, the same call continues it.

    >>> import knee
    >>> found = knee.tune("llama2-7b", cluster="dgx-h100", gpus=64, global_batch=128, out="tuned")  # doctest: +SKIP
    >>> found.best_plan, found.bound_frac  # doctest: +SKIP
    ('fsdp, dp_shard 64, micro-batch 2', 0.031)
    """
    check_within(within)
    _check_limits(max_gpu_hours, max_runs)
    forget_files()
    site, folder = site or Site(), real_path(out)
    program = [
        in_folder(word, Path(), bare=at > 0) if Path(word).is_file() else word for at, word in enumerate(program)
    ]
    sizes = {"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len}
    parts = searched_parts(model, cluster, profile, sizes, pairs_of(overrides))
    types = {name: value for name, value in (("precision", precision), ("reduce_dtype", reduce_dtype)) if value}
    space = Space(
        model=parts.model,
        gpus=parts.gpus,
        global_batch=parts.global_batch,
        seq_len=parts.seq_len,
        fixed=Plan(**parts.types | types),
        max_tp=max_tp,
        max_pp=max_pp,
        max_cp=max_cp,
        max_ep=max_ep,
        shardings=tuple(sharding),
        schedules=tuple(schedule),
        recomputes=tuple(recompute),
        micro_batches=tuple(micro_batch),
        attention_again=parts.profile.attention == "unfused" or "attention" in recompute,
    )
    settings = RunSettings(steps=steps, warmup=warmup, trace_steps=trace_steps, device=device, timeout_s=timeout_s)
    require_launcher(launcher, site, program)
    refused = refusal_of(
        lambda job: train_job(job, settings, out="", command=[]),
        refusal_by(launcher, site, own_program=bool(program), ask_slurm=True),
    )
    plans = searched_plans(
        space,
        parts.cluster,
        parts.profile,
        only=only,
        refused=refused,
        progress=progress,
    )
    check_room(plans.jobs[0], launcher, site, at_once)
    shown = redacted(command)
    per_node = parts.gpus if launcher == "local" else site.gpus_per_node
    candidates = candidates_for(plans.jobs, settings)
    stage = stage_of_plans(plans.jobs, candidates, planner_of(settings, gpus_per_node=per_node, command=shown))
    limits = Limits(within_frac=within, max_gpu_h=max_gpu_hours, max_runs=max_runs)
    _check_budget(float(candidates.gpu_h.min()), max_gpu_hours)
    sweep = Sweep(
        folder=folder,
        name=f"tune {parts.model.name}",
        entries=(),
        launcher=launcher,
        options={"until_knee": False, "pack": 1, "timeout_s": timeout_s, "site": site.plain(), "program": program},
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(shown),
    )
    job = _job_words(plans, only, settings)
    words = [plan_words(one.plan) for one in plans.jobs]

    def told(now: Progressed) -> None:
        state = _state(job, plans, stage, words, limits, now)
        write_state(folder, state)
        if on_step is not None:
            on_step(state)

    def start(now: Sweep, ids: Collection[str]) -> int | None:
        return start_runs(
            now, site, ids, at_once=at_once, on_run=on_run or (lambda *_: None), say=say or (lambda _: None)
        )

    with locked(folder):
        sweep = open_folder(sweep, {"job": job}, site)
        done = run_stage(sweep, stage, limits, start=start, at_once=at_once, told=told)
        state = _state(job, plans, stage, words, limits, done)
        write_state(folder, state)
    return Tuned(folder=folder, state=state, statuses=done.sweep.statuses(), signal=done.signal)


@checked_arguments
def tune_status(folder: str | Path) -> Tuned:
    """Return what a tuning knows, what runs now, and what is next; nothing is started."""
    path = real_path(folder)
    read_tuning(path)
    state = read_state(path)
    return Tuned(folder=path, state=state, statuses=current_statuses(read_sweep(path)))


def _state(
    job: dict[str, Any], plans: SearchedPlans, stage: Stage, words: Sequence[str], limits: Limits, now: Progressed
) -> TunedState:
    after = now.standing
    names = dict(zip(stage.keys, words, strict=True))
    best = next((run.id for run in now.made if run.outcome and run.outcome.plan == after.best), None)
    return TunedState(
        job=job,
        within_frac=limits.within_frac,
        max_gpu_h=limits.max_gpu_h,
        stage=stage.name,
        why=now.why,
        gpu_h=now.gpu_h,
        best_run=best,
        best_plan=None if after.best is None else words[after.best],
        best_tokens_per_s_per_gpu=after.best_tokens_per_s_per_gpu,
        expected_gain_frac=after.expected_gain_frac,
        bound_frac=after.bound_frac,
        next_plan=None if after.next is None or now.why else words[after.next],
        space_plans=plans.space_plans,
        beyond_frac=plans.beyond_frac,
        not_run=plans.not_run,
        candidates=candidate_states(stage, words, now),
        runs=run_states(dict.fromkeys(stage.keys, stage.name), names, now),
        steps=step_states(stage, words, now),
    )


def _job_words(plans: SearchedPlans, only: str | None, settings: RunSettings) -> dict[str, Any]:
    job = plans.jobs[0]
    return {
        "model": job.model.name,
        "layers": job.model.layers,
        "cluster": job.cluster.name,
        "profile": job.profile.name,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "only": only,
        **{name: value for name, value in asdict(settings).items() if name != "timeout_s"},
    }


def _check_limits(max_gpu_hours: float | None, max_runs: int | None) -> None:
    if max_gpu_hours is not None and not max_gpu_hours > 0:
        text = f"{argument('max_gpu_hours')} is {max_gpu_hours:g}; it must be positive"
        raise InputError(text, code="out-of-range", field="max_gpu_hours")
    if max_runs is not None and max_runs < 1:
        text = f"{argument('max_runs')} is {max_runs}; it must be at least 1"
        raise InputError(text, code="out-of-range", field="max_runs")


def _check_budget(least_gpu_h: float, max_gpu_hours: float | None) -> None:
    if max_gpu_hours is not None and least_gpu_h > max_gpu_hours:
        raise InputError(
            f"the shortest run is estimated to take {least_gpu_h:,.2g} GPU-hours, and {argument('max_gpu_hours')} is "
            f"{max_gpu_hours:g}",
            hint=f"allow more, or use fewer {argument('steps')}",
            code="too-many-gpu-hours",
            field="max_gpu_hours",
        )
