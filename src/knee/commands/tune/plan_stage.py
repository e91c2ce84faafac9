"""The first stage: plans of the whole space, each a short run of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from knee.commands.tune.candidates import Candidates, candidates_of
from knee.commands.tune.exposed_comm import SimulatedShares, simulated_shares
from knee.commands.tune.loop import Stage
from knee.commands.tune.plan_covariance import carried_spreads
from knee.commands.tune.posterior import Beliefs
from knee.commands.tune.smaller_jobs import Smaller, joined, transfer_variance
from knee.commands.tune.tuning_folder import plan_key
from knee.specs.job import Job
from knee.specs.plan_table import table_of
from knee.specs.plan_words import plan_words
from knee.training.sweeps.job_for_trainer import STEPS, RunSettings, device_of
from knee.training.sweeps.preflight import PlannedRun, RequestedRun, plan_runs

Planner = Callable[[Sequence[RequestedRun], int], list[PlannedRun]]
"""Runs that are asked for, and the number of the first -> runs with their folders and estimates."""


def candidates_for(jobs: Sequence[Job], settings: RunSettings) -> Candidates:
    """The jobs of one model, cluster and stack, simulated."""
    first = jobs[0]
    steps = (settings.steps or STEPS[device_of(first, settings)]) + settings.trace_steps
    return candidates_of(first.model, first.cluster, first.profile, table_of(jobs), steps=steps)


def stage_of_plans(jobs: Sequence[Job], settings: RunSettings, planner: Planner, smaller: Smaller) -> Stage:
    """Candidates are jobs that differ in their plan; each is run as it is, or smaller."""
    made = [smaller.of(job) for job in jobs]
    asked = [question_of(job) for job in made]
    keys = tuple(plan_key(question) for question in asked)

    def make(rows: Sequence[int], first: int) -> list[PlannedRun]:
        return planner([_requested(made[row], asked[row], keys[row]) for row in rows], first)

    rate, memory = carried_spreads("throughput"), carried_spreads("memory")
    full = candidates_for(jobs, settings)
    shares = shares_of(made, full)
    if smaller == Smaller():
        return Stage(name="plan", keys=keys, beliefs=Beliefs(full, rate, memory, shares=shares), make=make)
    both = joined(candidates_for(made, settings), full)
    beliefs = Beliefs(both, rate, memory, more=transfer_variance(jobs, smaller), goal=len(jobs), shares=shares)
    return Stage(name="plan", keys=keys, beliefs=beliefs, make=make)


def shares_of(jobs: Sequence[Job], candidates: Candidates) -> Callable[[int], SimulatedShares]:
    """Exposed communication that is expected of a run, by row; simulated once, where a run has a trace."""
    return cache(lambda row: simulated_shares(jobs[row], candidates))


def question_of(job: Job, **more: Any) -> dict[str, Any]:
    """What makes a run another one."""
    return {
        "model": job.model.name,
        "layers": job.model.layers,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": asdict(job.plan),
        **more,
    }


def _requested(job: Job, question: Mapping[str, Any], key: str) -> RequestedRun:
    return RequestedRun(
        name=plan_words(job.plan), series=key, model=job.model.name, gpus=job.gpus, question=question, job=job
    )


def planner_of(settings: RunSettings, *, gpus_per_node: int | None, command: Sequence[str]) -> Planner:
    """Runs of the trainer; memory is weighed by the choice, so none is refused for it."""

    def plan(requested: Sequence[RequestedRun], first: int) -> list[PlannedRun]:
        return plan_runs(
            requested, settings, gpus_per_node=gpus_per_node, anyway=True, command=list(command), first=first
        )

    return plan
