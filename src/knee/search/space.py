"""Every valid plan for a model, a number of GPUs and a batch; nothing is sampled. ``space_tables`` has them as columns.

Options that change nothing in a plan (the schedule without a pipeline, say) have their default value there, so that no
plan is in the space twice. What no plan could be is not generated: the rules are those of ``specs.plan`` and
``specs.job``, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from knee.base.errors import InputError
from knee.specs.legality import fills_ranks, first_broken
from knee.specs.model import Model
from knee.specs.model.split_rules import OWN_STAGES, splits_heads, splits_sequence
from knee.specs.plan import SHARDING_RULES, Collectives, Plan, RecomputeModule, Sharding
from knee.specs.schedules import ONE_F_ONE_B, searched_schedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched: all of it, within these limits. Empty tuples mean every value."""

    model: Model
    gpus: int
    global_batch: int
    seq_len: int
    fixed: Plan = field(default_factory=Plan)
    """Whose precision, types, prefetch and placement all plans have."""
    max_tp: int | None = None
    max_pp: int | None = None
    max_cp: int | None = None
    max_ep: int | None = None
    shardings: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    recomputes: tuple[str, ...] = ()
    modules: tuple[RecomputeModule, ...] = ()
    """What plans recompute that recompute modules."""
    micro_batches: tuple[int, ...] = ()
    sync_every: int = 1
    """Steps between exchanges of replicas, in all plans that have some."""
    collectives: tuple[Collectives, ...] = ()
    """Kinds that every plan is tried with; empty: that of ``fixed``."""
    attention_again: bool = False
    """Whether recomputing attention alone saves anything: not beside kernels that keep no scores."""

    def __post_init__(self) -> None:
        for name in ("gpus", "global_batch", "seq_len", "sync_every"):
            if getattr(self, name) < 1:
                raise _too_small(name, getattr(self, name))
        limits = {"max_tp": self.max_tp, "max_pp": self.max_pp, "max_cp": self.max_cp, "max_ep": self.max_ep}
        limits |= {"micro_batch": min(self.micro_batches, default=1)}
        for name, value in limits.items():
            if value is not None and value < 1:
                raise _too_small(name, value)

    @property
    def every_collectives(self) -> tuple[Collectives, ...]:
        """Kinds that every plan is tried with, the one that is never slower alone last."""
        return self.collectives or (self.fixed.collectives,)


def _too_small(name: str, value: int) -> InputError:
    return InputError(f"{name} is {value}; it must be at least 1", code="out-of-range", field=name)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(small + [number // i for i in reversed(small) if i * i != number])


def degrees(space: Space) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, cp, dp) of every factorisation that the model, the sequence and the batch allow."""
    model = space.model
    for tp in divisors(space.gpus):
        if tp > (space.max_tp or tp) or not splits_heads(model, tp):
            continue
        for pp in divisors(space.gpus // tp):
            if pp > min(space.max_pp or pp, model.walked_layers + OWN_STAGES):
                continue
            for cp in divisors(space.gpus // tp // pp):
                dp = space.gpus // (tp * pp * cp)
                if cp > (space.max_cp or cp) or space.global_batch % dp or not splits_sequence(space.seq_len, cp):
                    continue
                yield tp, pp, cp, dp


def folds(space: Space, tp: int, cp: int, dp: int) -> list[tuple[int, int]]:
    """(ep, etp) of every way to lay the experts over the ranks of a stage; an expert is whole, or split as often as
    the rest of the model."""
    experts = space.model.experts
    if experts is None:
        return [(1, 1)]
    eps = [ep for ep in divisors(experts.count) if ep <= (space.max_ep or ep)]
    etps = [etp for etp in dict.fromkeys((1, tp)) if experts.ffn % etp == 0]
    return [(ep, etp) for ep in eps for etp in etps if fills_ranks(tp * cp * dp, ep, etp)]


def shardings(space: Space, dp: int) -> list[tuple[Sharding, int, int]]:
    """(mode, dp_shard, dp_replicate) of so many data-parallel ranks.

    Modes differ on one rank too: FSDP keeps 16-bit copies of a few layers where others keep all.
    """
    return [one for one in _legal_shardings(dp) if (one[0] in space.shardings if space.shardings else one[0] != RARE)]


MODES: tuple[Sharding, ...] = ("ddp", "zero1", "fsdp_no_reshard", "zero2", "fsdp", "hsdp")
"""In the order of a search."""
RARE: Sharding = "zero2"
"""Tried only where it is asked for: few stacks have it."""


@cache
def _legal_shardings(dp: int) -> tuple[tuple[Sharding, int, int], ...]:
    """Every mode with every pair of degrees, less those that a plan refuses."""
    every = ((mode, shard, dp // shard) for shard in divisors(dp) for mode in MODES)
    return tuple(one for one in every if first_broken(SHARDING_RULES, _Degrees(*one)) is None)


class _Degrees(NamedTuple):
    sharding: Sharding
    dp_shard: int
    dp_replicate: int


def schedules(space: Space, pp: int) -> list[tuple[str, int]]:
    """(schedule, virtual stages) of a pipeline."""
    if pp == 1:
        return [(ONE_F_ONE_B.name, 1)]
    layers = space.model.walked_layers
    virtual = [v for v in range(2, (layers + OWN_STAGES) // pp + 1) if _sensible(layers, pp, v)]
    return [
        (schedule.name, v)
        for schedule in searched_schedules()
        if (schedule.name in space.schedules if space.schedules else schedule.by_default) and schedule.takes_ranks(pp)
        for v in (virtual if schedule.virtual else (1,))
    ]


def _sensible(layers: int, pp: int, virtual: int) -> bool:
    """Virtual stages that cut the model evenly; where its pipeline does not, those that leave its two ends a layer
    short (Llama-3 405B: 126 layers on 16 stages of 8 chunks), or two parts."""
    if layers % pp == 0:
        return layers % (pp * virtual) == 0
    return (layers + OWN_STAGES) % (pp * virtual) == 0 or virtual == 2
