"""Routing -> tokens of the experts on the slowest rank of an expert-parallel group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import SpecError
from knee.specs.constants import constant

BALANCED, DROPLESS, POWER_LAW = "balanced", "dropless", "power_law"
SIZES = 32
"""Groups of equally loaded experts that stand for the experts of one rank."""
_DRAWS = 128
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoads:
    """Tokens of the experts of one rank: rows are plans, columns are groups of experts with the same load."""

    tokens: Floats
    """Tokens of one expert of the group."""
    experts: Floats
    """Experts in the group; the empty groups have 0."""
    mean_tokens: Floats
    """Tokens of one expert if all experts of all ranks had the same number; one value per plan."""

    @classmethod
    def balanced(cls, tokens: Floats, experts: Floats) -> RankLoads:
        """Experts that have equally many tokens."""
        return cls(tokens=tokens[:, None], experts=experts[:, None], mean_tokens=tokens)

    @property
    def rows(self) -> Floats:
        """Token-expert pairs of the rank."""
        return np.asarray((self.tokens * self.experts).sum(axis=-1))

    @property
    def active(self) -> Floats:
        """Experts that have a token, and whose weights are read."""
        return np.asarray((np.minimum(self.tokens, 1.0) * self.experts).sum(axis=-1))

    @property
    def imbalance(self) -> Floats:
        """Tokens of this rank divided by the mean over all ranks."""
        return np.asarray(self.rows / (self.mean_tokens * self.experts.sum(axis=-1)))

    def tiles(self, rows: float) -> Floats:
        """Tiles of so many rows that the experts need: no tile has rows of two experts."""
        return np.asarray((np.ceil(self.tokens / rows) * self.experts).sum(axis=-1))

    def even(self) -> RankLoads:
        """The same number of experts with balanced routing."""
        return RankLoads(
            tokens=self.mean_tokens[:, None],
            experts=self.experts.sum(axis=-1, keepdims=True),
            mean_tokens=self.mean_tokens,
        )


def rank_loads(routing: str, tokens: Floats, top_k: Floats, experts: Floats, ep: Floats) -> RankLoads:
    """Loads of the slowest of ``ep`` ranks, the routing being balanced, dropless, dropless:v or power_law:a.

    Formula: tokens of expert e = min(tokens, tokens * top_k * w_e / sum(w)), on the rank with the largest sum
    Where:   tokens are those of the whole group (tokens per rank times ep); w = 1 (balanced), log-normal with the
             coefficient of variation v (dropless: that of real routing), or P(w) ~ w^-a on [1, 0.8 tokens] (power_law);
             what an expert cannot take goes to the others;
             mean over 128 draws of each expert's place in the order of loads
    Source:  power law as in ai-dynamo/aiconfigurator collector/helper.py, whose tables it prices; dropless from
             Qwen3-235B with forced balance and with real routing (tools/fit_moe.py)
    Valid:   ep divides experts; the variation of real routing comes from one model at ep 8
    """
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.float64) for column in (tokens, top_k, experts, ep)))
    table = np.stack([column.ravel() for column in columns], axis=1)
    mean = table[:, 0] * table[:, 1] / table[:, 2]
    if routing == BALANCED:
        local = (table[:, 2] / table[:, 3])[:, None]
        return RankLoads(tokens=mean[:, None], experts=local, mean_tokens=mean)
    settings, where = np.unique(table, axis=0, return_inverse=True)
    groups = [_drawn(routing, *row) for row in settings.tolist()]
    return RankLoads(
        tokens=np.stack([group[0] for group in groups])[where.ravel()],
        experts=np.stack([group[1] for group in groups])[where.ravel()],
        mean_tokens=mean,
    )


@lru_cache(maxsize=4096)
def _drawn(routing: str, tokens: float, top_k: float, experts: float, ep: float) -> tuple[Floats, Floats]:
    """Loads and counts of the slowest rank's groups of experts."""
    weights = _weights(routing, tokens, int(experts))
    ranks = _shared(weights, tokens, top_k).reshape(_DRAWS, int(ep), -1)
    slowest = ranks[np.arange(_DRAWS), ranks.sum(axis=2).argmax(axis=1)]
    ordered = np.sort(slowest, axis=1).mean(axis=0)
    sizes, counts = np.zeros(SIZES), np.zeros(SIZES)
    for index, part in enumerate(np.array_split(ordered, min(SIZES, len(ordered)))):
        sizes[index], counts[index] = part.mean(), len(part)
    return sizes, counts


def _shared(weights: Floats, tokens: float, top_k: float) -> Floats:
    """Loads in proportion to weights; a token goes to an expert once, and the excess to the other experts."""
    loads = np.zeros_like(weights)
    for _ in range(4):
        room = np.where(loads < tokens, weights, 0.0)
        missing = tokens * top_k - loads.sum(axis=1, keepdims=True)
        share = room / np.maximum(room.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        loads = np.minimum(loads + np.maximum(missing, 0.0) * share, tokens)
    return loads


def _weights(routing: str, tokens: float, experts: int) -> Floats:
    random = np.random.default_rng(_SEED)
    name, parameter = routing_parameter(routing)
    if name == DROPLESS:
        sigma = np.sqrt(np.log1p(parameter**2))
        return np.asarray(np.exp(sigma * random.standard_normal((_DRAWS, experts))))
    power = 1.0 - parameter
    most = max(0.8 * tokens, 1.0) ** power
    return np.asarray(((most - 1.0) * random.random((_DRAWS, experts)) + 1.0) ** (1.0 / power))


def routing_parameter(routing: str) -> tuple[str, float]:
    """The name of a routing, and its variation (``dropless:1.5``) or exponent (``power_law:1.2``)."""
    name, colon, text = routing.partition(":")
    if routing == BALANCED:
        return BALANCED, 0.0
    if routing == DROPLESS:
        return DROPLESS, constant("experts", "dropless_variation")
    try:
        parameter = float(text) if name in (DROPLESS, POWER_LAW) and colon else 0.0
    except ValueError:
        parameter = 0.0
    if not 0.0 < parameter < np.inf or (name == POWER_LAW and parameter == 1.0):
        raise SpecError(
            f"routing {routing!r} is not known",
            hint="use balanced, dropless, dropless:V with a variation V of the experts' loads, or power_law:A with an "
            "exponent A that is not 1, such as power_law:1.2",
            code="unknown-choice",
            field="routing",
        )
    return name, parameter
