"""The chunks of a pipeline, sorted into a few kinds: which layers, ends and places in their rank they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from knee.arrays import Bools, Floats, Ints, names_of
from knee.workload.layers_per_stage import Cuts, chunk_layers

MIDDLES = ("middle", "short", "shorter", "shortest")
"""Chunks between the ends, by how many layers they have."""
CHUNKS = ("only", "first", "last", "last_early", *MIDDLES, *(f"{name}_early" for name in MIDDLES))
"""Kinds of chunks; early ones end their backward before the rank's last chunk does."""
_HAS_EMBEDDING = np.isin(CHUNKS, ("first", "only"))
_HAS_HEAD = np.isin(CHUNKS, ("last", "last_early", "only"))
_IS_EARLY = np.array([name.endswith("_early") for name in CHUNKS])
_ENDS_RANK = np.isin(CHUNKS, ("first", *MIDDLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """One row for each kind of chunk of each plan."""

    plan: Ints
    layers: Ints
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

    def some(self, index: Ints) -> ChunkRows:
        """Some of the rows."""
        return ChunkRows(**{name: getattr(self, name)[index] for name in names_of(ChunkRows)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The chunks of a pipeline: which kind each one is."""

    kinds: tuple[int, ...]
    """Kind (index into CHUNKS) of chunk v * ranks + rank."""
    layers: dict[int, int]
    """Layers of each kind."""
    counts: dict[int, int]
    below_top: dict[int, int]
    """Of the chunks of each kind, those that are not the highest of their rank."""


@cache
def layout_of(layers: int, ranks: int, virtual: int, head_layers: float) -> Layout:
    """Sort the chunks of a pipeline into kinds."""
    dealt = chunk_layers(layers, ranks * virtual, head_layers)
    # stages dealt evenly have two sizes, those dealt by cost a remainder and empty ones too
    sizes = sorted(set(dealt[1:-1]), reverse=True)
    kinds = []
    for chunk, count in enumerate(dealt):
        if len(dealt) == 1:
            name = "only"
        elif chunk == 0:
            name = "first"
        elif chunk == len(dealt) - 1:
            name = "last" if virtual == 1 else "last_early"
        else:
            name = MIDDLES[sizes.index(count)] + ("_early" if chunk >= ranks else "")
        kinds.append(CHUNKS.index(name))
    return Layout(
        kinds=tuple(kinds),
        layers=dict(zip(kinds, dealt, strict=True)),
        counts={k: kinds.count(k) for k in set(kinds)},
        below_top={k: kinds[: ranks * (virtual - 1)].count(k) for k in set(kinds)},
    )


def chunk_rows(cuts: Cuts) -> tuple[ChunkRows, Ints]:
    """One row for each kind of chunk of each plan, the kinds of a plan side by side in ``row_of``."""
    n = len(cuts.of_plan)
    row_of = np.full((len(CHUNKS), n), -1)
    layer_count = np.zeros((len(CHUNKS), n), dtype=np.int64)
    count, below_top = np.zeros((len(CHUNKS), n)), np.zeros((len(CHUNKS), n))
    for i, way in enumerate(cuts.ways):
        plans, layout = np.flatnonzero(cuts.of_plan == i), layout_of(*way)
        for kind, number in layout.counts.items():
            layer_count[kind, plans] = layout.layers[kind]
            count[kind, plans] = number
            below_top[kind, plans] = layout.below_top[kind]
    kinds, plan = np.nonzero(count)
    row_of[kinds, plan] = np.arange(len(kinds))
    rows = ChunkRows(
        plan=plan,
        layers=layer_count[kinds, plan],
        embedding=_HAS_EMBEDDING[kinds],
        head=_HAS_HEAD[kinds],
        early=_IS_EARLY[kinds],
        ends_rank=_ENDS_RANK[kinds],
        count=count[kinds, plan],
        below_top=below_top[kinds, plan],
    )
    return rows, row_of
