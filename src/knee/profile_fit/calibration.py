"""A user's own runs -> the values of a software profile that they determine, tried on runs that were held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knee.errors import InputError, argument
from knee.hardware_fit.residuals import Residuals
from knee.profile_fit.held_out import FEWEST, HeldOutRuns, held_out_runs
from knee.profile_fit.stack_fit import NO_EVIDENCE, UNTOLD, Estimate, StackFit, calibrate
from knee.specs.catalog import did_you_mean
from knee.specs.profile_parameters import PARAMETERS, Parameter, Values
from knee.validation.simulated_runs import grouped, predicted
from knee.validation.user_runs import DIFFER, UserRuns

HELD_FRAC = 0.25
LARGE_FRAC = 0.15
"""A median error above it, after a fit, is no noise of measurement."""
OF_MEMORY = ("profile.context_bytes", "profile.allocator_frac")
NOT_IN_STEPS = ("profile.step_overhead_s", "profile.straggler_frac")
"""What a probe's steps have none of, and so say nothing about in training."""


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

    @property
    def checked_error_frac(self) -> float | None:
        """Error of tokens/s that holds four of five new runs; None where values of speed were not taken or checked."""
        taken = any(path not in OF_MEMORY for path in self.values)
        return self.held_out.error_frac if taken and self.held_out is not None else None


def chosen(only: Sequence[str], fixed: Sequence[str]) -> list[Parameter]:
    """The parameters that are fitted; names with or without ``profile.``."""
    known = {p.path.removeprefix("profile."): p for p in PARAMETERS}
    for option, names in (("only", only), ("fix", fixed)):
        for name in names:
            if name.removeprefix("profile.") not in known:
                close = did_you_mean(name, known)
                raise InputError(
                    f"{argument(option)} {name}: there is no such parameter to fit",
                    hint=f"did you mean {close}?" if close else f"use one of {', '.join(known)}",
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
    own: UserRuns | None = None,
    anyway: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> OwnProfile:
    """Fit on some runs and try on the others; then fit on all. Where the others are not predicted better the base's
    values stay, unless they are wanted ``anyway``. ``own`` are the runs under the profiles that they would be predicted
    by without a fit, where those are several."""
    asked = {p.path for p in parameters}
    left = {p.path: "not selected" for p in PARAMETERS if p.path not in asked}
    if runs.probed:
        left |= dict.fromkeys(
            NOT_IN_STEPS, "the steps of a probe load no data, write no logs and wait for no other rank"
        )
    free = [p for p in parameters if p.path not in left]
    if not free:
        raise InputError(
            f"nothing is left to fit: {', '.join(p.path for p in parameters)} cannot be determined from the "
            "steps of a probe",
            hint="name other parameters, or give training runs",
            code="nothing-to-fit",
        )
    say(f"fitting on all {len(runs.pairs):,} runs" if len(runs.pairs) > 1 else "fitting on the one run")
    fit = calibrate(grouped(runs.pairs), free, oom=grouped(runs.oom), undetermined=UNTOLD)
    held_out = held_out_runs(runs.pairs, fit, free, held_frac, (own or runs).pairs, say)
    left |= {e.parameter.path: _why_left(e) for e in fit.estimates if not e.determined}
    no_better = _no_better(fit, held_out)
    kept_base = {} if anyway else no_better
    said = _warnings(runs, fit, held_out, held_frac)
    values = {path: value for path, value in fit.values.items() if path not in kept_base}
    said += _of_memory(runs, values)
    said += [
        f"{why}; the fitted values are used because of {argument('anyway')}"
        for why in dict.fromkeys(no_better.values())
        if anyway
    ]
    return OwnProfile(fit=fit, left=left | kept_base, held_out=held_out, kept_base=kept_base, warnings=tuple(said))


def _why_left(estimate: Estimate) -> str:
    if estimate.confounded_with is not None:
        return f"the runs cannot distinguish it from {_name(estimate.confounded_with)}"
    if estimate.uncertainty >= NO_EVIDENCE:
        return "no run depends on it"
    return "the runs contain too little information about it"


def _no_better(fit: StackFit, held_out: HeldOutRuns | None) -> dict[str, str]:
    """Fitted parameters that do not carry over to runs that a fit did not see -> why."""
    if held_out is None:
        return {}
    found: dict[str, str] = {}
    memory = [p for p in fit.values if p in OF_MEMORY]
    speed = [p for p in fit.values if p not in OF_MEMORY]
    for paths, before, after, better, what in (
        (memory, held_out.memory_before, held_out.memory_after, held_out.memory_better, "memory"),
        (speed, held_out.throughput_before, held_out.throughput_after, held_out.throughput_better, "tokens/s"),
    ):
        if before is None or after is None or better:
            continue
        how = "one at a time" if held_out.one_by_one else "as a group"
        why = (
            f"the fit does not clearly improve {what} of runs that were held out {how} "
            f"(median error {before.median_frac:.1%} -> {after.median_frac:.1%})"
        )
        found |= dict.fromkeys(paths, why)
    return found


def _warnings(runs: UserRuns, fit: StackFit, held_out: HeldOutRuns | None, held_frac: float) -> list[str]:
    said = []
    if runs.simulated:
        said.append(
            f"{runs.simulated:,} of the records are simulated, not measured: a fit to them only finds "
            "the values that knee used to simulate them"
        )
    if runs.differ > DIFFER:
        said.append(
            f"repeats of one setting differ by up to {runs.differ - 1:.0%}; each setting counts once, with its median"
        )
    if not fit.values:
        said.append("the runs determine none of the parameters, so the profile is the same as its base")
    for e in fit.estimates:
        low, high = (e.parameter.scaled(bound) for bound in (e.parameter.low, e.parameter.high))
        was, at = (e.parameter.scaled(e.parameter.inside(value)) for value in (e.before, e.after))
        if e.determined and min(at - low, high - at) < AT_BOUND <= abs(at - was):
            said.append(f"{_field(e)} is at the limit of its range; the cause may be something that is not fitted")
    said += _of_confounded(fit)
    if fit.throughput_after is not None and fit.throughput_after.median_frac > LARGE_FRAC:
        said.append(
            f"the error after the fit is still {fit.throughput_after.median_frac:.0%}: {_why_off(fit.throughput_after)}"
        )
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
            f"{count} run{'s' if count > 1 else ''} ended out of memory: the base profile predicts that "
            f"{before} of them fit, "
            f"and the fitted profile that {after} fit"
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
            "both are fitted, and either can replace the other"
            if e.confounded_with in fit.values
            else f"{_field(e)} is fitted on the assumption that {other} is correct"
        )
        said.append(
            f"{_field(e)} and {other} cannot be distinguished by these runs: {assumed}; if both are "
            f"fitted, {e.marginal:.0%} of the uncertainty of {_field(e)} remains instead of {e.uncertainty:.0%}"
        )
    return said


def _why_off(after: Residuals) -> str:
    """One run, or several that are off alike, contradict nothing."""
    if after.points == 1:
        return "the fitted parameters do not explain it; check that the row describes the run correctly"
    if abs(after.bias_frac) >= ALIKE * after.median_frac:
        return (
            "all runs have a similar error, which the fitted parameters do not explain; check the other columns of "
            "the rows (GPU, attention, recompute, precision)"
        )
    return "the runs contradict each other, or their rows describe them wrongly; `knee validate --rows` shows which"


ALIKE = 0.9
"""Bias over error from which runs are off to one side."""


AT_BOUND = 0.02
"""Standard deviations of the prior."""


def _of_held_out(runs: int, held_out: HeldOutRuns | None, held_frac: float) -> list[str]:
    if held_out is not None:
        return []
    if held_frac == 0:
        return ["not tested: no runs were held out, so the error on other runs is unknown"]
    few = "1 run is" if runs == 1 else f"{runs} runs are"
    return [f"not tested: {few} too few to hold some out ({FEWEST} are needed), so the error on other runs is unknown"]


def _field(estimate: Estimate) -> str:
    return _name(estimate.parameter.path)


def _name(path: str) -> str:
    return path.removeprefix("profile.")
