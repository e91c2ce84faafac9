"""Which collectives are measured, over which groups of ranks and at which sizes. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from knee.base import units
from knee.base.errors import InputError, argument
from knee.measure.machine.readings import Beside, CollectivePoint
from knee.specs.catalog import did_you_mean

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive", "broadcast")
ELEMENT_BYTES = 4
"""Messages are fp32, as nccl-tests' default."""
SMALLEST_BYTES = 1 << 10
LARGEST_BYTES = 8 << 30
GROWTH = 4
QUICK_GROWTH = 16
BESIDE_BYTES = {"cuda": (64 << 20, 256 << 20, 1 << 30), "cpu": (1 << 20, 4 << 20, 16 << 20)}
"""All-gathers beside products: about the size of a layer on GPUs, and what a CPU moves in a few milliseconds."""

# What training sends along each axis: FSDP gathers and scatters, TP with or without sequence parallelism, CP by
# rings, gathers or all-to-all, PP between neighbouring stages.
_SENT: dict[str, tuple[str, ...]] = {
    "world": COLLECTIVES,
    "node": COLLECTIVES,
    "tp": ("all_reduce", "all_gather", "reduce_scatter"),
    "dp": ("all_gather", "reduce_scatter"),
    "cp": ("all_gather", "all_to_all", "send_receive"),
    "pp": ("send_receive",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Groups of ranks that lie alike: ``group`` ranks each, ``stride`` apart, and all ranks in one of them."""

    name: str
    group: int
    stride: int
    groups: int
    nodes: int
    """Nodes that one group reaches over."""
    collectives: tuple[str, ...]

    def ranks(self, rank: int) -> list[int]:
        """The group of a rank."""
        block = self.group * self.stride
        first = rank // block * block + rank % self.stride
        return list(range(first, first + block, self.stride))


def axes_of(world: int, per_node: int, *, quick: bool = False) -> list[Axis]:
    """Groups to measure: all ranks, a node's, and those that TP, DP, CP and PP degrees would make of them."""
    axes: dict[tuple[int, int], Axis] = {}
    for name, group, stride in _shapes(world, per_node, quick=quick):
        if group < 2 or world % (group * stride):
            continue
        sent = _SENT[name]
        if (group, stride) in axes:  # the same ranks under another name: one axis that carries both
            before = axes[group, stride]
            name, sent = before.name, tuple(c for c in COLLECTIVES if c in (*before.collectives, *sent))
        axes[group, stride] = Axis(
            name=name,
            group=group,
            stride=stride,
            groups=world // group,
            nodes=len({rank // per_node for rank in range(0, group * stride, stride)}),
            collectives=sent,
        )
    return list(axes.values())


def _shapes(world: int, per_node: int, *, quick: bool) -> Iterator[tuple[str, int, int]]:
    """Name, ranks and stride of axes, the most telling first."""
    degrees = [2**i for i in range(1, per_node.bit_length()) if 2**i <= per_node]
    yield "world", world, 1
    yield "node", per_node, 1
    yield "dp", world // per_node, per_node  # one rank of each node, as beside TP of a whole node
    if quick:
        return
    for tp in degrees:
        yield "tp", tp, 1
    for tp in degrees:
        yield "dp", world // tp, tp
    yield "cp", 2, per_node
    yield "pp", 2, world // 2


def sizes(growth: int, most_bytes: int) -> list[int]:
    """Message sizes, each ``growth`` times the last, up to and with the largest where it is 8 GiB."""
    grown = []
    size = SMALLEST_BYTES
    while size <= min(most_bytes, LARGEST_BYTES):
        grown.append(size)
        size *= growth
    return [*grown, LARGEST_BYTES] if most_bytes >= LARGEST_BYTES and growth == GROWTH else grown


def point_of_axis(axis: Axis, collective: str, size_bytes: int, *, beside: Beside = "nothing") -> CollectivePoint:
    """A point, its size rounded up to whole elements for every rank."""
    whole = axis.group * ELEMENT_BYTES
    return CollectivePoint(
        collective=collective,
        size_bytes=-(-size_bytes // whole) * whole,
        axis=axis.name,
        group=axis.group,
        stride=axis.stride,
        groups=axis.groups,
        nodes=axis.nodes,
        beside=beside,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSeries:
    """One collective over one axis, from the smallest message to the largest."""

    axis: Axis
    points: tuple[CollectivePoint, ...]

    @property
    def beside(self) -> bool:
        """Measured beside running products."""
        return self.points[0].beside != "nothing"


def plan_series(
    world: int,
    per_node: int,
    device: str,
    *,
    quick: bool,
    wanted: Sequence[str] = COLLECTIVES,
    most_bytes: int = LARGEST_BYTES,
) -> list[CollectiveSeries]:
    """Everything that a probe measures, axis by axis so that one axis' groups exist at a time."""
    made: list[CollectiveSeries] = []
    for axis in axes_of(world, per_node, quick=quick):
        grown = sizes(QUICK_GROWTH if quick else GROWTH, most_bytes)
        made += [
            CollectiveSeries(axis=axis, points=tuple(point_of_axis(axis, collective, size) for size in grown))
            for collective in axis.collectives
            if collective in wanted
        ]
        beside = [size for size in BESIDE_BYTES[device] if size <= most_bytes][: 1 if quick else None]
        if axis.name in ("world", "node") and "all_gather" in wanted and beside:
            points = tuple(point_of_axis(axis, "all_gather", size, beside="gemm") for size in beside)
            made.append(CollectiveSeries(axis=axis, points=points))
    return made


def check_collectives(names: Sequence[str]) -> None:
    """Refuse a collective that is not measured."""
    there = f"use {', '.join(COLLECTIVES)}"
    for name in names:
        if name not in COLLECTIVES:
            close = did_you_mean(name, COLLECTIVES)
            raise InputError(
                f"{argument('collectives')}: there is no collective {name!r}",
                hint=f"did you mean {close}?" if close else there,
                code="unknown-choice",
                field="collectives",
            )
    if not names:
        raise InputError(
            f"{argument('collectives')} is empty", hint=there, code="missing-argument", field="collectives"
        )


def message_bytes(text: str) -> int:
    """The largest message, from its size in words such as ``8 GiB``."""
    try:
        size = units.parse(text, "bytes")
    except ValueError as error:
        raise InputError(f"{argument('max_size')} {error}", code="not-an-amount", field="max_size") from None
    if not SMALLEST_BYTES <= size <= LARGEST_BYTES:
        raise InputError(
            f"{argument('max_size')} is {text}; it should be from 1 KiB to 8 GiB", code="out-of-range", field="max_size"
        )
    return int(size)
