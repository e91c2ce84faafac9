"""Sweeps that were published: jobs that were measured under several plans, each plan as if it were a run to be made."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from knee.base.errors import InputError
from knee.commands.tune.candidates import Candidates, candidates_of
from knee.commands.tune.posterior import End, Outcome
from knee.specs.job import Job
from knee.specs.plan import Plan
from knee.specs.plan_table import PlanTable, table_of
from knee.specs.plan_words import plan_words
from knee.trust.validation.left_out import left_out_profiles, unseen_job_of
from knee.trust.validation.published_runs import PublishedRun
from knee.trust.validation.ranking import job_key
from knee.trust.validation.run_to_job import RunJob
from knee.trust.validation.simulated_runs import unread_bytes

LEAST_PLANS = 8
STEPS = 40
"""Steps of a short run, between 20 and 60."""
Pair = tuple[PublishedRun, RunJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedJob:
    """One job, every plan of it that was run, and what each gave."""

    source: str
    name: str
    job: Job
    """Of one of the plans."""
    table: PlanTable
    plans: tuple[str, ...]
    candidates: Candidates
    outcomes: tuple[Outcome, ...]
    """Of each plan, in order."""

    @property
    def without(self) -> str | None:
        """The source, where something of it was fitted on."""
        return self.source if self.source in left_out_profiles() else None

    @property
    def best_tokens_per_s_per_gpu(self) -> float:
        """Of the fastest plan that was measured."""
        return max(o.tokens_per_s_per_gpu or 0.0 for o in self.outcomes)


def published_jobs(
    runs: Iterable[PublishedRun], *, least_plans: int = LEAST_PLANS, without: str | None = None
) -> list[PublishedJob]:
    """Jobs with at least so many measured plans, predicted as if nothing of their source were known.

    ``without``: leave out the jobs of a source.
    """
    groups: dict[Hashable, list[PublishedRun]] = {}
    for run in runs:
        if run.setting.source != without:
            groups.setdefault(job_key(run.setting), []).append(run)
    found = []
    for members in groups.values():
        plans = _by_plan(members) if len(members) >= least_plans else {}
        if sum(run.tokens_per_s_per_gpu is not None for run, _ in plans.values()) >= least_plans:
            found.append(_job(list(plans.values())))
    return found


def _by_plan(runs: Sequence[PublishedRun]) -> dict[Plan, Pair]:
    """One run a plan, all on the cluster and the stack of the first that was measured. What ran once fits, so a crash
    of a plan that was also measured says nothing."""
    pairs: list[Pair] = []
    for run in sorted(runs, key=lambda run: run.tokens_per_s_per_gpu is None):
        try:
            asked = unseen_job_of(run.setting)
            first = pairs[0][1].job if pairs else asked.job
            job = replace(asked.job, model=first.model, cluster=first.cluster, profile=first.profile)
        except InputError:
            continue
        pairs.append((run, replace(asked, job=job)))
    found: dict[Plan, list[Pair]] = {}
    for run, asked in pairs:
        found.setdefault(asked.job.plan, []).append((run, asked))
    return {plan: _median(some) for plan, some in found.items() if some[0][0].status != "ok" or _measured(some)}


def _measured(pairs: Sequence[Pair]) -> list[float]:
    return [run.tokens_per_s_per_gpu for run, _ in pairs if run.tokens_per_s_per_gpu is not None]


def _median(pairs: Sequence[Pair]) -> Pair:
    run, asked = pairs[0]
    if (rates := _measured(pairs)) and len(rates) > 1:
        run = replace(run, tokens_per_s_per_gpu=float(np.median(rates)))
    return run, asked


def _job(pairs: Sequence[Pair]) -> PublishedJob:
    setting, first = pairs[0][0].setting, pairs[0][1].job
    # in an order that tells nothing: authors list the best plans first
    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = [pairs[at] for at in order]
    table = table_of([asked.job for _, asked in mixed])
    source = setting.source
    known = source if source in left_out_profiles() else None
    return PublishedJob(
        source=source,
        name=f"{setting.model}, {setting.n_gpus:,} {setting.gpu}, batch {setting.global_batch:,} x {setting.seq_len:,}"
        + (f", {setting.kernel}" if setting.kernel else ""),
        job=first,
        table=table,
        plans=tuple(plan_words(asked.job.plan) for _, asked in mixed),
        candidates=candidates_of(first.model, first.cluster, first.profile, table, steps=STEPS, without=known),
        outcomes=tuple(_outcome(at, run, asked) for at, (run, asked) in enumerate(mixed)),
    )


def _outcome(plan: int, run: PublishedRun, asked: RunJob) -> Outcome:
    end: End = "ok" if run.tokens_per_s_per_gpu is not None else "oom" if run.status == "oom" else "failed"
    unread = unread_bytes(run, asked, asked.job.profile)
    return Outcome(
        plan=plan,
        end=end,
        tokens_per_s_per_gpu=run.tokens_per_s_per_gpu,
        memory_bytes=None if run.memory_bytes is None or end != "ok" else run.memory_bytes + unread,
    )
