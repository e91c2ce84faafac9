"""The chunks of a pipeline, sorted into a few kinds: which layers, ends and places in their rank they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from knee.base.arrays import Bools, Columns, Floats, Ints
from knee.engine.workload.layers_per_stage import Cuts, ModelLayers
from knee.specs.schedules import PipelineSchedule

ONLY, FIRST, LAST, LAST_EARLY, MIDDLE = range(5)
"""Kinds of chunks. Those between the ends follow from ``MIDDLE`` on, by the layers that they have, and then early ones
of the same layers, which end their backward before the rank's last chunk does."""
MOST_SIZES, MOST_MIXTURES = 4, 12
"""Kinds of chunks between the ends: by layers alone, and by layers with and without experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows(Columns):
    """One row for each kind of chunk of each plan."""

    plan: Ints
    layers: Ints
    expert_layers: Ints
    """Of them, those with experts; 0 where all layers of the model are alike."""
    embedding: Bools
    head: Bools
    early: Bools
    """Its reductions are carried on to the rank's last chunk."""
    ends_rank: Bools
    """The last chunk of its rank to end, which takes over what early ones left."""
    count: Floats
    """Chunks of this kind in the plan."""
    below_top: Floats
    """Of them, those that are not the highest of their rank: they run beside what the chunk above needs or leaves."""

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def expert_share(self) -> Floats:
        """Share of each chunk's layers that have experts."""
        return np.asarray(self.expert_layers / np.maximum(self.layers, 1), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The chunks of a pipeline: which kind each one is."""

    kinds: tuple[int, ...]
    """Kind of chunk v * ranks + rank."""
    layers: dict[int, int]
    """Layers of each kind."""
    expert_layers: dict[int, int]
    counts: dict[int, int]
    below_top: dict[int, int]
    """Of the chunks of each kind, those that are not the highest of their rank."""


def _most_middles(*, mixed: bool) -> int:
    return MOST_MIXTURES if mixed else MOST_SIZES


@cache
def layout_of(layers: ModelLayers, ranks: int, virtual: int) -> Layout:
    """Sort the chunks of a pipeline into kinds."""
    chunks = ranks * virtual
    dealt = tuple(zip(layers.dealt(chunks), layers.with_experts(chunks), strict=True))
    # stages dealt evenly have two sizes, those dealt by cost a remainder and empty ones too
    middles = sorted(set(dealt[1:-1]), reverse=True)
    most = _most_middles(mixed=bool(layers.experts))
    assert len(middles) <= most
    kinds = []
    for chunk, held in enumerate(dealt):
        if chunks == 1:
            kind = ONLY
        elif chunk == 0:
            kind = FIRST
        elif chunk == chunks - 1:
            kind = LAST if virtual == 1 else LAST_EARLY
        else:
            kind = MIDDLE + middles.index(held) + (most if chunk >= ranks else 0)
        kinds.append(kind)
    return Layout(
        kinds=tuple(kinds),
        layers=dict(zip(kinds, (held[0] for held in dealt), strict=True)),
        expert_layers=dict(zip(kinds, (held[1] for held in dealt), strict=True)),
        counts={k: kinds.count(k) for k in set(kinds)},
        below_top={k: kinds[: ranks * (virtual - 1)].count(k) for k in set(kinds)},
    )


def rank_chunks(schedule: PipelineSchedule, layout: Layout, ranks: int, virtual: int) -> list[tuple[int, ...]]:
    """Kinds of each rank's chunks: its virtual stages, or its stages of both directions."""
    if schedule.directions > 1:
        return [(layout.kinds[rank], layout.kinds[ranks - 1 - rank]) for rank in range(ranks)]
    return [tuple(layout.kinds[rank::ranks][:virtual]) for rank in range(ranks)]


def first_chunks(schedule: PipelineSchedule, chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Of a rank's chunks, those that gather before it starts: upper virtual stages gather beside the lowest one."""
    return chunks[: schedule.directions]


def chunk_rows(cuts: Cuts) -> tuple[ChunkRows, Ints]:
    """One row for each kind of chunk of each plan, the kinds of a plan side by side in ``row_of``."""
    mixed = any(layers.experts for layers, _, _ in cuts.ways)
    shape = (MIDDLE + 2 * _most_middles(mixed=mixed), len(cuts.of_plan))
    row_of = np.full(shape, -1)
    held = np.zeros((2 if mixed else 1, *shape), dtype=np.int64)
    count, below_top = np.zeros(shape), np.zeros(shape)
    for i, way in enumerate(cuts.ways):
        plans, layout = np.flatnonzero(cuts.of_plan == i), layout_of(*way)
        for kind, number in layout.counts.items():
            held[0, kind, plans] = layout.layers[kind]
            if mixed:
                held[1, kind, plans] = layout.expert_layers[kind]
            count[kind, plans] = number
            below_top[kind, plans] = layout.below_top[kind]
    kinds, plan = np.nonzero(count)
    row_of[kinds, plan] = np.arange(len(kinds))
    early = kinds >= MIDDLE + _most_middles(mixed=mixed)
    dealt = held[:, kinds, plan]
    rows = ChunkRows(
        plan=plan,
        layers=dealt[0],
        expert_layers=dealt[1] if mixed else np.zeros_like(plan),
        embedding=(kinds == ONLY) | (kinds == FIRST),
        head=(kinds == ONLY) | (kinds == LAST) | (kinds == LAST_EARLY),
        early=early | (kinds == LAST_EARLY),
        ends_rank=(kinds == FIRST) | ((kinds >= MIDDLE) & ~early),
        count=count[kinds, plan],
        below_top=below_top[kinds, plan],
    )
    return rows, row_of
