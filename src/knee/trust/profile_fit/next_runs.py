"""The next runs that would tell most: variations of those that were made, by what they leave of the predictions'
uncertainty."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from knee.base.arrays import Floats, extreme_values
from knee.base.errors import InputError
from knee.specs.job import Job
from knee.specs.plan import plan_words
from knee.specs.profile_parameters import OF_MEMORY, Parameter, Values
from knee.trust.profile_fit.stack_fit import NOISE, STEP, problem_of
from knee.trust.validation.run_errors import SimulatedRun, grouped, predicted
from knee.trust.validation.user_records import Pair

COUNT = 3
MOST_VARIED = 8
"""Runs that variations are made of, spread over all: each costs a simulation for every parameter."""
MOST_CANDIDATES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRun:
    """A run that was not made, and what it would tell."""

    model: str
    cluster: str
    gpus: int
    seq_len: int
    global_batch: int
    plan: str
    """In words, as ``knee plan`` prints it."""
    changed: str
    """How it differs from a run that was made."""
    tells: str
    """Name of the parameter of which it tells most."""
    uncertainty_before_frac: float
    """Of that parameter, over its prior's, with the runs that there are and those suggested before."""
    uncertainty_after_frac: float
    spread_before_frac: float
    """Mean standard deviation of predicted tokens/s that comes from the parameters, over runs and candidates."""
    spread_after_frac: float

    @property
    def sentence(self) -> str:
        """Why it is suggested."""
        left = f"from {self.uncertainty_before_frac:.0%} to {self.uncertainty_after_frac:.0%}"
        spread = f"from {self.spread_before_frac:.1%} to {self.spread_after_frac:.1%}"
        uncertainty = f"this run would reduce the remaining uncertainty of {self.tells} {left}"
        return f"{uncertainty}, and the spread of predictions for similar runs {spread}"


def suggest_runs(
    pairs: Sequence[Pair], parameters: Sequence[Parameter], values: Values, count: int = COUNT
) -> tuple[SuggestedRun, ...]:
    """The runs that would reduce the spread of predictions most, one after another.

    Formula: C = (sum_i j_i j_i^T / noise^2 + 1)^-1; the next run maximises sum_t (j_t^T C j)^2 / (noise^2 + j^T C j)
    Where: j are slopes of log tokens/s over the parameters in spreads of their priors, at the fitted values; i are runs
        that were made, t those and all candidates
    Source: A-optimal design, greedily (Atkinson, Donev and Tobias 2007, chapter 10)
    Valid: near the values, and as far as the parameters are what the predictions lack.
    """
    # every run with a reading of memory tells what changes no time
    free = [p for p in parameters if p.path not in OF_MEMORY]
    cases, words = _candidates(pairs, values)
    if not words or not free:
        return ()
    known, slopes = _slopes(grouped(pairs), free, values), _slopes(cases, free, values)
    candidates = [(asked.job, words[_key(asked.job)]) for case in cases for asked in case.asked]
    evidence = known.T @ known / NOISE**2 + np.eye(len(free))
    targets = np.concatenate([known, slopes])
    chosen: list[SuggestedRun] = []
    taken: list[int] = []
    for _ in range(min(count, len(candidates))):
        covariance: Floats = np.linalg.inv(evidence).astype(np.float64)
        reach = slopes @ covariance
        gain = np.sum((targets @ reach.T) ** 2, axis=0) / (NOISE**2 + np.sum(reach * slopes, axis=1))
        gain[taken] = -np.inf
        best = int(np.argmax(gain))
        taken.append(best)
        evidence = evidence + np.outer(slopes[best], slopes[best]) / NOISE**2
        after: Floats = np.linalg.inv(evidence).astype(np.float64)
        chosen.append(_described(candidates[best], free, targets, covariance, after))
    return tuple(chosen)


def _described(
    candidate: tuple[Job, str], parameters: Sequence[Parameter], targets: Floats, before: Floats, after: Floats
) -> SuggestedRun:
    job, changed = candidate
    told = int(np.argmin(np.diag(after) / np.diag(before)))
    return SuggestedRun(
        model=job.model.name,
        cluster=job.cluster.name,
        gpus=job.gpus,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        plan=plan_words(job.plan),
        changed=changed,
        tells=parameters[told].path.removeprefix("profile."),
        uncertainty_before_frac=float(before[told, told] ** 0.5),
        uncertainty_after_frac=float(after[told, told] ** 0.5),
        spread_before_frac=_spread(targets, before),
        spread_after_frac=_spread(targets, after),
    )


def _spread(slopes: Floats, covariance: Floats) -> float:
    return float(np.mean(np.sqrt(np.einsum("ij,jk,ik->i", slopes, covariance, slopes))))


def _candidates(pairs: Sequence[Pair], values: Values) -> tuple[list[SimulatedRun], dict[Hashable, str]]:
    """Variations that are no run that was made, and that fit in memory, spread evenly over the runs; and what was
    changed in each."""
    words: dict[Hashable, str] = {}
    made = {_key(asked.job) for _, asked in pairs}
    found: list[list[Pair]] = []
    for run, asked in pairs[:: -(-len(pairs) // MOST_VARIED)]:
        mine = [(job, said) for job, said in _variations(asked.job) if _key(job) not in made | words.keys()]
        words |= {_key(job): said for job, said in mine}
        found.append([(run, replace(asked, job=job)) for job, _ in mine])
    longest = max((len(mine) for mine in found), default=0)
    cases = grouped([mine[i] for i in range(longest) for mine in found if i < len(mine)])
    fits = iter(predicted(cases, values).fits)
    fitting = [pair for case in cases for pair in zip(case.runs, case.asked, strict=True) if next(fits)]
    every = -(-len(fitting) // MOST_CANDIDATES)
    return grouped(fitting[:: every or 1]), words


def _variations(job: Job) -> Iterator[tuple[Job, str]]:
    """A size twice or half as large, the others as they are; the batch per GPU stays."""
    plan = job.plan
    shards = "dp_replicate" if plan.sharding == "ddp" else "dp_shard"
    changes: list[tuple[str, dict[str, Any], float]] = []
    for twice in (2.0, 0.5):
        changes.append((f"gpus {_of(job.gpus, twice)}", {shards: _of(getattr(plan, shards), twice)}, twice))
        size = _of(plan.micro_batch, twice)
        changes.append((f"micro_batch {size}", {"micro_batch": size}, 1))
        for axis in ("tp", "pp"):
            moved = {axis: _of(getattr(plan, axis), twice), shards: _of(getattr(plan, shards), 1 / twice)}
            changes.append((f"{axis} {moved[axis]}", moved, 1))
    for words, fields, gpus in changes:
        try:
            other = replace(
                job, plan=replace(plan, **fields), gpus=_of(job.gpus, gpus), global_batch=_of(job.global_batch, gpus)
            )
        except InputError:  # what does not divide, or has no such plan
            continue
        yield other, words


def _of(value: int, factor: float) -> int:
    return max(1, int(value * factor))


def _slopes(cases: Sequence[SimulatedRun], parameters: Sequence[Parameter], values: Values) -> Floats:
    """Of log tokens/s, a row for each run and a column for each parameter, a step inwards."""
    start = problem_of(cases, parameters).prior
    at = {p.path: p.inside(values.get(p.path, start[p.path])) for p in parameters}
    here = _log_rates(cases, at)
    columns = []
    for p in parameters:
        position = p.scaled(at[p.path])
        step = STEP if position + STEP <= p.scaled(p.high) else -STEP
        columns.append((_log_rates(cases, at | {p.path: p.value(position + step)}) - here) / step)
    return np.nan_to_num(np.column_stack(columns), posinf=0.0, neginf=0.0)


def _log_rates(cases: Sequence[SimulatedRun], values: Values) -> Floats:
    with extreme_values():
        return np.asarray(np.log(predicted(cases, values).tokens_per_s_per_gpu))


def _key(job: Job) -> Hashable:
    return job.model.name, job.cluster.name, job.gpus, job.seq_len, job.global_batch, job.plan
