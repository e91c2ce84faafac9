"""Before anything is started: every run is checked, and what the sweep will take is estimated by the simulator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from knee.base.errors import SpecError
from knee.base.files import digest
from knee.base.units import show
from knee.engine.reliability.whole_run import restarted_time_s
from knee.engine.simulator import simulate_table
from knee.specs import Job
from knee.specs.plan_table import table_of
from knee.training.launch.sweep_folder import SweepRun
from knee.training.parallelism.trainer_job import TrainJob
from knee.training.sweeps.job_for_trainer import RunSettings, train_job

START_S = 60.0
"""Assumed of every run: processes, imports, weights, and the meeting of ranks."""
UNCLEAN = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """A point of a grid: the job it means, or why it means none."""

    name: str
    series: str
    model: str
    gpus: int
    question: Mapping[str, Any]
    """The point as it was asked, in plain data: what its id is made from, but for the study's name."""
    job: Job | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run that is to be: its entry, and its job where there is one."""

    entry: SweepRun
    requested: RequestedRun
    train: TrainJob | None = None


def plan_runs(
    requested: Sequence[RequestedRun],
    settings: RunSettings,
    *,
    gpus_per_node: int | None,
    anyway: bool,
    command: list[str],
    refusal: Callable[[Job], str | None] = lambda _: None,
    first: int = 1,
) -> list[PlannedRun]:
    """Every run with its estimate, or why it is not started. ``refusal``: what a launcher has to say of a job.

    ``anyway`` starts what the simulator expects not to fit. ``first``: the number of the first run, where a sweep has
    others already.
    """
    # of repeats of the same run the first counts
    distinct = list({digest(_identity(one)): one for one in reversed(requested)}.values())[::-1]
    found = [
        _checked(number, one, settings, gpus_per_node, command, refusal)
        for number, one in enumerate(distinct, start=first)
    ]
    return _estimated(found, anyway=anyway)


def _identity(one: RequestedRun) -> dict[str, Any]:
    """Return what identifies a run; the name of the study that asks for it does not."""
    return {key: value for key, value in one.question.items() if key != "study"}


def _checked(
    number: int,
    one: RequestedRun,
    settings: RunSettings,
    gpus_per_node: int | None,
    command: list[str],
    refusal: Callable[[Job], str | None],
) -> PlannedRun:
    job, why, train = one.job, one.why, None
    per_node = gpus_per_node or (job.cluster.node.gpus if job is not None else one.gpus)
    nodes = max(1, math.ceil(one.gpus / per_node))
    if job is not None:
        try:
            train = train_job(job, settings, out="", command=command)
        except SpecError as error:
            why = error.message
        if not why and nodes > 1 and one.gpus % per_node:
            why = (
                f"{one.gpus:,} GPUs do not fill whole nodes of {per_node} GPUs: {nodes} nodes have {nodes * per_node:,}"
            )
        why = why or refusal(job) or ""
    entry = SweepRun(
        id=_id(number, one, settings),
        name=one.name,
        series=one.series,
        gpus=one.gpus,
        nodes=nodes,
        per_node=min(one.gpus, per_node),
        tokens=job.tokens if job else 0,
        refused=why,
    )
    return PlannedRun(entry=entry, requested=one, train=train)


def _estimated(planned: Sequence[PlannedRun], *, anyway: bool) -> list[PlannedRun]:
    """Groups of jobs that share their specs are simulated together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for at, one in enumerate(planned):
        job = one.requested.job
        if job is None or one.train is None:
            continue
        # by identity: specs are loaded once, have no hash, and comparing each with all others would take squared time
        groups.setdefault((id(job.model), id(job.cluster), id(job.profile)), []).append(at)
    found = list(planned)
    for members in groups.values():
        jobs = [job for at in members if (job := planned[at].requested.job) is not None]
        results = simulate_table(jobs[0].model, jobs[0].cluster, jobs[0].profile, table_of(jobs))
        price = jobs[0].cluster.usd_per_gpu_h
        for row, at in enumerate(members):
            one, job = planned[at], jobs[row]
            assert one.train is not None
            steps = one.train.steps + one.train.trace_steps
            seconds = START_S + steps * float(results.step_s[row])
            gpu_h = job.gpus * seconds / 3600
            why = one.entry.refused
            if not (why or anyway or bool(results.fits[row])):
                needs, has = show(float(results.memory_bytes[row]), "bytes"), show(job.cluster.gpu.hbm_bytes, "bytes")
                why = (
                    f"according to the simulator it does not fit: it needs {needs}, and "
                    f"{job.cluster.gpu.name} has {has}"
                )
            entry = replace(
                one.entry,
                seconds=seconds,
                gpu_h=gpu_h,
                failed_s=restarted_time_s(job.cluster, job.gpus, seconds),
                refused=why,
                energy_j=float(results.power_w_per_gpu[row]) * job.gpus * seconds,
                cost_usd=None if price is None else gpu_h * price,
            )
            found[at] = replace(one, entry=entry)
    return found


def _id(number: int, one: RequestedRun, settings: RunSettings) -> str:
    """Readable, and the same for the same run: its place in the grid, what it is, and a digest of all of it."""
    words = [
        UNCLEAN.sub("-", one.model.rpartition("/")[2].lower().removesuffix(".toml")).strip("-.")[:40] or "model",
        f"g{one.gpus}",
    ]
    if one.job is not None:
        plan = one.job.plan
        words += [f"{axis}{size}" for axis in ("tp", "pp", "cp") if (size := getattr(plan, axis)) > 1]
    how = {name: getattr(settings, name) for name in ("steps", "warmup", "trace_steps", "device")}
    return f"{number:04d}-{'-'.join(words)}-{digest({**_identity(one), 'how': how})[:8]}"
