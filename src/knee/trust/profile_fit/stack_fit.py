"""Measured runs -> the parameters of a software stack that they determine, and what is left at its default.

A fit weighs what was measured against what is known without it: each parameter has a prior around the value that is
there, so that few runs move little. Where runs say no more of a parameter than its prior did, it stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.base.errors import InputError, MissingExtra
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.profile import Profile
from knee.specs.profile_parameters import Parameter, Values, value_of
from knee.trust.validation.run_errors import Predicted, SimulatedRun, predicted
from knee.trust.validation.run_to_job import catalog_profile, left_out_profiles

MOST = 2.0
"""Times the spread that a parameter has by itself: a source whose values are all its own says no more than that."""
OPEN = ("profile.gemm_scale",)
"""Parameters whose least value is that of the stacks that were fitted, and no limit of what can be."""
REACH = 3.0
"""Spreads below the value that is there to which those may fall."""


def stack_priors(parameters: Iterable[Parameter], base: Profile, *, without: str | None = None) -> list[Parameter]:
    """The parameters with the spread between stacks, of sources other than ``without``, and room to move by it.

    Formula: spread = spread_0 * clip(sqrt(mean(d^2)), 1, MOST)
    Where: d is the distance of a source's fitted value from that of the profile that stands for it, in spread_0, the
        parameter's own; a mean over sources
    Valid: for stacks that differ from the known ones as those differ from each other.
    """
    return [_wider(p, base, float(np.clip(_distance(p, without), 1.0, MOST))) for p in parameters]


def _distance(parameter: Parameter, without: str | None) -> float:
    """Root of the mean square over sources; 0 where there are none."""
    name = parameter.path.removeprefix("profile.")

    def position(profile: Profile) -> float:
        return parameter.scaled(parameter.inside(float(getattr(profile, name))))

    apart = [
        position(catalog_profile(fitted)) - position(stand_in)
        for source, profiles in left_out_profiles().items()
        if source != without
        for fitted, stand_in in profiles.items()
    ]
    return float(np.sqrt(np.mean(np.square(apart)))) if apart else 0.0


def _wider(parameter: Parameter, base: Profile, factor: float) -> Parameter:
    spread = factor * parameter.spread
    if parameter.path not in OPEN:
        return replace(parameter, spread=spread)
    value = parameter.inside(float(getattr(base, parameter.path.removeprefix("profile."))))
    return replace(parameter, spread=spread, low=min(parameter.low, exp(log(value) - REACH * spread)))


NOISE = 0.05
"""Relative error of a published throughput: between 1% and 15%, by source."""
MEMORY_NOISE = 0.1
NO_ANSWER = 100.0
"""Standard deviations that a run counts as far off where values leave it without an answer."""
WEIGHT = 30.0
"""A source counts as no more runs than these, however many it has: its runs err alike."""
UNDETERMINED = 0.75
"""A parameter whose uncertainty is left above this share of its prior's has not been determined."""
UNTOLD = 0.95
"""The same share where priors are the spread between stacks: they hold what runs say little of near its value, and
without it others would have to stand for it."""
NO_EVIDENCE = 0.9995
"""The share above which no run depends on a parameter."""
SCANNED = 20
"""Values at which a floor is tried: a third apart, as one that is half or twice as high looks no better than none."""
CONFOUNDED = 1.25
"""A parameter whose uncertainty grows by more once all others are free cannot be told from one of them: 1.25 is a
correlation of 0.6."""
STEPS = 12
ENOUGH = 1e-2
"""Share of the loss that a further step must gain."""
TINY = 1e-6
STEP = 0.15
"""Of a prior's standard deviation, for differences: wide enough to look over tiles and waves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What became of a parameter."""

    parameter: Parameter
    before: float
    after: float
    determined: bool
    uncertainty: float
    """Standard deviation left, over the prior's: 1 where the runs say nothing. Those that were not determined are taken
    to be at their value."""
    marginal: float
    """The same with all parameters free, within their priors: never less."""
    confounded_with: str | None = None
    """Path of the parameter that the runs cannot tell it from, where that is why the two differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFit:
    """A fit and how good it is."""

    estimates: tuple[Estimate, ...]
    runs: int
    throughput_before: Residuals | None
    throughput_after: Residuals | None
    memory_before: Residuals | None
    memory_after: Residuals | None

    @property
    def values(self) -> dict[str, float]:
        """Only what was determined."""
        return {e.parameter.path: e.after for e in self.estimates if e.determined}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What the predictions are held against, as columns; NaN where it was not measured."""

    rate: Floats
    memory: Floats
    weight: Floats

    @property
    def run(self) -> Ints:
        """Of each error, the run that it is of."""
        return np.concatenate([np.flatnonzero(np.isfinite(measured)) for measured in (self.rate, self.memory)])

    @classmethod
    def of(cls, cases: Sequence[SimulatedRun]) -> _Measured:
        runs = [run for case in cases for run in case.runs]
        counts = Counter(run.setting.source for run in runs)
        rate = np.array([run.tokens_per_s_per_gpu or np.nan for run in runs])
        weight = np.array([min(1.0, WEIGHT / counts[run.setting.source]) ** 0.5 for run in runs])
        return cls(rate=rate, memory=np.array([run.memory_bytes or np.nan for run in runs]), weight=weight)

    def residuals(self, answer: Predicted) -> Floats:
        """Errors in standard deviations of their noise, weighed."""
        rate = np.log(answer.tokens_per_s_per_gpu / self.rate) / NOISE
        memory = np.log(answer.memory_bytes / self.memory) / MEMORY_NOISE
        pairs = ((rate, self.rate), (memory, self.memory))
        found = np.concatenate([(r * self.weight)[np.isfinite(measured)] for r, measured in pairs])
        return np.asarray(np.nan_to_num(found, nan=NO_ANSWER, posinf=NO_ANSWER, neginf=-NO_ANSWER), dtype=np.float64)

    def scores(self, answer: Predicted) -> tuple[Residuals | None, Residuals | None]:
        """Throughput and memory."""
        return (
            Residuals.of_measured(answer.tokens_per_s_per_gpu, self.rate),
            Residuals.of_measured(answer.memory_bytes, self.memory),
        )


def need_scipy() -> None:
    """Refuse before anything is read where nothing can be fitted."""
    try:
        import scipy.optimize  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingExtra("a fit needs scipy", hint="pip install 'knee[fit]'") from None


def calibrate(
    cases: Sequence[SimulatedRun],
    parameters: Sequence[Parameter],
    *,
    oom: Sequence[SimulatedRun] = (),
    undetermined: float = UNDETERMINED,
) -> StackFit:
    """Fit what the runs determine; the rest keeps its value. ``oom`` are runs that were out of memory: what says that
    they fit is off by at least as much as it leaves free. A parameter that keeps more than the share ``undetermined``
    of its uncertainty keeps its value.

    Floors are tried over their range first; then slopes tell which parameters the runs can determine together, and only
    those are fitted. What turns out undetermined after all goes back to its value and the others are fitted again.
    """
    if not cases:
        raise InputError("there is no run to fit on", hint="give runs with measured throughput or memory")
    problem = problem_of(cases, parameters, oom, undetermined)
    measured, start = problem.measured, problem.prior
    values: dict[str, float] = {}
    warm = problem.scanned(parameters)
    uncertainty = problem.uncertainty(parameters, warm)
    kept = [p for p in parameters if uncertainty[p.path] <= undetermined]
    while kept:
        values = problem.fitted(kept, {**warm, **values})
        left = problem.uncertainty(kept, values)
        uncertainty |= left
        if max(left.values()) <= undetermined:
            break
        kept = [p for p in kept if left[p.path] <= undetermined]
        values = {p.path: values[p.path] for p in kept}
    told = [p for p in parameters if uncertainty[p.path] < NO_EVIDENCE]
    apart = problem.confounding(told, values, uncertainty)
    estimates = tuple(
        Estimate(
            parameter=p,
            before=start[p.path],
            after=values.get(p.path, start[p.path]),
            determined=p.path in values,
            uncertainty=uncertainty[p.path],
            marginal=apart.get(p.path, (uncertainty[p.path], None))[0],
            confounded_with=apart.get(p.path, (uncertainty[p.path], None))[1],
        )
        for p in parameters
    )
    before, after = (measured.scores(predicted(cases, v)) for v in ({}, values))
    return StackFit(
        estimates=estimates,
        runs=sum(len(case.runs) for case in cases),
        throughput_before=before[0],
        throughput_after=after[0],
        memory_before=before[1],
        memory_after=after[1],
    )


def problem_of(
    cases: Sequence[SimulatedRun],
    parameters: Sequence[Parameter],
    oom: Sequence[SimulatedRun] = (),
    undetermined: float = UNDETERMINED,
) -> FitProblem:
    """The runs, with priors around the values of the first one's profile."""
    start = {p.path: value_of(cases[0].job.cluster, cases[0].job.profile, p.path) for p in parameters}
    return FitProblem(cases=cases, measured=_Measured.of(cases), prior=start, oom=oom, undetermined=undetermined)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProblem:
    """Errors of the runs and distance from the priors, as functions of some of the parameters."""

    cases: Sequence[SimulatedRun]
    measured: _Measured
    prior: Values
    oom: Sequence[SimulatedRun] = ()
    undetermined: float = UNDETERMINED

    def errors(self, parameters: Sequence[Parameter], values: Values) -> Floats:
        """In standard deviations: of the runs, then of the parameters."""
        away = [p.scaled(p.inside(values[p.path])) - p.scaled(p.inside(self.prior[p.path])) for p in parameters]
        return np.concatenate([self.measured.residuals(predicted(self.cases, values)), free_of(self.oom, values), away])

    def slopes(self, parameters: Sequence[Parameter], x: Floats, *, robust: bool = False) -> Floats:
        """Differences of the errors, a step inwards; or of those whose squares are the loss."""
        at = self.errors(parameters, _values(parameters, x))
        columns = []
        for i, p in enumerate(parameters):
            step = STEP if x[i] + STEP <= p.scaled(p.high) else -STEP
            moved = x + step * np.eye(len(x))[i]
            columns.append((self.errors(parameters, _values(parameters, moved)) - at) / step)
        found = np.column_stack(columns)
        if robust:
            runs = np.abs(at[: len(self.measured.run)]) + TINY
            found[: len(runs)] *= (runs / np.sqrt(1.0 + runs**2) / np.abs(self.robust(runs)))[:, None]
        return found

    def uncertainty(self, parameters: Sequence[Parameter], values: Values) -> dict[str, float]:
        """What is left of each one's, over its prior's; the least determined are fixed one by one, as two that the runs
        cannot tell apart are both vague until one of them is."""
        found: dict[str, float] = {}
        if not parameters:
            return found
        slopes = self.slopes(parameters, _positions(parameters, values))
        free = list(range(len(parameters)))
        while free:
            some = slopes[:, free]
            # the priors are rows of the slopes, so that without evidence it is 1
            left = np.sqrt(np.diag(np.linalg.inv(some.T @ some)))
            found |= {parameters[i].path: float(u) for i, u in zip(free, left, strict=True)}
            if left.max() <= self.undetermined:
                break
            free.pop(int(np.argmax(left)))
        return found

    def left_out_values(self, parameters: Sequence[Parameter], values: Values) -> list[dict[str, float]]:
        """Of each run, the values that are fitted without it.

        Formula: x <- x - (J^T W J)^-1 J^T W (r + J (x - x_0)), from the fit to all runs, x_0, with its errors r
        Where: J are the slopes, the priors being rows of them; W is what the loss makes of a run, and 0 for this one
        Source: iteratively reweighted least squares (Holland and Welsch 1977)
        Valid: near x_0, where errors are straight lines. Which parameters are fitted is taken as known: slopes decide
            that, not what was measured.
        """
        at, start = self.errors(parameters, values), _positions(parameters, values)
        slopes = self.slopes(parameters, start)
        low, high = _bounds(parameters)
        is_run = np.arange(len(at)) < len(self.measured.run)
        found = []
        for left in range(len(self.measured.rate)):
            x = start
            for _ in range(STEPS):
                lines = at + slopes @ (x - start)
                weight = np.where(is_run, 1.0 / np.sqrt(1.0 + lines**2), 1.0)
                weight[: len(self.measured.run)][self.measured.run == left] = 0.0
                weighed = slopes * weight[:, None]
                x = np.clip(x - np.linalg.solve(slopes.T @ weighed, weighed.T @ lines), low, high)
            found.append(_values(parameters, x))
        return found

    def confounding(
        self, parameters: Sequence[Parameter], values: Values, uncertainty: Values
    ) -> dict[str, tuple[float, str | None]]:
        """What is left of each one's uncertainty with all of them free, and the one that it cannot be told from.

        Formula: covariance = (slopes^T slopes)^-1, the priors being rows of the slopes; the partner is the parameter
            with the largest correlation.
        Where: of a parameter that was fitted, what is left grows ``CONFOUNDED``-fold over what was left with the others
            at their value; of another, the runs would determine it if all others were known.
        Valid: near the values, where errors are straight lines.
        """
        if not parameters:
            return {}
        x = _positions(parameters, {p.path: values.get(p.path, self.prior[p.path]) for p in parameters})
        slopes = self.slopes(parameters, x)
        evidence = slopes.T @ slopes
        covariance = np.linalg.inv(evidence)
        marginal = np.sqrt(np.diag(covariance))
        alone = 1.0 / np.sqrt(np.diag(evidence))
        correlation = np.abs(covariance / np.outer(marginal, marginal))
        np.fill_diagonal(correlation, 0.0)
        found: dict[str, tuple[float, str | None]] = {}
        for i, p in enumerate(parameters):
            if p.path in values:
                vague = marginal[i] > CONFOUNDED * uncertainty[p.path]
            else:
                vague = alone[i] <= self.undetermined < marginal[i]
            partner = parameters[int(np.argmax(correlation[i]))].path if vague else None
            found[p.path] = float(max(marginal[i], uncertainty[p.path])), partner
        return found

    def scanned(self, parameters: Sequence[Parameter]) -> dict[str, float]:
        """The values that are there, floors at the best of a few."""
        values = {p.path: p.inside(self.prior[p.path]) for p in parameters}
        best = self.loss(self.errors(parameters, values)), values
        for p in (p for p in parameters if p.is_floor):
            floors = np.geomspace(p.high, p.low, SCANNED).tolist()
            lowest = self.errors([], {**values, p.path: p.low})
            for floor in floors:
                tried = {**values, p.path: floor}
                errors = self.errors(parameters, tried)
                if np.array_equal(errors[: len(lowest)], lowest):
                    break  # under something else in every run, and so are those below
                best = min(best, (self.loss(errors), tried), key=lambda t: t[0])
            values = best[1]
        return values

    def loss(self, errors: Floats) -> float:
        """What is fitted: linear in large errors of runs, square in distances from the priors."""
        return float(np.sum(self.robust(errors) ** 2))

    def robust(self, errors: Floats) -> Floats:
        """Errors whose squares are the loss, so that a run that went wrong decides little; a prior is no run."""
        runs = len(self.measured.run)
        some = np.sqrt(2.0 * (np.sqrt(1.0 + errors[:runs] ** 2) - 1.0))
        return np.concatenate([np.copysign(some, errors[:runs]), errors[runs:]])

    def fitted(self, parameters: Sequence[Parameter], start: Values) -> dict[str, float]:
        """Least squares, robust against single runs that went wrong."""
        need_scipy()
        from scipy.optimize import least_squares

        low, high = _bounds(parameters)
        # the first step's length is that of the start: counted from zero, a start near it would never move
        zero = low - 1.0
        found = least_squares(
            lambda x: self.robust(self.errors(parameters, _values(parameters, x + zero))),
            np.clip(_positions(parameters, start), low + 1e-9, high - 1e-9) - zero,
            jac=lambda x: self.slopes(parameters, x + zero, robust=True),
            bounds=(low - zero, high - zero),
            xtol=1e-3,
            ftol=ENOUGH,
            max_nfev=STEPS,
        )
        return _values(parameters, found.x + zero)


def free_of(oom: Sequence[SimulatedRun], values: Values) -> Floats:
    """How far below the GPU's memory runs are predicted that were out of it, in standard deviations; 0 where they are
    not."""
    if not oom:
        return np.zeros(0)
    has = np.array([case.job.cluster.gpu.hbm_bytes for case in oom for _ in case.runs])
    free = np.log(has / predicted(oom, values).memory_bytes) / MEMORY_NOISE
    return np.asarray(np.maximum(0.0, np.nan_to_num(free, nan=0.0, posinf=0.0, neginf=0.0)), dtype=np.float64)


def _bounds(parameters: Sequence[Parameter]) -> tuple[Floats, Floats]:
    return np.array([p.scaled(p.low) for p in parameters]), np.array([p.scaled(p.high) for p in parameters])


def _values(parameters: Sequence[Parameter], x: Floats) -> dict[str, float]:
    return {p.path: p.value(float(v)) for p, v in zip(parameters, x, strict=True)}


def _positions(parameters: Sequence[Parameter], values: Values) -> Floats:
    return np.array([p.scaled(p.inside(values[p.path])) for p in parameters])
