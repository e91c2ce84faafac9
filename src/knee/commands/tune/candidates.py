"""Plans that may be run, as the simulator sees them: predictions, and what they are under draws of what is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from knee.base.arrays import Floats, Ints, extreme_values
from knee.commands.tune.plan_covariance import Mechanisms
from knee.engine.simulator import simulate_table, simulate_variants
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter, applied, value_of
from knee.trust.profile_fit.stack_spread import stack_priors

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
        m = self.mechanisms
        return Candidates(
            mechanisms=Mechanisms(**{name: getattr(m, name)[index] for name in Mechanisms.__dataclass_fields__}),
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu[index],
            memory_bytes=self.memory_bytes[index],
            log_rate_draws=self.log_rate_draws[:, index],
            log_memory_draws=self.log_memory_draws[:, index],
            hbm_bytes=self.hbm_bytes,
            gpu_h=self.gpu_h[index],
            parameters=self.parameters,
            positions=self.positions,
        )


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
