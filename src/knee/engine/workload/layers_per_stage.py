"""How layers are dealt to pipeline stages, and how much of the model each stage holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from knee.base.arrays import Ints, equal_rows
from knee.engine.workload.parameters import head_layers
from knee.specs.model import Model
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """The layers that a step walks, as far as dealing them to stages needs it."""

    count: int
    head_layers: float = 0.0
    """What the output projection counts as where layers are dealt; 0 in stacks that do not count it."""
    experts: tuple[bool, ...] = ()
    """Whether each layer has experts; empty where all layers are alike."""

    def dealt(self, chunks: int) -> tuple[int, ...]:
        """Layers of each chunk, first to last."""
        return chunk_layers(self.count, chunks, self.head_layers)

    def with_experts(self, chunks: int) -> tuple[int, ...]:
        """Of the layers of each chunk, those with experts; 0 where all layers are alike."""
        ends = accumulate(self.dealt(chunks), initial=0)
        return tuple(sum(self.experts[i:j]) for i, j in pairwise(ends))


def expert_pattern(model: Model) -> tuple[bool, ...]:
    """Whether each layer of a step has experts, those of multi-token prediction last; empty where all are alike."""
    experts = model.experts
    if experts is None or model.expert_layers == model.layers:
        return ()
    return (*(experts.has_experts(layer) for layer in range(model.layers)), *(model.mtp_layers * (True,)))


@cache
def chunk_layers(layers: int, chunks: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each chunk, first to last.

    Chunks are filled evenly; where layers do not divide, the ends get one fewer, last and first in turn, because they
    also carry the loss and the embedding (Llama-3 405B on 16 stages: 7, 8 x 14, 7). Stacks that deal by cost count the
    output projection as so many layers.
    """
    if head_layers and chunks > 1:
        return _by_cost(layers, chunks, head_layers)
    full = -(-layers // chunks)
    dealt = [full] * chunks
    ends = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    for i in ends[: full * chunks - layers]:
        dealt[i] -= 1
    return tuple(dealt)


def _by_cost(layers: int, chunks: int, head_layers: float) -> tuple[int, ...]:
    """Layers go to a chunk until it has its share of the whole cost; the output projection is taken to be on the last
    chunk, which may have no layer.

    Source:  nanotron, models/base.py build_model: thresholds at equal shares of the cumulative cost. There a layer that
             ends exactly on its chunk's share leaves room for one more; memory and throughput of the Ultra-Scale
             Playbook's runs, where such ties are common, agree with none
    """
    share = (layers + head_layers) / chunks
    dealt, chunk = [0] * chunks, 0
    for layer in range(1, layers + 1):
        dealt[chunk] += 1
        if layer >= share * (chunk + 1) and chunk < chunks - 1:
            chunk += 1
    return tuple(dealt)


@cache
def stage_layers(layers: int, stages: int, virtual: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """Layers of each pipeline rank, over all its chunks (chunk v * stages + rank)."""
    dealt = chunk_layers(layers, stages * virtual, head_layers)
    return tuple(sum(dealt[rank::stages]) for rank in range(stages))


Way = tuple[ModelLayers, int, int]
"""The layers of a model, pipeline ranks, and chunks of a rank."""


@cache
def most_experts(layers: ModelLayers, ranks: int, virtual: int) -> int:
    """Layers with experts of the pipeline rank that has most of them, over all its chunks."""
    dealt = layers.with_experts(ranks * virtual)
    return max(sum(dealt[rank::ranks]) for rank in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The ways in which plans cut their layers into stages: plans with one way have equal stages."""

    ways: list[Way]
    of_plan: Ints
    """The way of each plan."""

    def of(self, plan: int) -> Way:
        """Layers, ranks and virtual stages of one plan."""
        return self.ways[int(self.of_plan[plan])]


def cuts_of(model: Model, profile: Profile, table: PlanTable) -> Cuts:
    """How each plan cuts its layers."""
    head = head_layers(model) if profile.deals_by_cost else 0.0
    layers = np.asarray(model.walked_layers, dtype=np.int64)
    columns = np.broadcast_arrays(layers, table.pp, table.virtual_stages, np.asarray(head, dtype=np.float64))
    first, of_plan = equal_rows(*columns, few=0)
    experts, rows = expert_pattern(model), zip(*(column[first].tolist() for column in columns), strict=True)
    ways = [(ModelLayers(count=n, head_layers=cost, experts=experts), p, v) for n, p, v, cost in rows]
    return Cuts(ways=ways, of_plan=of_plan)


@cache
def blocks_recomputed(frac: float, layers: int) -> tuple[bool, ...]:
    """Which of so many blocks are recomputed where a share of them is: whole ones, spread evenly."""
    return tuple(int((i + 1) * frac + 1e-9) > int(i * frac + 1e-9) for i in range(layers))
