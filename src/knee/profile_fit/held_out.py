"""Runs that a fit did not see: few are left out one by one, many in one group. They say whether the fit is taken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.arrays import Floats
from knee.hardware_fit.residuals import SEED, Residuals
from knee.profile_fit.stack_fit import MEMORY_NOISE, NOISE, StackFit, calibrate, problem_of
from knee.specs.profile_parameters import Parameter, Values
from knee.validation.simulated_runs import grouped, predicted
from knee.validation.user_records import Pair

FEWEST = 8
"""Runs below which leaving some out says nothing."""
MANY = 24
"""Runs from which a share of them is held back; fewer are left out one by one, as each of them is needed."""
FEWEST_JOBS = 4
"""Models and GPU counts below which single runs are held back, not all of one."""
SURE = 1.4
"""Standard errors by which runs that were left out one by one must be predicted better for a fit to be taken. Chance
alone does that to eight runs in one case in ten (Student's t with 7 degrees of freedom)."""
WORTH = 0.8
"""Share of the median error that may be left: a fit that explains only the worst of the runs carries over to few."""
MOSTLY = 0.75
"""Share of the runs that must be predicted better: where others pay for it the runs contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRuns:
    """Runs that a fit did not see, before and after it."""

    runs: int
    fitted_runs: int
    """Runs that each prediction was fitted on."""
    one_by_one: bool
    """Each run was left out by itself."""
    throughput_before: Residuals | None
    throughput_after: Residuals | None
    throughput_better: bool
    """Whether the fit carries over to runs that it did not see."""
    memory_before: Residuals | None
    memory_after: Residuals | None
    memory_better: bool
    error_frac: float | None = None
    """Of throughput after the fit, held by four of five new runs; None where the runs are too few to say it."""


def held_out_runs(
    pairs: Sequence[Pair],
    fit: StackFit,
    parameters: Sequence[Parameter],
    share: float,
    own: Sequence[Pair],
    say: Callable[[str], None] = lambda _: None,
) -> HeldOutRuns | None:
    """Try a ``fit`` to all runs, or one to a part of them, on runs that it does not see; None where they are too few,
    or none are to be left out. ``own`` are the same runs, each under the profile that it would be predicted by without
    the fit."""
    if len(pairs) < FEWEST or share == 0:
        return None
    if len(pairs) < MANY:
        return _one_by_one(pairs, fit, own)
    return _in_a_group(pairs, parameters, share, own, say)


def _one_by_one(pairs: Sequence[Pair], fit: StackFit, own: Sequence[Pair]) -> HeldOutRuns:
    after = left_out_errors(pairs, fit)
    olds, _ = _measured_errors(own, {})
    order = {_key(pair): i for i, pair in enumerate(_ordered(own))}
    before = olds[:, [order[_key(pair)] for pair in _ordered(pairs)]]
    rate, memory = ((before[i], after[i]) for i in (0, 1))
    return HeldOutRuns(
        runs=len(pairs),
        fitted_runs=len(pairs) - 1,
        one_by_one=True,
        throughput_before=_residuals(rate[0]),
        throughput_after=_residuals(rate[1]),
        throughput_better=surely_better(*rate, NOISE),
        memory_before=_residuals(memory[0]),
        memory_after=_residuals(memory[1]),
        memory_better=surely_better(*memory, MEMORY_NOISE),
        error_frac=_covering(rate[1]),
    )


def left_out_errors(pairs: Sequence[Pair], fit: StackFit) -> Floats:
    """Logarithms of predicted over measured, of throughput and of memory, each run left out of the fit."""
    free = [e.parameter for e in fit.estimates if e.determined]
    cases = grouped(pairs)
    rate, memory = problem_of(cases, free).left_out_errors(free, fit.values)
    return np.array([rate * NOISE, memory * MEMORY_NOISE])


def surely_better(before: Floats, after: Floats, noise: float) -> bool:
    """Whether errors are smaller, run by run, by more than chance, and by enough to matter.

    Formula: mean(d) < -SURE * std(d) / sqrt(n), d = loss(after) - loss(before);
        median |after| <= WORTH * median |before|; |after| < |before| in MOSTLY of the runs
    Where: loss is the one that is fitted, linear in large errors, so that a run that went wrong decides nothing
    Source: the one-standard-error rule (Breiman et al. 1984), here on differences of the same run
    """
    known = np.isfinite(before) & np.isfinite(after)
    if known.sum() < FEWEST // 2:
        return False
    old, new = before[known], after[known]
    d = _loss(new / noise) - _loss(old / noise)
    sure = d.mean() < -SURE * d.std(ddof=1) / len(d) ** 0.5
    worth = np.median(np.abs(new)) <= WORTH * np.median(np.abs(old))
    return bool(sure and worth and np.mean(np.abs(new) < np.abs(old)) >= MOSTLY)


def _loss(errors: Floats) -> Floats:
    return np.asarray(np.sqrt(1.0 + errors**2) - 1.0)


def _covering(errors: Floats, share: float = 0.8) -> float | None:
    """Size of error that holds a share of new runs: the k-th of n with k = share (n + 1) (arXiv 1604.04173)."""
    known = np.sort(np.abs(np.expm1(errors[np.isfinite(errors)])))
    k = int(np.ceil(share * (len(known) + 1)))
    return float(known[k - 1]) if 0 < k <= len(known) else None


def _residuals(errors: Floats) -> Residuals | None:
    return Residuals.of_measured(np.exp(errors), np.where(np.isfinite(errors), 1.0, np.nan))


def _in_a_group(
    pairs: Sequence[Pair],
    parameters: Sequence[Parameter],
    share: float,
    own: Sequence[Pair],
    say: Callable[[str], None],
) -> HeldOutRuns | None:
    away = held_away([job_key(pair) for pair in pairs], share)
    kept = [pair for pair, out in zip(pairs, away, strict=True) if not out]
    tried = [pair for pair, out in zip(pairs, away, strict=True) if out]
    if not tried:
        return None
    say(f"fitting on {len(kept):,} runs, to be tried on the other {len(tried):,}")
    values = calibrate(grouped(kept), parameters).values
    keys = {_key(pair) for pair in tried}
    _, (rate_before, memory_before) = _measured_errors([pair for pair in own if _key(pair) in keys], {})
    errors, (rate_after, memory_after) = _measured_errors(tried, values)
    return HeldOutRuns(
        runs=len(tried),
        fitted_runs=len(kept),
        one_by_one=False,
        throughput_before=rate_before,
        throughput_after=rate_after,
        throughput_better=_ranks_better(rate_before, rate_after),
        memory_before=memory_before,
        memory_after=memory_after,
        memory_better=_ranks_better(memory_before, memory_after),
        error_frac=_covering(errors[0]),
    )


def _ranks_better(before: Residuals | None, after: Residuals | None) -> bool:
    return before is not None and after is not None and _rank(after) < _rank(before)


def _rank(errors: Residuals) -> tuple[float, float]:
    """The median to a tenth of a percent, then the tail."""
    return round(errors.median_frac, 3), errors.p90_frac


def job_key(pair: Pair) -> Hashable:
    """What a user would ask about anew: another model, or another number of GPUs."""
    job = pair[1].job
    return job.model.layers, job.model.hidden, job.cluster.name, job.gpus


def held_away(keys: Sequence[Hashable], share: float) -> list[bool]:
    """True for runs that are held back: all of one model on one number of GPUs, where there are several of those."""
    counts = Counter(keys)
    if len(counts) < FEWEST_JOBS:
        keys = range(len(keys))
        counts = Counter(keys)
    wanted, found = share * len(keys), 0
    taken = set()
    for key in random.Random(SEED).sample(sorted(counts, key=repr), len(counts)):
        # not much more than was asked for: the fit needs the rest
        if found < wanted and found + counts[key] <= max(1.0, 1.5 * wanted):
            taken.add(key)
            found += counts[key]
    return [key in taken for key in keys]


def _measured_errors(pairs: Sequence[Pair], values: Values) -> tuple[Floats, tuple[Residuals | None, Residuals | None]]:
    """Logarithms of predicted over measured, of throughput and memory, in the order of the cases; and their sizes."""
    cases = grouped(pairs)
    answer = predicted(cases, values)
    runs = [run for case in cases for run in case.runs]
    rate = np.log(answer.tokens_per_s_per_gpu / np.array([run.tokens_per_s_per_gpu or np.nan for run in runs]))
    memory = np.log(answer.memory_bytes / np.array([run.memory_bytes or np.nan for run in runs]))
    return np.array([rate, memory]), (_residuals(rate), _residuals(memory))


def _ordered(pairs: Sequence[Pair]) -> list[Pair]:
    """In the order of the cases."""
    return [pair for case in grouped(pairs) for pair in zip(case.runs, case.asked, strict=True)]


def _key(pair: Pair) -> Hashable:
    return pair[0].setting, pair[0].lines
