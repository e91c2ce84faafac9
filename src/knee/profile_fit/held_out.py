"""Runs that a fit did not see: few are left out one by one, many in one group. They say whether the fit is taken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.arrays import Floats
from knee.hardware_fit.residuals import SEED, Residuals
from knee.profile_fit.stack_fit import UNTOLD, StackFit, calibrate, problem_of
from knee.specs.profile_parameters import Parameter, Values
from knee.validation.simulated_runs import grouped, predicted
from knee.validation.user_records import Pair

FEWEST = 8
"""Runs below which leaving some out says nothing."""
MANY = 24
"""Runs from which a share of them is held back; fewer are left out one by one, as each of them is needed."""
FEWEST_JOBS = 4
"""Models and GPU counts below which single runs are held back, not all of one."""


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
    return _judged(_before(pairs, own), left_out_errors(pairs, fit), len(pairs) - 1, one_by_one=True)


def left_out_errors(pairs: Sequence[Pair], fit: StackFit) -> Floats:
    """Logarithms of predicted over measured, of throughput and of memory, each run predicted by a fit without it."""
    free = [e.parameter for e in fit.estimates if e.determined]
    cases = grouped(pairs)
    values = problem_of(cases, free).left_out_values(free, fit.values) if free else [{} for _ in pairs]
    return np.column_stack([_measured_errors([pair], mine) for pair, mine in zip(_ordered(pairs), values, strict=True)])


def _before(pairs: Sequence[Pair], own: Sequence[Pair]) -> Floats:
    """Errors of the runs under their own profiles, in the order of their cases."""
    order = {_key(pair): i for i, pair in enumerate(_ordered(own))}
    return _measured_errors(own, {})[:, [order[_key(pair)] for pair in _ordered(pairs)]]


def _judged(before: Floats, after: Floats, fitted_runs: int, *, one_by_one: bool) -> HeldOutRuns:
    return HeldOutRuns(
        runs=before.shape[1],
        fitted_runs=fitted_runs,
        one_by_one=one_by_one,
        throughput_before=_residuals(before[0]),
        throughput_after=_residuals(after[0]),
        throughput_better=surely_better(before[0], after[0]),
        memory_before=_residuals(before[1]),
        memory_after=_residuals(after[1]),
        memory_better=surely_better(before[1], after[1]),
        error_frac=_covering(after[0]),
    )


def surely_better(before: Floats, after: Floats) -> bool:
    """Whether errors are smaller, run by run, by more than one standard error.

    Formula: sum(sign(d) rank(|d|)) > sqrt(n (n + 1) (2 n + 1) / 6), d = |before| - |after|
    Where: the right side is the standard deviation of the left one where a fit makes no difference; n are the runs
    Source: signed ranks (Wilcoxon 1945) and the one-standard-error rule (Breiman et al. 1984). Ranks, as one run that
        went wrong must neither take a fit nor refuse it
    """
    gain = np.abs(before) - np.abs(after)
    gain = gain[np.isfinite(gain)]
    n = len(gain)
    if n < FEWEST // 2:
        return False
    rank = np.argsort(np.argsort(np.abs(gain))) + 1.0
    return bool(np.sum(np.sign(gain) * rank) > (n * (n + 1) * (2 * n + 1) / 6) ** 0.5)


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
    say(f"fitting on {len(kept):,} runs, to test the fit on the other {len(tried):,}")
    values = calibrate(grouped(kept), parameters, undetermined=UNTOLD).values
    return _judged(_before(tried, own), _measured_errors(tried, values), len(kept), one_by_one=False)


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


def _measured_errors(pairs: Sequence[Pair], values: Values) -> Floats:
    """Logarithms of predicted over measured, of throughput and of memory, in the order of the cases."""
    cases = grouped(pairs)
    answer = predicted(cases, values)
    runs = [run for case in cases for run in case.runs]
    rate = np.log(answer.tokens_per_s_per_gpu / np.array([run.tokens_per_s_per_gpu or np.nan for run in runs]))
    memory = np.log(answer.memory_bytes / np.array([run.memory_bytes or np.nan for run in runs]))
    return np.array([rate, memory])


def _ordered(pairs: Sequence[Pair]) -> list[Pair]:
    """In the order of the cases."""
    return [pair for case in grouped(pairs) for pair in zip(case.runs, case.asked, strict=True)]


def _key(pair: Pair) -> Hashable:
    return pair[0].setting, pair[0].lines
