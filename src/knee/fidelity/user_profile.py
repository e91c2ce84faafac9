"""A user's own runs -> the values of a software profile that they determine, tried on runs that were held back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from knee.columns import Floats
from knee.errors import InputError
from knee.fidelity.calibration import Calibration, Estimate, calibrate
from knee.fidelity.cases import grouped, predicted
from knee.fidelity.parameters import PARAMETERS, Parameter, Values
from knee.fidelity.residuals import SEED, Residuals
from knee.fidelity.user_records import Pair
from knee.fidelity.user_runs import DIFFER, UserRuns
from knee.specs.catalog import did_you_mean

HELD_FRAC = 0.25
FEWEST = 8
"""Runs below which holding some back says nothing."""
FEWEST_JOBS = 4
"""Models and GPU counts below which single runs are held back, not all of one."""
LARGE_FRAC = 0.15
"""A median error above it, after a fit, is no noise of measurement."""
NO_EVIDENCE = 0.9995
"""Share of a prior's uncertainty above which no run depends on a parameter."""
NOT_IN_STEPS = ("profile.step_overhead_s", "profile.straggler_frac")
"""What a probe's steps have none of, and so say nothing about in training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Runs that a fit did not see, before and after it."""

    runs: int
    fitted_runs: int
    throughput_before: Residuals | None
    throughput_after: Residuals | None
    memory_before: Residuals | None
    memory_after: Residuals | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProfile:
    """What became of all parameters, and what is to be said of it."""

    fit: Calibration
    left: dict[str, str]
    """Parameter that was not determined -> why."""
    held_out: HeldOut | None
    warnings: tuple[str, ...]


def chosen(only: Sequence[str], fixed: Sequence[str]) -> list[Parameter]:
    """The parameters that are fitted; names with or without ``profile.``."""
    known = {p.path.removeprefix("profile."): p for p in PARAMETERS}
    for option, names in (("--only", only), ("--fix", fixed)):
        for name in names:
            if name.removeprefix("profile.") not in known:
                close = did_you_mean(name, known)
                raise InputError(f"{option} {name}: no such parameter can be fitted",
                                 hint=f"did you mean {close}?" if close else f"known are {', '.join(known)}")
    wanted = {name.removeprefix("profile.") for name in only} or set(known)
    wanted -= {name.removeprefix("profile.") for name in fixed}
    if not wanted:
        raise InputError("--only and --fix leave nothing to fit", hint="name other parameters")
    return [p for name, p in known.items() if name in wanted]


def fit_profile(runs: UserRuns, parameters: Sequence[Parameter], held_frac: float = HELD_FRAC) -> OwnProfile:
    """Fit on some runs and try on the others; then fit on all."""
    left = {p.path: "not asked for" for p in PARAMETERS if p not in parameters}
    if runs.probed:
        left |= dict.fromkeys(NOT_IN_STEPS, "a probe's steps load no data, log nothing and wait for nobody")
    free = [p for p in parameters if p.path not in left]
    if not free:
        raise InputError(f"nothing is left to fit: {', '.join(p.path for p in parameters)} cannot be told by the steps "
                         "of a probe", hint="name other parameters, or give runs of training")
    held_out = _held_out(runs.pairs, free, held_frac)
    fit = calibrate(grouped(runs.pairs), free)
    left |= {e.parameter.path: _why_left(e) for e in fit.estimates if not e.determined}
    return OwnProfile(fit=fit, left=left, held_out=held_out, warnings=tuple(_warnings(runs, fit, held_out, held_frac)))


def _why_left(estimate: Estimate) -> str:
    if estimate.uncertainty >= NO_EVIDENCE:
        return "no run depends on it"
    return "the runs say too little of it, or cannot tell it from another"


def _held_out(pairs: Sequence[Pair], parameters: Sequence[Parameter], share: float) -> HeldOut | None:
    if len(pairs) < FEWEST or share == 0:
        return None
    away = _away([_job_key(pair) for pair in pairs], share)
    kept = [pair for pair, out in zip(pairs, away, strict=True) if not out]
    tried = [pair for pair, out in zip(pairs, away, strict=True) if out]
    if not tried:
        return None
    values = calibrate(grouped(kept), parameters).values
    (rate_before, memory_before), (rate_after, memory_after) = _errors(tried, {}), _errors(tried, values)
    return HeldOut(runs=len(tried), fitted_runs=len(kept), throughput_before=rate_before, throughput_after=rate_after,
                   memory_before=memory_before, memory_after=memory_after)


def _job_key(pair: Pair) -> Hashable:
    """What a user would ask about anew: another model, or another number of GPUs."""
    job = pair[1].job
    return job.model.layers, job.model.hidden, job.cluster.name, job.gpus


def _away(keys: Sequence[Hashable], share: float) -> list[bool]:
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


def _errors(pairs: Sequence[Pair], values: Values) -> tuple[Residuals | None, Residuals | None]:
    """Of throughput and memory."""
    cases = grouped(pairs)
    answer = predicted(cases, values)
    runs = [run for case in cases for run in case.runs]
    return (_residuals(answer.tokens_per_s_per_gpu, [run.tokens_per_s_per_gpu for run in runs]),
            _residuals(answer.memory_bytes, [run.memory_bytes for run in runs]))


def _residuals(answer: Floats, measured: Sequence[float | None]) -> Residuals | None:
    known = np.array([value is not None for value in measured])
    if not known.any():
        return None
    return Residuals.of(answer[known], np.array([value for value in measured if value is not None]))


def _warnings(runs: UserRuns, fit: Calibration, held_out: HeldOut | None, held_frac: float) -> list[str]:
    said = []
    if runs.simulated:
        said.append(f"{runs.simulated:,} of the records are simulated, not measured: a fit to them finds what knee "
                    "was told when it made them")
    if runs.differ > DIFFER:
        said.append(f"repeats of one setting differ by up to {runs.differ - 1:.0%}; each counts once, by its median")
    if not fit.values:
        said.append("the runs determine none of the parameters: the profile is its base")
    for e in fit.estimates:
        low, high = (e.parameter.scaled(bound) for bound in (e.parameter.low, e.parameter.high))
        at = e.parameter.scaled(e.parameter.inside(e.after))
        if e.determined and min(at - low, high - at) < AT_BOUND:
            said.append(f"{_field(e)} is at the end of its range: something that is not fitted may be behind it")
    after, before = fit.throughput_after, fit.throughput_before
    if after is not None and before is not None and after.median_frac > LARGE_FRAC:
        said.append(f"the error stays at {after.median_frac:.0%}: the runs contradict each other, or were not run as "
                    "their rows say; `knee validate --rows` shows which")
    said += _of_held_out(len(runs.pairs), held_out, held_frac)
    return said


AT_BOUND = 0.02
"""Standard deviations of the prior."""


def _of_held_out(runs: int, held_out: HeldOut | None, held_frac: float) -> list[str]:
    if held_frac == 0:
        return ["no runs were held back, so the error on other runs is not known"]
    if held_out is None:
        few = "1 run is" if runs == 1 else f"{runs} runs are"
        return [f"{few} too few to hold some back ({FEWEST} are needed), so the error on other runs is not known"]
    before, after = held_out.throughput_before, held_out.throughput_after
    if before is not None and after is not None and after.median_frac > before.median_frac + WORSE_FRAC:
        return [f"runs that were held back are predicted worse after the fit ({before.median_frac:.1%} -> "
                f"{after.median_frac:.1%}): the profile may not carry over to runs unlike these"]
    return []


WORSE_FRAC = 0.005


def _field(estimate: Estimate) -> str:
    return estimate.parameter.path.removeprefix("profile.")
