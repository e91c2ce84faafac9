"""What a budget limits, and what one candidate makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from knee.base.units import DAY_S, HOUR_S
from knee.commands.budget.throughput import Rate
from knee.engine.energy import J_PER_KWH
from knee.specs.model import Model

Name = Literal["days", "usd", "mwh", "tokens_max", "tokens_per_param"]
J_PER_MWH = 1e3 * J_PER_KWH


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What may be spent; None where there is no limit."""

    gpus: int
    days: float | None = None
    usd: float | None = None
    mwh: float | None = None
    tokens_max: float | None = None

    def scaled(self, factor: float) -> BudgetLimits:
        """All of them times a factor, but for the GPUs and the data."""

        def of(value: float | None) -> float | None:
            return None if value is None else value * factor

        return replace(self, days=of(self.days), usd=of(self.usd), mwh=of(self.mwh))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRun:
    """One candidate, trained on all the tokens that the limits afford."""

    model: Model
    params: int
    counted: float
    """Parameters as the law counts them."""
    rate: Rate
    tokens: float
    loss: float
    binding: Name
    """The limit that ends it."""
    time_s: float
    energy_j: float
    """Of the GPUs and the site around them."""
    cost_usd: float | None
    batch_tokens: float
    critical_batch_tokens: float

    @property
    def gpus(self) -> int:
        """That train it."""
        return self.rate.gpus

    @property
    def step_s(self) -> float:
        """Of one step."""
        return self.batch_tokens / self.rate.tokens_per_s

    @property
    def days(self) -> float:
        """How long it takes."""
        return self.time_s / DAY_S

    @property
    def mwh(self) -> float:
        """As people pay for it."""
        return self.energy_j / J_PER_MWH

    @property
    def tokens_per_param(self) -> float:
        """20 is Chinchilla's."""
        return self.tokens / self.params

    @property
    def gpu_hours(self) -> float:
        """As model cards have it."""
        return self.time_s * self.gpus / HOUR_S
