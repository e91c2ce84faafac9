"""A user's own runs -> the values of a software profile that they determine, tried on runs that were held back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError, argument
from knee.measure.hardware_fit.residuals import SEED, Residuals
from knee.specs.catalog import did_you_mean, read_toml
from knee.specs.load import Loaded
from knee.specs.profile import Profile
from knee.specs.profile_parameters import OF_MEMORY, PARAMETERS, Parameter, Values
from knee.specs.write import Value, spec_toml
from knee.trust.profile_fit.stack_fit import NO_EVIDENCE, UNTOLD, Estimate, StackFit, calibrate, problem_of
from knee.trust.validation.run_errors import grouped, predicted
from knee.trust.validation.user_records import DIFFER, Pair, UserRuns

# Runs that a fit did not see: few are left out one by one, many in one group. They say whether the fit is taken.

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
        return _judged(_before(pairs, own), left_out_errors(pairs, fit), len(pairs) - 1, one_by_one=True)
    return _in_a_group(pairs, parameters, share, own, say)


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
    return [pair for case in grouped(pairs) for pair in zip(case.runs, case.asked, strict=True)]


def _key(pair: Pair) -> Hashable:
    return pair[0].setting, pair[0].lines


HELD_FRAC = 0.25
LARGE_FRAC = 0.15
"""A median error above it, after a fit, is no noise of measurement."""
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
                text = f"{argument(option)} {name}: there is no such parameter to fit"
                hint = f"did you mean {close}?" if close else f"use one of {', '.join(known)}"
                raise InputError(text, hint=hint, code="unknown-choice", field=option)
    wanted = {name.removeprefix("profile.") for name in only} or set(known)
    wanted -= {name.removeprefix("profile.") for name in fixed}
    if not wanted:
        text = f"{argument('only')} and {argument('fix')} leave nothing to fit"
        raise InputError(text, hint="name other parameters", code="nothing-to-fit", field="fix")
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
        why = "the steps of a probe load no data, write no logs and wait for no other rank"
        left |= dict.fromkeys(NOT_IN_STEPS, why)
    free = [p for p in parameters if p.path not in left]
    if not free:
        asked_for = ", ".join(p.path for p in parameters)
        text = f"nothing is left to fit: {asked_for} cannot be determined from the steps of a probe"
        raise InputError(text, hint="name other parameters, or give training runs", code="nothing-to-fit")
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
        errors = f"median error {before.median_frac:.1%} -> {after.median_frac:.1%}"
        why = f"the fit does not clearly improve {what} of runs that were held out {how} ({errors})"
        found |= dict.fromkeys(paths, why)
    return found


def _warnings(runs: UserRuns, fit: StackFit, held_out: HeldOutRuns | None, held_frac: float) -> list[str]:
    said = []
    if runs.simulated:
        found = "a fit to them only finds the values that knee used to simulate them"
        said.append(f"{runs.simulated:,} of the records are simulated, not measured: {found}")
    if runs.differ > DIFFER:
        apart = f"repeats of one setting differ by up to {runs.differ - 1:.0%}"
        said.append(f"{apart}; each setting counts once, with its median")
    if not fit.values:
        said.append("the runs determine none of the parameters, so the profile is the same as its base")
    for e in fit.estimates:
        low, high = (e.parameter.scaled(bound) for bound in (e.parameter.low, e.parameter.high))
        was, at = (e.parameter.scaled(e.parameter.inside(value)) for value in (e.before, e.after))
        if e.determined and min(at - low, high - at) < AT_BOUND <= abs(at - was):
            name = _name(e.parameter.path)
            said.append(f"{name} is at the limit of its range; the cause may be something that is not fitted")
    said += _of_confounded(fit)
    if fit.throughput_after is not None and fit.throughput_after.median_frac > LARGE_FRAC:
        after = fit.throughput_after
        said.append(f"the error after the fit is still {after.median_frac:.0%}: {_why_off(after)}")
    said += _of_held_out(len(runs.pairs), held_out, held_frac)
    return said


def _of_memory(runs: UserRuns, values: Values) -> list[str]:
    """Runs that were out of memory and that knee still expects to fit."""
    if not runs.oom:
        return []
    cases = grouped(runs.oom)
    before, after = (int(predicted(cases, v).fits.sum()) for v in ({}, values))
    if not before and not after:
        return []
    count = f"{len(runs.oom)} run{'s' if len(runs.oom) > 1 else ''} ended out of memory"
    return [f"{count}: the base profile predicts that {before} of them fit, and the fitted profile that {after} fit"]


def _of_confounded(fit: StackFit) -> list[str]:
    said, pairs = [], set()
    for e in fit.estimates:
        pair = frozenset((e.parameter.path, e.confounded_with))
        if not e.determined or e.confounded_with is None or pair in pairs:
            continue
        pairs.add(pair)
        name, other = _name(e.parameter.path), _name(e.confounded_with)
        assumed = f"{name} is fitted on the assumption that {other} is correct"
        if e.confounded_with in fit.values:
            assumed = "both are fitted, and either can replace the other"
        left = f"{e.marginal:.0%} of the uncertainty of {name} remains instead of {e.uncertainty:.0%}"
        said.append(f"{name} and {other} cannot be distinguished by these runs: {assumed}; if both are fitted, {left}")
    return said


def _why_off(after: Residuals) -> str:
    """One run, or several that are off alike, contradict nothing."""
    if after.points == 1:
        return "the fitted parameters do not explain it; check that the row describes the run correctly"
    if abs(after.bias_frac) >= ALIKE * after.median_frac:
        check = "check the other columns of the rows (GPU, attention, recompute, precision)"
        return f"all runs have a similar error, which the fitted parameters do not explain; {check}"
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


def _name(path: str) -> str:
    return path.removeprefix("profile.")


NAMED = 3
"""Files that a source names."""


def profile_text(
    ref: str, base: Loaded[Profile], found: OwnProfile, runs: UserRuns, *, files: Sequence[Path], date: str
) -> str:
    """The file's text; ``ref`` is the name or path that the base was loaded by."""
    name, values = _under(ref, base)
    values |= _fitted(found, runs, files, date) | _attention(base.spec, runs)
    return spec_toml(
        name,
        values,
        comments=(
            f"Written by knee calibrate on {date} from {_counted(runs)} in {_names(files)}.",
            *(f"Kept as in {ref}: {why}." for why in dict.fromkeys(found.kept_base.values())),
            *(("Not tested: no runs were held out of the fit.",) if found.held_out is None else ()),
            f"Values that are missing here come from {ref}."
            if values
            else f"No value was fitted: this profile is the same as {ref}.",
        ),
    )


def _under(ref: str, base: Loaded[Profile]) -> tuple[str | None, dict[str, Value]]:
    """The catalogue's entry that a file can inherit from; a file's own values are carried over."""
    if not ref.endswith(".toml"):
        return ref, {}
    raw = read_toml(Path(ref))
    own = {path: source for path, source in base.sources.items() if path in raw}
    name = raw.get("base")
    return name, {path: Value(value=source.value, kind=source.kind, source=source.text) for path, source in own.items()}


def _fitted(found: OwnProfile, runs: UserRuns, files: Sequence[Path], date: str) -> dict[str, Value]:
    fit, held = found.fit, found.held_out
    rate = _change("tokens/s", fit.throughput_before, fit.throughput_after)
    memory = _change("memory", fit.memory_before, fit.memory_after)
    tried = ""
    if held is not None and held.throughput_before is not None:
        tried = "; " + _change("tokens/s of held-out runs", held.throughput_before, held.throughput_after)
    values = {}
    for path, value in found.values.items():
        field = _name(path)
        said = memory if path in OF_MEMORY or not rate else rate + tried
        source = f"knee calibrate, {date}, {_counted(runs)} of {_names(files)}: {said}"
        values[field] = Value(value=written(field, value), kind="fitted", source=source)
    if found.checked_error_frac:
        said = f"error of 80% of {_counted(runs)}, each predicted by a fit without that run"
        values["checked_error_frac"] = Value(value=round(found.checked_error_frac, 4), kind="measured", source=said)
    return values


def _attention(base: Profile, runs: UserRuns) -> dict[str, Value]:
    """The attention kernel, where all runs have one that is not the base's."""
    kernels = {asked.job.profile.attention for _, asked in runs.pairs}
    if len(kernels) != 1 or base.attention in kernels:
        return {}
    return {"attention": Value(value=kernels.pop(), kind="user", source=f"the kernel of all {_counted(runs)}")}


def written(field: str, value: float) -> str | float:
    """Four digits, with a unit: more than any fit has."""
    if field.endswith("_s"):
        return f"{value * 1e6:.4g} us" if value < 1e-3 else f"{value * 1e3:.4g} ms"
    return f"{value / 1e9:.4g} GB" if field.endswith("_bytes") else round(value, 4)


def _change(what: str, before: Residuals | None, after: Residuals | None) -> str:
    if before is None or after is None:
        return ""
    return f"median error of {what} {before.median_frac:.1%} -> {after.median_frac:.1%}"


def _counted(runs: UserRuns) -> str:
    count = len(runs.pairs)
    return f"{count:,} run{'s' if count > 1 else ''}"


def _names(files: Sequence[Path]) -> str:
    names = [path.name for path in files]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more files" if len(names) > NAMED else "")
