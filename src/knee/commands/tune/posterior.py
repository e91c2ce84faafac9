"""What is believed of every plan after some runs: a Gaussian of log throughput and one of log memory.

The prior is the simulator under draws of its fitted parameters, with errors that plans share by mechanism; a run
informs it by its throughput, its memory and, with a trace, its exposed communication by collective.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from math import erf, exp, log, pi, sqrt
from typing import Any, Literal

import numpy as np

from knee.base.arrays import Floats, Ints, extreme_values
from knee.engine.events import COLLECTIVES, Events, covered, merge
from knee.engine.one_job import events_of
from knee.engine.simulator import simulate_table, simulate_variants
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter, applied, value_of
from knee.trust.profile_fit.stack_fit import stack_priors

# How errors of predictions go together: plans that share a mechanism err alike, so one run tells about all of them.

Quantity = Literal["throughput", "memory"]
SPREADS = files("knee") / "catalog" / "validation" / "tuning.toml"
TERMS = (
    "stack",  # the fitted parameters of the software stack: covariance of draws, and this is a factor of their spread
    "job",  # all plans of the job alike
    "tp",
    "pp",
    "micro_batch",
    "recompute",
    "sharding",
    "sequence_parallel",
    "tp_with_pp",
    "layout",  # only plans that are alike in everything
    "run",  # this plan alone, and the noise between two runs of it
)
DOUBLINGS = 2.0
"""Doublings of a degree over which a correlation falls to 1/e (assumed)."""
OTHER_SCHEDULE, OTHER_RECOMPUTE, OTHER_SHARDING = 0.7, 0.3, 0.5
"""Correlation left between plans that differ in it (assumed)."""

Spreads = Mapping[str, float]
"""Term -> standard deviation of the logarithm; of ``stack``, over that of the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What plans share or not, as columns."""

    tp: Floats
    """Doublings of what splits a layer: tensor, context and expert parallelism together."""
    pp: Floats
    micro_batch: Floats
    schedule: Ints
    recompute: Ints
    sharding: Ints
    sequence_parallel: Ints

    @classmethod
    def of(cls, table: PlanTable) -> Mechanisms:
        """Of every plan of a table."""
        return cls(
            tp=np.column_stack([np.log2(table.tp), np.log2(table.cp), np.log2(table.ep)]),
            pp=np.log2(table.pp)[:, None],
            micro_batch=np.log2(table.micro_batch)[:, None],
            schedule=table.schedule * 1000 + table.virtual_stages,
            recompute=_codes(table.recompute, np.round(table.recompute_frac, 2), table.recompute_modules),
            sharding=table.sharding,
            sequence_parallel=(table.sequence_parallel & (table.tp > 1)).astype(np.int64),
        )


def covariance(mechanisms: Mechanisms, log_draws: Floats, spreads: Spreads) -> Floats:
    """Covariance of the errors of log predictions between plans.

    Formula: sum over terms of spread^2 k; k = exp(-|doublings apart| / DOUBLINGS) of degrees, 1 or less of choices
    Where: ``stack`` has the covariance of predictions under draws of the fitted parameters; ``run`` is diagonal
    Source: spreads are fitted to the errors of published runs (tools/fit_tuning.py), the source that is predicted left
        out
    """
    parts = kernels(mechanisms, log_draws)
    total: Floats = np.zeros_like(parts["job"])
    for term in TERMS:
        total += spreads[term] ** 2 * parts[term]
    return total


def kernels(m: Mechanisms, log_draws: Floats) -> dict[str, Floats]:
    """Of each term, the correlation between any two plans."""
    around = log_draws - log_draws.mean(axis=0)
    plans = log_draws.shape[1]
    tp, pp, micro_batch = _near(m.tp), _near(m.pp), _near(m.micro_batch)
    pp = pp * np.where(_same(m.schedule), 1.0, OTHER_SCHEDULE)
    recompute, sharding = _same(m.recompute), _same(m.sharding)
    alike = np.where(recompute, 1.0, OTHER_RECOMPUTE) * np.where(sharding, 1.0, OTHER_SHARDING)
    return {
        "stack": around.T @ around / max(1, len(log_draws) - 1),
        "job": np.ones((plans, plans)),
        "tp": tp,
        "pp": pp,
        "micro_batch": micro_batch,
        "recompute": recompute.astype(np.float64),
        "sharding": sharding.astype(np.float64),
        "sequence_parallel": _same(m.sequence_parallel).astype(np.float64),
        "tp_with_pp": tp * pp,
        "layout": tp * pp * micro_batch * alike,
        "run": np.eye(plans),
    }


def carried_spreads(quantity: Quantity, *, without: str | None = None) -> Spreads:
    """Those of the catalogue; ``without``: as fitted without a source, where it was one of those fitted on."""
    tables = _tables()
    left_out = tables["left_out"].get(without, {}) if without is not None else {}
    table = left_out.get(quantity, tables[quantity])
    return {term: float(value["value"] if isinstance(value, dict) else value) for term, value in table.items()}


def carried_transfer() -> dict[str, float]:
    """Standard deviation of the logarithm that each doubling of ``gpus`` or ``layers`` adds to a transfer."""
    return {what: float(value["value"]) for what, value in _tables()["transfer"].items()}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(SPREADS.read_text(encoding="utf-8"))


def _near(degrees: Floats) -> Floats:
    apart = np.abs(degrees[:, None, :] - degrees[None, :, :]).sum(axis=-1)
    return np.asarray(np.exp(-apart / DOUBLINGS), dtype=np.float64)


def _same(codes: Ints) -> Any:
    return codes[:, None] == codes[None, :]


def _codes(*columns: Any) -> Ints:
    _, code = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    return np.asarray(code, dtype=np.int64).ravel()


# Plans that may be run, as the simulator sees them: predictions, and what they are under draws of what is fitted.

DRAWS = 64
START_S = 60.0
"""Assumed of every run: processes, imports, weights, and the meeting of ranks, as a sweep assumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """One row a plan."""

    mechanisms: Mechanisms
    tokens_per_s_per_gpu: Floats
    memory_bytes: Floats
    log_rate_draws: Floats
    """A row for each draw of the stack's parameters."""
    log_memory_draws: Floats
    hbm_bytes: float
    gpu_h: Floats
    """Of a short run that completes."""
    parameters: tuple[Parameter, ...] = ()
    """Of the stack, whose draws these are."""
    positions: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Of each draw, how far each parameter is from its value, in spreads."""

    def __len__(self) -> int:
        return len(self.tokens_per_s_per_gpu)

    def rows(self, index: Ints) -> Candidates:
        """Some of the plans."""
        m = Mechanisms(**{f.name: getattr(self.mechanisms, f.name)[index] for f in fields(Mechanisms)})
        return replace(self, mechanisms=m, **{name: getattr(self, name)[..., index] for name in OVER_PLANS})

    def followed_by(self, full: Candidates) -> Candidates:
        """The plans as they are run, and after them the same plans at full size."""
        # a plan with fewer replicas or layers is the same plan: its mechanisms are those at full size
        m = Mechanisms(**{f.name: np.concatenate([getattr(full.mechanisms, f.name)] * 2) for f in fields(Mechanisms)})
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(full, name)], axis=-1) for name in OVER_PLANS
        }
        return replace(full, mechanisms=m, **both)


OVER_PLANS = ("tokens_per_s_per_gpu", "memory_bytes", "log_rate_draws", "log_memory_draws", "gpu_h")
"""Columns of candidates, whose last axis are the plans."""


def candidates_of(
    model: Model,
    cluster: Cluster,
    profile: Profile,
    table: PlanTable,
    *,
    steps: int,
    without: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Candidates:
    """Simulate the plans of a table as they are, and under draws of the stack's parameters.

    ``without``: a source of published runs from whose runs the spread between stacks is not taken.
    """
    free = [p for p in stack_priors(PARAMETERS, profile, without=without) if value_of(cluster, profile, p.path) > 0]
    random = np.random.default_rng(seed)
    positions = random.standard_normal((draws, len(free)))
    variants = [applied(cluster, profile, moved(cluster, profile, free, one)) for one in positions]
    with extreme_values():
        now = simulate_table(model, cluster, profile, table)
        drawn = simulate_variants(model, variants, table)
    seconds = START_S + steps * now.step_s
    return Candidates(
        mechanisms=Mechanisms.of(table),
        tokens_per_s_per_gpu=now.tokens_per_s_per_gpu,
        memory_bytes=now.memory_bytes,
        log_rate_draws=_logs(drawn.tokens_per_s_per_gpu, now.tokens_per_s_per_gpu, draws),
        log_memory_draws=_logs(drawn.memory_bytes, now.memory_bytes, draws),
        hbm_bytes=cluster.gpu.hbm_bytes,
        gpu_h=np.asarray(table.gpus * seconds / 3600.0, dtype=np.float64),
        parameters=tuple(free),
        positions=positions,
    )


def moved(
    cluster: Cluster, profile: Profile, parameters: Sequence[Parameter], positions: Sequence[float] | Floats
) -> dict[str, float]:
    """Values of the parameters so many spreads from what they are."""
    found = {}
    for p, position in zip(parameters, positions, strict=True):
        step = float(position) * p.spread
        value = p.inside(value_of(cluster, profile, p.path))
        found[p.path] = p.inside(value + step if p.is_share else exp(log(value) + step))
    return found


def _logs(values: Floats, instead: Floats, draws: int) -> Floats:
    """Of each draw; a draw that leaves a plan without a finite answer says nothing of it."""
    with extreme_values():
        found = np.log(values.reshape(draws, len(instead)))
        return np.where(np.isfinite(found), found, np.log(instead))


# Exposed communication by collective, from the trace of a run: what it tells about the stack besides throughput.

Shares = Mapping[str, float]
"""Collective -> share of the step in which it ran beside no compute. Groups are not told apart: a trace names those
that span all ranks by any of their axes, and some not at all."""
READ = tuple(name for name in COLLECTIVES if name != "send_recv")
"""Collectives that are compared; transfers of a pipeline wait for other stages, and that is a bubble."""
NOISE_FRAC, LEAST_NOISE = 0.5, 0.01
"""Standard deviation of a share around the simulated one of the same stack: this part of the larger of the two, and at
least this share of the step (assumed: calls in a trace include waiting for peers)."""
STEP = 0.5
"""Spreads by which a parameter is moved to find what it changes."""
MOST_PASSES = 1_024
"""Microbatches times layers of a step whose kernels are simulated one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedShares:
    """Exposed shares of one plan, and under the draws of the stack's parameters."""

    names: tuple[str, ...]
    shares: Floats
    draws: Floats
    """A row for each draw."""


def measured_shares(record: Mapping[str, Any]) -> dict[str, float]:
    """Of the record of a run; empty where it has no trace."""
    step = record.get("traced_step_s")
    loads = record.get("comm_loads")
    if not isinstance(step, (int, float)) or not step > 0 or not isinstance(loads, list):
        return {}
    found: dict[str, float] = {}
    for load in loads:
        exposed_s = load.get("exposed_s") if isinstance(load, dict) else None
        if isinstance(exposed_s, (int, float)) and load.get("collective") in READ:
            found[load["collective"]] = found.get(load["collective"], 0.0) + exposed_s / step
    return found


def simulated_shares(job: Job, candidates: Candidates) -> SimulatedShares:
    """What the simulator expects of a job, linear in the parameters of the stack.

    Formula: x(z) = x(0) + z dx/dz, the slopes by a difference of STEP
    Where: z are the positions of the parameters of the candidates' draws, in spreads
    """
    if job.microbatches * job.model.layers > MOST_PASSES:
        return SimulatedShares(names=(), shares=np.zeros(0), draws=np.zeros((len(candidates.positions), 0)))
    parameters = candidates.parameters
    now = _shares(job)
    names = tuple(sorted(now))
    slopes = np.zeros((len(parameters), len(names)))
    for at in range(len(parameters)):
        there = _shares(_moved(job, parameters, at))
        slopes[at] = [(there.get(name, 0.0) - now[name]) / STEP for name in names]
    shares = np.array([now[name] for name in names])
    return SimulatedShares(names=names, shares=shares, draws=shares + candidates.positions @ slopes)


def _moved(job: Job, parameters: Sequence[Parameter], at: int) -> Job:
    positions = np.zeros(len(parameters))
    positions[at] = STEP
    cluster, profile = applied(job.cluster, job.profile, moved(job.cluster, job.profile, parameters, positions))
    return replace(job, cluster=cluster, profile=profile)


def _shares(job: Job) -> dict[str, float]:
    """Mean over the stages of the pipeline."""
    with extreme_values():
        stages = [_of_stage(events) for events in events_of(job)]
    names = {name for stage in stages for name in stage}
    return {name: sum(stage.get(name, 0.0) for stage in stages) / len(stages) for name in names}


def _of_stage(events: Events) -> dict[str, float]:
    rows = np.flatnonzero(events.is_comm)
    start, end, compute = events.start_s, events.end_s, ~events.is_comm
    merged = merge(start[compute], end[compute])
    exposed = end[rows] - start[rows] - (covered(end[rows], *merged) - covered(start[rows], *merged))
    kinds = events.collective[rows]
    found = {name: float(exposed[kinds == COLLECTIVES.index(name)].sum()) / events.step_s for name in READ}
    return {name: share for name, share in found.items() if share > 0}


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
            noise.append(np.maximum(NOISE_FRAC * np.maximum(measured, simulated), LEAST_NOISE))
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
