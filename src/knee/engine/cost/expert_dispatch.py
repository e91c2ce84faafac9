"""Communication of experts: tokens of the slowest rank by routing, their way to experts and back, and the experts' own
weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from knee.base.arrays import Floats, distinct, equal_rows
from knee.base.errors import SpecError
from knee.engine.cost.collective_cost import Links, all_reduce_s, gather_s
from knee.engine.cost.placement import GroupPlacement, skew_wait_s
from knee.engine.workload.projections import BYTES
from knee.engine.workload.traffic import PARAMETER_BYTES, Modes, Traffic
from knee.specs.constants import constant
from knee.specs.model import Experts, Model
from knee.specs.plan import DISPATCHERS, PRECISIONS, ROUTINGS, Dispatcher
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

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
        experts = self.experts.sum(axis=-1, keepdims=True)
        return RankLoads(tokens=self.mean_tokens[:, None], experts=experts, mean_tokens=self.mean_tokens)


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
        text = f"routing {routing!r} is not known"
        hint = "use balanced, dropless, dropless:V with a variation V of the experts' loads, or power_law:A with an "
        hint += "exponent A that is not 1, such as power_law:1.2"
        raise SpecError(text, hint=hint, code="unknown-choice", field="routing")
    return name, parameter


Direction = Literal["dispatch", "combine"]
WIRE_RATES = ("base_s", "link_ratio", "nic_ratio")
SM_RATES: dict[Direction, tuple[str, ...]] = {
    "dispatch": ("token_s", "copy_s", "copy_bytes_per_s", "domain_bytes_per_s"),
    "combine": ("token_s", "copy_bytes_per_s", "sum_bytes_per_s", "domain_bytes_per_s"),
}
"""Constants of DeepEP's kernels; the others of ``ExchangeRates`` were found to be zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the ranks of an expert-parallel group send each other; columns over plans."""

    tokens: Floats
    """Tokens of one rank."""
    hidden: Floats
    """Elements of one token."""
    top_k: Floats
    """Experts of one token."""
    experts: Floats
    """Experts of the layer."""
    ranks: Floats
    """Ranks of the group (ep)."""
    per_domain: Floats
    """Ranks of the group in one NVLink domain."""
    groups: Floats | float = 1.0
    """Groups of experts, if a token's experts are limited to a few groups."""
    chosen_groups: Floats | float = 1.0
    """Groups that one token may choose."""
    imbalance: Floats | float = 1.0
    """Tokens of the slowest rank divided by the mean of all ranks."""

    @property
    def domains(self) -> Floats:
        """NVLink domains of the group."""
        return np.asarray(np.ceil(self.ranks / self.per_domain - 1e-9))

    def reached(self, parts: Floats) -> Floats:
        """Parts of the group (ranks, or domains) that have at least one expert of a token, in the mean.

        Formula: parts * (1 - P(no expert in a part)); without groups P = C(E - E/parts, top_k) / C(E, top_k)
        Where:   with groups a token first chooses ``chosen_groups`` of ``groups`` at random, then its experts among
                 them; a part holds whole groups, or lies in one group
        Valid:   routing that chooses all experts, or groups, equally often
        """
        sizes = (parts, self.experts, self.top_k, self.groups, self.chosen_groups)
        # plans differ in few of these, and each costs a hundred NumPy calls
        columns = np.broadcast_arrays(*sizes)
        first, kind = equal_rows(*columns)
        experts, top_k = columns[1][first], columns[2][first]
        few = replace(self, experts=experts, top_k=top_k, groups=columns[3][first], chosen_groups=columns[4][first])
        part = columns[0][first]
        return np.asarray(part * (1.0 - few._missed(few.experts / part)))[kind]

    def _missed(self, size: Floats) -> Floats:
        """Chance that none of a token's experts is among ``size`` experts that lie side by side."""
        per_group = self.experts / self.groups
        pool = self.chosen_groups * per_group
        whole = np.maximum(np.round(size / per_group), 1.0)
        inside = np.minimum(size, per_group)
        missed = np.zeros(np.broadcast(size, pool).shape)
        for hit in range(int(np.max(self.chosen_groups)) + 1):
            chance = _hypergeometric(self.groups, whole, self.chosen_groups, hit)
            missed = missed + chance * _ratio(pool - hit * inside, pool, self.top_k)
        return missed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRates:
    """What one dispatcher reaches in one direction."""

    base_s: float
    """Latency of the operation inside one NVLink domain."""
    link_ratio: float
    """Rate over NVLink, divided by the rate of the cluster's collectives."""
    nic_ratio: float
    """Rate over the network, divided by the rate of the cluster's collectives."""
    token_s: float = 0.0
    """Time of one SM per token, whatever its size."""
    copy_s: float = 0.0
    """Time of one SM per copy of a token, whatever its size."""
    copy_bytes_per_s: float = np.inf
    """Rate of one SM for the bytes of copies: one per rank that a token reaches."""
    sum_bytes_per_s: float = np.inf
    """Rate of one SM for the token itself: read once, or summed and written once."""
    domain_bytes_per_s: float = np.inf
    """Rate of one SM for the copies between domains, if there are several."""

    @classmethod
    def of(cls, dispatcher: Dispatcher, direction: Direction) -> ExchangeRates:
        """The constants of one dispatcher and direction, from the catalogue."""
        names = WIRE_RATES + (SM_RATES[direction] if dispatcher == "deepep" else ())
        return cls(**{name: constant(f"{dispatcher}_{direction}", name) for name in names})

    def sm_s(self, exchange: Exchange, token_bytes: Floats) -> Floats:
        """Seconds of one SM per token: SMs copy, forward and sum tokens."""
        copies = exchange.reached(exchange.ranks)
        seconds = self.token_s + token_bytes / self.sum_bytes_per_s
        seconds = seconds + copies * (self.copy_s + token_bytes / self.copy_bytes_per_s)
        forwarded = exchange.reached(exchange.domains) * token_bytes / self.domain_bytes_per_s
        return seconds + np.where(exchange.domains > 1, forwarded, 0.0)


def exchange_s(
    links: Links,
    dispatcher: Dispatcher,
    rates: ExchangeRates,
    exchange: Exchange,
    *,
    element_bytes: Floats | float,
    sms: Floats | float,
) -> Floats:
    """Seconds of one dispatch or combine, on idle GPUs or beside a training step as ``links`` say.

    Formula: base + (domains - 1) hop + max( NVLink bytes / link , network bytes / nic , SM seconds / sms )
    Where:   alltoall sends top_k copies of a token: top_k (1 - per_domain / ranks) leave the domain;
             deepep and hybridep send it once to each domain and forward it there to each rank that has one of its
             experts: network copies = domains reached * (1 - 1 / domains), NVLink copies = ranks reached *
             (1 - 1 / per_domain); link and nic are the cluster's, times a ratio per dispatcher;
             SM seconds (deepep) = tokens * (token + ranks reached * (copy + bytes / copy rate) + bytes / sum rate +
             domains reached * bytes / domain rate)
    Source:  catalog/constants.toml, tools/fit_moe.py on data/moe; errors in data/moe/errors.csv
    Valid:   DeepEP's kernels for training and prefill, 256 tokens per rank and more, 1 to 4 nodes, 4 to 24 SMs;
             HybridEP and alltoall: one published table each, 1 to 8 nodes of H100
    """
    token_bytes = exchange.hidden * element_bytes
    tokens = exchange.tokens * exchange.imbalance
    network, inside = _copies(dispatcher, exchange)
    node, fabric = links.cluster.node, links.cluster.fabric
    link = node.link_bytes_per_s * node.link_frac * rates.link_ratio
    nic = fabric.nic_bytes_per_s * fabric.nic_frac * links.bandwidth_scale * rates.nic_ratio
    wire = np.maximum(tokens * token_bytes * inside / link, tokens * token_bytes * network / nic)
    busy = np.maximum(wire, tokens * rates.sm_s(exchange, token_bytes) / sms)
    latency = rates.base_s + (exchange.domains - 1.0) * fabric.hop_s
    return np.where(exchange.ranks > 1, links.hop_scale * latency + busy, 0.0)


def dispatch_s(
    links: Links,
    dispatcher: Dispatcher,
    exchange: Exchange,
    *,
    element_bytes: Floats | float = 2.0,
    sms: float | None = None,
) -> Floats:
    """Seconds of sending tokens to their experts; ``element_bytes`` is 2 for bf16 and 1.03125 for fp8 with scales."""
    rates, used = ExchangeRates.of(dispatcher, "dispatch"), _sms(dispatcher, sms)
    return exchange_s(links, dispatcher, rates, exchange, element_bytes=element_bytes, sms=used)


def combine_s(links: Links, dispatcher: Dispatcher, exchange: Exchange, *, sms: float | None = None) -> Floats:
    """Seconds of returning and summing the experts' results, which are bf16."""
    rates, used = ExchangeRates.of(dispatcher, "combine"), _sms(dispatcher, sms)
    return exchange_s(links, dispatcher, rates, exchange, element_bytes=2.0, sms=used)


def permutation_bytes(dispatcher: Dispatcher, exchange: Exchange, rows: Floats) -> Floats:
    """Memory traffic of sorting a rank's tokens by expert and of undoing it, in one direction of a layer.

    Formula: deepep   2 (received + rows) token_bytes : the received tokens are copied once per local expert
             alltoall 2 (tokens + rows) token_bytes, and 4 rows token_bytes more where a rank has several experts,
                      because what arrives is sorted by sender
             hybridep 0 : its kernels sort while they send
    Where:   rows are the token-expert pairs of the rank; each copy is read and written, there and back
    Source:  Megatron-LM megatron/core/transformer/moe/token_dispatcher.py and fused_a2a.py
    """
    tokens = exchange.tokens * exchange.imbalance
    token_bytes = BYTES * exchange.hidden
    local = 2.0 * (tokens * exchange.reached(exchange.ranks) + rows) * token_bytes
    if dispatcher == "deepep":
        return local
    if dispatcher == "hybridep":
        return np.where(exchange.ranks > 1, 0.0, local)
    again = np.where(exchange.experts > exchange.ranks, 4.0 * rows * token_bytes, 0.0)
    return np.where(exchange.ranks > 1, 2.0 * (exchange.tokens + rows) * token_bytes + again, local)


def _sms(dispatcher: Dispatcher, sms: float | None) -> float:
    return constant("dispatch_sms", dispatcher) if sms is None else sms


def _copies(dispatcher: Dispatcher, exchange: Exchange) -> tuple[Floats, Floats]:
    """Copies of a token that cross the network, and that cross NVLink, per token of one rank."""
    ranks, per_domain = exchange.ranks, exchange.per_domain
    if dispatcher == "alltoall":
        return exchange.top_k * (1.0 - per_domain / ranks), exchange.top_k * (per_domain - 1.0) / ranks
    network = exchange.reached(exchange.domains) * (1.0 - 1.0 / exchange.domains)
    return network, exchange.reached(ranks) * (1.0 - 1.0 / per_domain)


def _ratio(outside: Floats, pool: Floats, top_k: Floats) -> Floats:
    """C(outside, top_k) / C(pool, top_k): chance that top_k draws from a pool all fall outside a part of it."""
    chance = np.ones(np.broadcast(outside, pool, top_k).shape)
    for drawn in range(int(np.max(top_k))):
        one = np.maximum(outside - drawn, 0.0) / np.maximum(pool - drawn, 1.0)
        chance = np.where(drawn < top_k, chance * one, chance)
    return chance


def _hypergeometric(groups: Floats | float, whole: Floats, chosen: Floats | float, hit: int) -> Floats:
    """Chance that ``hit`` of the chosen groups are among ``whole`` groups."""
    chance = np.ones(np.broadcast(groups, whole, chosen).shape)
    # hit draws inside, the others outside, in any order
    for drawn in range(int(np.max(chosen))):
        inside = np.maximum(whole - drawn, 0.0) * (chosen - drawn) / (drawn + 1.0)
        outside = np.maximum(groups - whole - (drawn - hit), 0.0)
        one = (inside if drawn < hit else outside) / np.maximum(groups - drawn, 1.0)
        chance = np.where(drawn < chosen, chance * one, chance)
    return np.where(hit <= np.asarray(chosen), chance, 0.0)


FP8_SENT_BYTES = 1.0 + 4.0 / 128.0  # an element, with its share of an fp32 scale for 128 of them
_EACH_PASS = 4.0  # there and back, read and written


def busiest_rank(model: Model, table: PlanTable) -> Floats:
    """Tokens of the busiest expert-parallel rank over the mean: as the plan says, or as its routing has it; at most the
    capacity of its experts."""
    load = np.ones(len(table))
    if model.experts is None:
        return load
    tokens = routed_tokens(table)
    for code in distinct(table.routing):
        rows = np.flatnonzero((table.routing == code) & (table.ep > 1))
        if not len(rows):
            continue
        count = np.full(len(rows), float(model.experts.count))
        top_k = np.full(len(rows), float(model.experts.top_k))
        ep = table.ep[rows].astype(np.float64)
        load[rows] = rank_loads(ROUTINGS[code], tokens[rows] * ep, top_k, count, ep).imbalance
    return np.fmin(np.where(np.isnan(table.imbalance), load, table.imbalance), table.capacity_factor)


def routed_tokens(table: PlanTable) -> Floats:
    """Tokens of a microbatch that one rank sends to experts: sequence parallelism gives each its own."""
    return np.asarray(table.micro_tokens / table.tp, dtype=np.float64)


def permuted_rows(model: Model, table: PlanTable) -> Floats:
    """Tokens that a rank puts into the order of their experts and back; 0 in a dense model."""
    rows = np.zeros(len(table))
    if model.experts is None:
        return rows
    exchange = _exchange(model, model.experts, table, per_domain=table.ep.astype(np.float64))
    computed = routed_tokens(table) * model.experts.top_k * table.etp * busiest_rank(model, table)
    for code in distinct(table.dispatcher):
        moved = permutation_bytes(DISPATCHERS[code], exchange, computed)
        rows = np.where(table.dispatcher == code, moved / (_EACH_PASS * model.hidden * BYTES), rows)
    return rows


def preprocess_kernels(table: PlanTable) -> Floats:
    """Kernels of the router that DeepEP and HybridEP have in a kernel of their own, which prepares the exchange."""
    own = (table.dispatcher != DISPATCHERS.index("alltoall")) & (table.ep > 1)
    return np.where(own, constant("experts", "preprocess_kernels"), 0.0)


def _exchange(model: Model, experts: Experts, table: PlanTable, per_domain: Floats) -> Exchange:
    def same(value: int) -> Floats:
        return np.full(len(table), float(value))

    return Exchange(
        tokens=routed_tokens(table),
        hidden=same(model.hidden),
        top_k=same(experts.top_k),
        experts=same(experts.count),
        ranks=table.ep.astype(np.float64),
        per_domain=per_domain,
        groups=same(experts.groups),
        chosen_groups=same(experts.top_groups),
        imbalance=busiest_rank(model, table),
    )


def expert_weight_costs(
    links: Links, profile: Profile, modes: Modes, t: Traffic, shard: GroupPlacement, replicate: GroupPlacement
) -> dict[str, Floats]:
    """Gathers and reductions of a layer's experts, which stand in the queue behind those of the rest of the layer."""
    elements = t.experts.moved
    if not elements.any():
        return dict.fromkeys(("gather_experts", "reduce_experts", "replicate_experts"), 0.0 * elements)
    wait, replica_wait = skew_wait_s(profile.skew_s, shard), skew_wait_s(profile.skew_s, replicate)
    gradients = t.reduce_bytes * elements
    copies = all_reduce_s(links, replicate, gradients / t.expert_shards) + replica_wait
    return {
        "gather_experts": gather_s(links, shard, PARAMETER_BYTES * elements) + wait,
        "reduce_experts": np.where(modes.ddp, 0.0, gather_s(links, shard, gradients) + wait),
        "replicate_experts": np.where(modes.ddp, all_reduce_s(links, shard, gradients) + wait, copies),
    }


def routed_costs(
    model: Model, links: Links, profile: Profile, table: PlanTable, group: GroupPlacement, etp: GroupPlacement
) -> tuple[Floats, Floats, Floats]:
    """Seconds of a layer's dispatch and of its combine, on the busiest rank, and of the gather of the tokens of all
    ranks that split an expert, which takes as long as the reduction of what it puts out."""
    dispatch, combine = np.zeros(len(table)), np.zeros(len(table))
    if model.experts is None:
        return dispatch, combine, np.zeros(len(table))
    exchange = _exchange(model, model.experts, table, per_domain=group.per_node)
    eight_bit = (table.precision == PRECISIONS.index("fp8")) & profile.fp8_dispatch
    element_bytes = np.where(eight_bit, FP8_SENT_BYTES, BYTES)
    for code, name in enumerate(DISPATCHERS):
        if (table.dispatcher == code).any():
            there = table.dispatcher == code
            dispatch = np.where(there, dispatch_s(links, name, exchange, element_bytes=element_bytes), dispatch)
            combine = np.where(there, combine_s(links, name, exchange), combine)
    rows = routed_tokens(table) * model.experts.top_k * table.etp * busiest_rank(model, table)
    return dispatch, combine, gather_s(links, etp, rows * model.hidden * BYTES)
