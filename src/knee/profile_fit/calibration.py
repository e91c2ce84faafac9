"""A user's own runs -> the values of a software profile that they determine, tried on runs that were held back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from knee.errors import InputError, argument
from knee.hardware_fit.residuals import SEED, Residuals
from knee.profile_fit.stack_fit import Estimate, StackFit, calibrate
from knee.specs.catalog import did_you_mean
from knee.specs.profile_parameters import PARAMETERS, Parameter, Values
from knee.validation.simulated_runs import grouped, predicted
from knee.validation.user_records import Pair
from knee.validation.user_runs import DIFFER, UserRuns

HELD_FRAC = 0.25
FEWEST = 8
"""Runs below which holding some back says nothing."""
FEWEST_JOBS = 4
"""Models and GPU counts below which single runs are held back, not all of one."""
LARGE_FRAC = 0.15
"""A median error above it, after a fit, is no noise of measurement."""
NO_EVIDENCE = 0.9995
"""Share of a prior's uncertainty above which no run depends on a parameter."""
OF_MEMORY = ("profile.context_bytes", "profile.allocator_frac")
NOT_IN_STEPS = ("profile.step_overhead_s", "profile.straggler_frac")
"""What a probe's steps have none of, and so say nothing about in training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRuns:
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

    fit: StackFit
    left: dict[str, str]
    """Parameter that was not determined -> why."""
    held_out: HeldOutRuns | None
    kept_base: dict[str, str]
    """Parameter whose fitted value is not taken -> what the runs that were held back say of it."""
    warnings: tuple[str, ...]

    @property
    def values(self) -> dict[str, float]:
        """What is written: determined, and no worse on runs that were held back."""
        return {path: value for path, value in self.fit.values.items() if path not in self.kept_base}


def chosen(only: Sequence[str], fixed: Sequence[str]) -> list[Parameter]:
    """The parameters that are fitted; names with or without ``profile.``."""
    known = {p.path.removeprefix("profile."): p for p in PARAMETERS}
    for option, names in (("only", only), ("fix", fixed)):
        for name in names:
            if name.removeprefix("profile.") not in known:
                close = did_you_mean(name, known)
                raise InputError(
                    f"{argument(option)} {name}: no such parameter can be fitted",
                    hint=f"did you mean {close}?" if close else f"known are {', '.join(known)}",
                    code="unknown-choice",
                    field=option,
                )
    wanted = {name.removeprefix("profile.") for name in only} or set(known)
    wanted -= {name.removeprefix("profile.") for name in fixed}
    if not wanted:
        raise InputError(
            f"{argument('only')} and {argument('fix')} leave nothing to fit",
            hint="name other parameters",
            code="nothing-to-fit",
            field="fix",
        )
    return [p for name, p in known.items() if name in wanted]


def fit_profile(
    runs: UserRuns,
    parameters: Sequence[Parameter],
    held_frac: float = HELD_FRAC,
    *,
    anyway: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> OwnProfile:
    """Fit on some runs and try on the others; then fit on all. Where the others are not predicted better the base's
    values stay, unless they are wanted ``anyway``."""
    left = {p.path: "not asked for" for p in PARAMETERS if p not in parameters}
    if runs.probed:
        left |= dict.fromkeys(NOT_IN_STEPS, "a probe's steps load no data, log nothing and wait for nobody")
    free = [p for p in parameters if p.path not in left]
    if not free:
        raise InputError(
            f"nothing is left to fit: {', '.join(p.path for p in parameters)} cannot be told by the steps of a probe",
            hint="name other parameters, or give runs of training",
            code="nothing-to-fit",
        )
    held_out = _held_out(runs.pairs, free, held_frac, say)
    say(f"fitting on all {len(runs.pairs):,} runs" if len(runs.pairs) > 1 else "fitting on the one run")
    fit = calibrate(grouped(runs.pairs), free, oom=grouped(runs.oom))
    left |= {e.parameter.path: _why_left(e) for e in fit.estimates if not e.determined}
    no_better = _no_better(fit, held_out)
    kept_base = {} if anyway else no_better
    said = _warnings(runs, fit, held_out, held_frac)
    values = {path: value for path, value in fit.values.items() if path not in kept_base}
    said += _of_memory(runs, values)
    said += [
        f"{why}; {argument('anyway')} took the fitted values" for why in dict.fromkeys(no_better.values()) if anyway
    ]
    return OwnProfile(fit=fit, left=left | kept_base, held_out=held_out, kept_base=kept_base, warnings=tuple(said))


def _why_left(estimate: Estimate) -> str:
    if estimate.confounded_with is not None:
        return f"the runs cannot tell it from {_name(estimate.confounded_with)}"
    if estimate.uncertainty >= NO_EVIDENCE:
        return "no run depends on it"
    return "the runs say too little of it"


def _no_better(fit: StackFit, held_out: HeldOutRuns | None) -> dict[str, str]:
    """Fitted parameters that do not carry over to runs that a fit did not see -> why."""
    if held_out is None:
        return {}
    found: dict[str, str] = {}
    for paths, before, after, what in (
        ([p for p in fit.values if p in OF_MEMORY], held_out.memory_before, held_out.memory_after, "memory"),
        (
            [p for p in fit.values if p not in OF_MEMORY],
            held_out.throughput_before,
            held_out.throughput_after,
            "tokens/s",
        ),
    ):
        if before is not None and after is not None and _rank(after) >= _rank(before):
            why = (
                f"{what} of runs that were held back is predicted no better after a fit "
                f"({before.median_frac:.1%} -> {after.median_frac:.1%})"
            )
            found |= dict.fromkeys(paths, why)
    return found


def _rank(errors: Residuals) -> tuple[float, float]:
    """The median to a tenth of a percent, then the tail."""
    return round(errors.median_frac, 3), errors.p90_frac


def _held_out(
    pairs: Sequence[Pair], parameters: Sequence[Parameter], share: float, say: Callable[[str], None]
) -> HeldOutRuns | None:
    if len(pairs) < FEWEST or share == 0:
        return None
    away = _away([_job_key(pair) for pair in pairs], share)
    kept = [pair for pair, out in zip(pairs, away, strict=True) if not out]
    tried = [pair for pair, out in zip(pairs, away, strict=True) if out]
    if not tried:
        return None
    say(f"fitting on {len(kept):,} runs, to be tried on the other {len(tried):,}")
    values = calibrate(grouped(kept), parameters).values
    (rate_before, memory_before), (rate_after, memory_after) = _errors(tried, {}), _errors(tried, values)
    return HeldOutRuns(
        runs=len(tried),
        fitted_runs=len(kept),
        throughput_before=rate_before,
        throughput_after=rate_after,
        memory_before=memory_before,
        memory_after=memory_after,
    )


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
    return (
        Residuals.of_measured(answer.tokens_per_s_per_gpu, [run.tokens_per_s_per_gpu for run in runs]),
        Residuals.of_measured(answer.memory_bytes, [run.memory_bytes for run in runs]),
    )


def _warnings(runs: UserRuns, fit: StackFit, held_out: HeldOutRuns | None, held_frac: float) -> list[str]:
    said = []
    if runs.simulated:
        said.append(
            f"{runs.simulated:,} of the records are simulated, not measured: a fit to them finds what knee "
            "was told when it made them"
        )
    if runs.differ > DIFFER:
        said.append(f"repeats of one setting differ by up to {runs.differ - 1:.0%}; each counts once, by its median")
    if not fit.values:
        said.append("the runs determine none of the parameters: the profile is its base")
    for e in fit.estimates:
        low, high = (e.parameter.scaled(bound) for bound in (e.parameter.low, e.parameter.high))
        at = e.parameter.scaled(e.parameter.inside(e.after))
        if e.determined and min(at - low, high - at) < AT_BOUND:
            said.append(f"{_field(e)} is at the end of its range: something that is not fitted may be behind it")
    said += _of_confounded(fit)
    if fit.throughput_after is not None and fit.throughput_after.median_frac > LARGE_FRAC:
        said.append(f"the error stays at {fit.throughput_after.median_frac:.0%}: {_why_off(fit.throughput_after)}")
    said += _of_held_out(len(runs.pairs), held_out, held_frac)
    return said


def _of_memory(runs: UserRuns, values: Values) -> list[str]:
    """Runs that were out of memory and that knee still expects to fit."""
    if not runs.oom:
        return []
    cases = grouped(runs.oom)
    before, after = (int(predicted(cases, v).fits.sum()) for v in ({}, values))
    count = len(runs.oom)
    return (
        [
            f"{count} run{'s were' if count > 1 else ' was'} out of memory: knee expected {before} to fit, and expects "
            f"{after} to after the fit"
        ]
        if before or after
        else []
    )


def _of_confounded(fit: StackFit) -> list[str]:
    said, pairs = [], set()
    for e in fit.estimates:
        pair = frozenset((e.parameter.path, e.confounded_with))
        if not e.determined or e.confounded_with is None or pair in pairs:
            continue
        pairs.add(pair)
        other = _name(e.confounded_with)
        assumed = (
            "both are fitted, and one can stand for the other"
            if e.confounded_with in fit.values
            else f"{_field(e)} is fitted as if {other} were right as it is"
        )
        said.append(
            f"{_field(e)} and {other} cannot be told apart by these runs: {assumed}; with both free "
            f"{e.marginal:.0%} of the uncertainty of {_field(e)} is left, not {e.uncertainty:.0%}"
        )
    return said


def _why_off(after: Residuals) -> str:
    """One run, or several that are off alike, contradict nothing."""
    if after.points == 1:
        return (
            "the parameters that may be fitted do not explain it; look whether the run was run as its row says, "
            "and what else knee was told of it"
        )
    if abs(after.bias_frac) >= ALIKE * after.median_frac:
        return (
            "the runs are off alike, and the parameters that may be fitted do not explain it; look at what else "
            "knee was told of them (GPU, attention, recompute, precision)"
        )
    return "the runs contradict each other, or were not run as their rows say; `knee validate --rows` shows which"


ALIKE = 0.9
"""Bias over error from which runs are off to one side."""


AT_BOUND = 0.02
"""Standard deviations of the prior."""


def _of_held_out(runs: int, held_out: HeldOutRuns | None, held_frac: float) -> list[str]:
    if held_out is not None:
        return []
    if held_frac == 0:
        return ["not checked: no runs were held back, so the error on other runs is not known"]
    few = "1 run is" if runs == 1 else f"{runs} runs are"
    return [
        f"not checked: {few} too few to hold some back ({FEWEST} are needed), so the error on other runs is not known"
    ]


def _field(estimate: Estimate) -> str:
    return _name(estimate.parameter.path)


def _name(path: str) -> str:
    return path.removeprefix("profile.")
