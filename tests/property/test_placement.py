"""Where groups sit, against an enumeration of every rank of every group."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.engine.cost.placement import place
from knee.specs.plan import AXES
from knee.specs.plan_table import PlanTable, table_of


def table_with(sizes: dict[str, int], placement: tuple[str, ...]) -> PlanTable:
    """A table of one plan, whatever its model could do with it."""
    empty = table_of([])
    columns = {name: np.ones(1, dtype=np.int64) for name in empty.__slots__ if name != "placement"}
    columns |= {axis: np.array([size]) for axis, size in sizes.items()}
    columns["gpus"] = np.array([int(np.prod(list(sizes.values())))])
    return PlanTable(placement=placement, **columns)


def worst(sizes: dict[str, int], placement: tuple[str, ...], axes: tuple[str, ...], node: int) -> int:
    """Most nodes that any one group over the axes touches."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for rank, place_of in enumerate(itertools.product(*(range(sizes[axis]) for axis in reversed(placement)))):
        at = dict(zip(reversed(placement), place_of, strict=True))
        groups.setdefault(tuple(at[a] for a in AXES if a not in axes), set()).add(rank // node)
    return max(map(len, groups.values()))


@given(
    sizes=st.fixed_dictionaries({axis: st.sampled_from([1, 1, 2, 3, 4, 6, 8]) for axis in AXES}),
    placement=st.permutations(AXES).map(tuple),
    axes=st.sampled_from([("tp",), ("cp",), ("pp",), ("dp_shard", "cp"), ("dp_replicate",), AXES]),
    node=st.sampled_from([4, 6, 8, 72]),
)
@settings(max_examples=120)
def test_nodes_are_those_of_the_worst_group(
    sizes: dict[str, int], placement: tuple[str, ...], axes: tuple[str, ...], node: int
) -> None:
    found = place(table_with(sizes, placement), node, *axes)
    parts = "".join("x" if axis in axes else "." for axis in placement if sizes[axis] > 1).strip(".")
    truth = worst(sizes, placement, axes, node)
    assert found.ranks[0] == np.prod([sizes[axis] for axis in axes])
    if "." in parts:
        # parts that other axes separate are taken as nested: never fewer nodes than there are ranks for
        assert 1 <= found.nodes[0] <= found.ranks[0]
    else:
        assert truth <= found.nodes[0] <= truth + 1
