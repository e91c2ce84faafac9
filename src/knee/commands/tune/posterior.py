"""What is believed of every plan after some runs: a Gaussian of log throughput and one of log memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import erf, exp, log, pi, sqrt
from typing import Literal

import numpy as np

from knee.base.arrays import Floats
from knee.commands.tune.candidates import Candidates
from knee.commands.tune.exposed_comm import SimulatedShares, noise_of
from knee.commands.tune.plan_covariance import Spreads, covariance

End = Literal["ok", "oom", "failed", "lost"]
"""How a run ended. ``failed``: it crashed, and memory may be why. ``lost``: a node or a signal ended it, not the plan.
"""
FITS: dict[End, tuple[float, float]] = {"ok": (0.98, 0.02), "oom": (0.02, 0.98), "failed": (0.2, 1.0)}
"""Probability of the end where the plan fits in memory, and where it does not (assumed)."""
NOISE = 0.01
"""Standard deviation of log throughput and log memory of a run around its plan's, where nothing else is known."""
PRIOR_RUNS = 4.0
"""Runs that the fitted size of errors counts for against what is measured here (assumed)."""
SURPRISE = 2.5
"""Standard deviations by which a run out of memory was expected to fit that say that the prediction is wrong."""
LEVEL = 2.0
"""Standard deviations by which the mean error must be off for all plans to be taken as off alike."""
TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that has ended."""

    plan: int
    """Row of the candidates."""
    end: End
    tokens_per_s_per_gpu: float | None = None
    memory_bytes: float | None = None
    """Of the device, as the simulator counts it."""
    exposed_frac: Mapping[str, float] = field(default_factory=dict)
    """Collective -> exposed share of the step; empty where it has no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Means and covariances over all plans, measured ones too."""

    log_rate: Floats
    rate_covariance: Floats
    log_memory: Floats
    memory_covariance: Floats
    log_hbm: float

    @property
    def fits(self) -> Floats:
        """Probability that each plan fits in memory."""
        spread = np.sqrt(np.maximum(np.diag(self.memory_covariance), TINY))
        return np.array([_normal((self.log_hbm - m) / s) for m, s in zip(self.log_memory, spread, strict=True)])

    def draws(self, count: int, seed: int) -> tuple[Floats, Floats]:
        """Joint draws of tokens/s per GPU, 0 where the plan does not fit in memory, and of log throughput alone."""
        random = np.random.default_rng(seed)
        rate = self.log_rate + random.standard_normal((count, len(self.log_rate))) @ _root(self.rate_covariance).T
        memory = self.log_memory + random.standard_normal(rate.shape) @ _root(self.memory_covariance).T
        return np.where(memory <= self.log_hbm, np.exp(rate), 0.0), rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What runs measured that depends on throughput or on the stack: values, and how they go together."""

    errors: Floats
    """Measured less expected, of each value."""
    among: Floats
    """Covariance of the values, their noise included."""
    with_rates: Floats
    """Covariance of each value with the log throughput of every plan."""
    with_positions: Floats
    """Covariance of each value with the positions of the stack's parameters."""


class Beliefs:
    """The prior of a job's plans; a posterior for any runs that were made.

    ``more``: covariance of log throughput besides that of plans. ``goal``: if runs are smaller than the job, the row
    from which on candidates are the same plans at full size; 0 if a run is the job. ``shares``: exposed communication
    that the simulator expects of a run, by row; without it, traces tell nothing.
    """

    def __init__(
        self,
        candidates: Candidates,
        rate_spreads: Spreads,
        memory_spreads: Spreads,
        *,
        more: Floats | None = None,
        goal: int = 0,
        shares: Callable[[int], SimulatedShares] | None = None,
    ) -> None:
        self.candidates = candidates
        self.goal = goal
        self.shares = shares
        self.stack_spread = rate_spreads["stack"]
        with np.errstate(divide="ignore"):
            self.log_rate = np.log(candidates.tokens_per_s_per_gpu)
            self.log_memory = np.log(candidates.memory_bytes)
        self.rate_covariance = covariance(candidates.mechanisms, candidates.log_rate_draws, rate_spreads)
        if more is not None:
            self.rate_covariance = self.rate_covariance + more
        self.memory_covariance = covariance(candidates.mechanisms, candidates.log_memory_draws, memory_spreads)

    @property
    def runs(self) -> int:
        """Candidates that can be run; their rows come first."""
        return self.goal or len(self.candidates)

    def after(self, outcomes: Sequence[Outcome]) -> Posterior:
        """Condition on what was measured. What is lost says nothing.

        Formula: Gaussian conditioning on log throughput, exposed communication and log memory; the covariance of
            throughput is first scaled by (PRIOR_RUNS + e^T S^-1 e) / (PRIOR_RUNS + n), S the covariance of the n errors
            e of log throughput that were seen, so a stack that is predicted well narrows faster
        Source: a normal-inverse-gamma prior of the scale. A failure changes the memory of its plan by the moments of
            the truncated Gaussian (assumed-density filtering, Minka 2001), and that of others with it
        """
        told = [o for o in outcomes if o.end != "lost"]
        log_rate, rate_covariance = self.log_rate, self.rate_covariance
        if any(o.tokens_per_s_per_gpu is not None for o in told):
            rate_covariance, factor = self._scaled(told)
            seen = self._observations(told, rate_covariance, factor)
            weights = np.linalg.solve(seen.among, seen.with_rates)
            log_rate = log_rate + weights.T @ seen.errors
            rate_covariance = rate_covariance - seen.with_rates.T @ weights
        read = [(o.plan, log(o.memory_bytes)) for o in told if o.memory_bytes is not None]
        log_memory, memory_covariance = _conditioned(self.log_memory, self.memory_covariance, read)
        log_hbm = log(self.candidates.hbm_bytes)
        known = {plan for plan, _ in read}
        for o in told:
            if o.plan not in known:
                log_memory, memory_covariance = _ended(log_memory, memory_covariance, o, log_hbm)
        return Posterior(
            log_rate=log_rate,
            rate_covariance=rate_covariance,
            log_memory=log_memory,
            memory_covariance=memory_covariance,
            log_hbm=log_hbm,
        )

    def stack_positions(self, outcomes: Sequence[Outcome]) -> Floats:
        """How far the stack's parameters are from their values by what was measured, in spreads.

        Formula: C S^-1 e, C the covariance of parameters and values over the draws, S that of the values
        Source: the ensemble Kalman filter's update of parameters (Evensen 2003)
        """
        c = self.candidates
        if not len(c.positions) or all(o.tokens_per_s_per_gpu is None for o in outcomes):
            return np.zeros(len(c.parameters))
        seen = self._observations(outcomes, *self._scaled(outcomes))
        return np.asarray(seen.with_positions.T @ np.linalg.solve(seen.among, seen.errors), dtype=np.float64)

    def _observations(self, outcomes: Sequence[Outcome], spread: Floats, factor: float) -> Observations:
        """Log throughputs first, then exposed shares, which go with throughput by the draws of the stack alone."""
        at, errors = self._rate_errors(outcomes)
        draws, share_errors, noise = self._exposed(outcomes)
        c, n = self.candidates, len(at)
        stack = factor * self.stack_spread**2
        positions = c.positions if len(c.positions) else np.zeros((len(c.log_rate_draws), 0))
        rates_with_shares = stack * _covariance(c.log_rate_draws, draws)
        among = np.zeros((n + len(noise), n + len(noise)))
        among[:n, :n] = spread[np.ix_(at, at)] + NOISE**2 * np.eye(n)
        among[:n, n:] = rates_with_shares[at]
        among[n:, :n] = rates_with_shares[at].T
        among[n:, n:] = stack * _covariance(draws, draws) + np.diag(noise**2)
        return Observations(
            errors=np.concatenate([errors, share_errors]),
            among=among,
            with_rates=np.concatenate([spread[at], rates_with_shares.T]),
            with_positions=self.stack_spread**2
            * np.concatenate([_covariance(c.log_rate_draws[:, at], positions), _covariance(draws, positions)]),
        )

    def _rate_errors(self, outcomes: Sequence[Outcome]) -> tuple[list[int], Floats]:
        """Rows and errors of log throughput."""
        seen = [(o.plan, log(o.tokens_per_s_per_gpu)) for o in outcomes if o.tokens_per_s_per_gpu is not None]
        at = [plan for plan, _ in seen]
        return at, np.array([value for _, value in seen]) - self.log_rate[at]

    def _exposed(self, outcomes: Sequence[Outcome]) -> tuple[Floats, Floats, Floats]:
        """Of every exposed share that was traced and is simulated: its draws, its error and its noise."""
        draws, errors, noise = [np.zeros((len(self.candidates.log_rate_draws), 0))], [np.zeros(0)], [np.zeros(0)]
        for o in outcomes if self.shares is not None else ():
            if not o.exposed_frac or self.shares is None:
                continue
            expected = self.shares(o.plan)
            columns = [at for at, name in enumerate(expected.names) if name in o.exposed_frac]
            measured = np.array([o.exposed_frac[expected.names[at]] for at in columns])
            simulated = expected.shares[columns]
            draws.append(expected.draws[:, columns])
            errors.append(measured - simulated)
            noise.append(noise_of(measured, simulated))
        return np.concatenate(draws, axis=1), np.concatenate(errors), np.concatenate(noise)

    def _scaled(self, outcomes: Sequence[Outcome]) -> tuple[Floats, float]:
        """The prior's covariance with the level and the size of errors that were seen, and the factor of that size."""
        at, errors = self._rate_errors(outcomes)
        spread = self.rate_covariance
        level = float(np.mean(errors)) ** 2
        if level > LEVEL**2 * float(np.mean(np.diag(spread)[at])):
            # all plans are off alike, as on hardware that nobody has described: that says nothing of their order
            spread = spread + level
        among = spread[np.ix_(at, at)] + NOISE**2 * np.eye(len(at))
        size = float(errors @ np.linalg.solve(among, errors))
        factor = (PRIOR_RUNS + size) / (PRIOR_RUNS + len(at))
        return np.asarray(spread * factor, dtype=np.float64), factor


def _covariance(one: Floats, other: Floats) -> Floats:
    """Between columns, over draws."""
    return np.asarray((one - one.mean(axis=0)).T @ (other - other.mean(axis=0)) / max(1, len(one) - 1))


def _conditioned(mean: Floats, spread: Floats, seen: Sequence[tuple[int, float]]) -> tuple[Floats, Floats]:
    """Gaussian conditioning; a plan that was measured twice has two values."""
    if not seen:
        return mean, spread
    at = [plan for plan, _ in seen]
    errors = np.array([value for _, value in seen]) - mean[at]
    weights = np.linalg.solve(spread[np.ix_(at, at)] + NOISE**2 * np.eye(len(at)), spread[at])
    return mean + weights.T @ errors, spread - spread[:, at] @ weights


def _ended(mean: Floats, spread: Floats, outcome: Outcome, log_hbm: float) -> tuple[Floats, Floats]:
    """What the end of a run says of memory.

    Formula: m' = m + s p (b - a) / Z, v' = s^2 (1 + z p (b - a) / Z) - (m' - m)^2 of the plan itself; others follow by
        their covariance with it
    Where: z = (log hbm - m) / s, p the normal density at z, a and b the probabilities of this end where the plan fits
        and where it does not, Z = a P(fits) + b (1 - P(fits))
    """
    at = outcome.plan
    variance = max(float(spread[at, at]), TINY)
    s = sqrt(variance)
    z = (log_hbm - float(mean[at])) / s
    a, b = FITS[outcome.end]
    if outcome.end == "oom" and z > SURPRISE:
        # so unexpected that the moments would say nothing: it needs at least what there is
        return _conditioned(mean, spread, [(at, log_hbm)])
    density, fits = exp(-z * z / 2) / sqrt(2 * pi), _normal(z)
    total = a * fits + b * (1.0 - fits)
    step = s * density * (b - a) / total
    left = max(variance * (1.0 + z * density * (b - a) / total) - step**2, TINY)
    reach = spread[:, at] / variance
    return mean + reach * step, spread - np.outer(reach, reach) * (variance - left)


def _normal(z: float) -> float:
    return 0.5 * (1.0 + erf(z / sqrt(2.0)))


def _root(spread: Floats) -> Floats:
    """A square root that rounding cannot break."""
    values, vectors = np.linalg.eigh((spread + spread.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)), dtype=np.float64)
