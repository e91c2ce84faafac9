"""The kernels of one GPU in one step, as columns: what the simulator writes and what a trace is read into; and
what one rank of each stage issues, in the record that the real program and the simulator share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from knee.base.arrays import Bools, ByValue, Floats

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "send_recv", "broadcast", "all_to_all")
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "uint8": 1, "int64": 8}
"""Bytes of one element, by the names that plans use."""
COMPUTE_STREAM = 7
"""PyTorch's default stream carries this number in every Kineto trace."""
COMM_STREAM = 20
"""The first communication stream; further ones count up from here."""

Int32 = npt.NDArray[np.int32]
Int16 = npt.NDArray[np.int16]
Int8 = npt.NDArray[np.int8]

_COLUMNS: dict[str, type[np.generic]] = {
    "start_s": np.float64,
    "duration_s": np.float64,
    "stream": np.int32,
    "name_id": np.int32,
    "is_comm": np.bool_,
    "collective": np.int8,
    "group_id": np.int16,
    "message_bytes": np.float64,
    "dtype_id": np.int8,
}
_SLACK = 1e-9  # share of a step by which sums of float64 durations may disagree


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The ranks of one communicator: ``first_rank``, ``first_rank + stride``, ... ``size`` of them, or ``members``."""

    name: str
    """The mesh axes it runs over, such as ``dp_shard`` or ``tp``."""
    size: int
    is_axis: bool = True
    """Whether its name is that of mesh axes; where a trace names none, it is ``group`` and torch's own word for it."""
    first_rank: int = 0
    stride: int = 1
    members: tuple[int, ...] = ()
    """The ranks one by one, where they do not lie at equal distances."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.stride < 1 or self.first_rank < 0:
            raise ValueError(
                f"group {self.name}: size {self.size} and stride {self.stride} must be at least 1, "
                f"first_rank {self.first_rank} at least 0"
            )

    @property
    def ranks(self) -> Sequence[int]:
        """Global ranks of the members."""
        return self.members or range(self.first_rank, self.first_rank + self.size * self.stride, self.stride)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events(ByValue):
    """Kernels of one GPU in one step; row ``i`` of every column is kernel ``i``.

    Time 0 is the start of the step, and every kernel lies within ``[0, step_s]``. Columns are read-only.
    """

    rank: int
    world_size: int
    step_s: float
    start_s: Floats
    duration_s: Floats
    stream: Int32
    """7 for compute, 20 and up for communication."""
    name_id: Int32
    names: tuple[str, ...]
    is_comm: Bools
    collective: Int8
    """Index into ``COLLECTIVES``, or -1 where there is none or it is unknown."""
    group_id: Int16
    """Index into ``groups``, or -1."""
    groups: tuple[RankGroup, ...]
    message_bytes: Floats
    """Bytes of one full (gathered or unreduced) message; 0 for compute."""
    dtype_id: Int8
    """Index into ``dtypes``, or -1."""
    dtypes: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            column = np.array(getattr(self, name), dtype=dtype)
            if column.shape != (len(self.start_s),):
                raise ValueError(f"{name} has shape {column.shape}, start_s has {len(self.start_s)} rows")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not in a world of {self.world_size}")
        self._check_ids()
        self._check_times()

    def _check_ids(self) -> None:
        tables = (
            ("name_id", self.names, 0),
            ("collective", COLLECTIVES, -1),
            ("group_id", self.groups, -1),
            ("dtype_id", self.dtypes, -1),
        )
        for name, table, lowest in tables:
            column = getattr(self, name)
            if column.size and not lowest <= column.min() <= column.max() < len(table):
                raise ValueError(f"{name} has values outside {lowest}..{len(table) - 1}")

    def _check_times(self) -> None:
        if not np.isfinite(self.step_s) or self.step_s < 0:
            raise ValueError(f"step_s is {self.step_s}; it must be finite and not negative")
        if not len(self):
            return
        if not (np.isfinite(self.start_s).all() and np.isfinite(self.duration_s).all()):
            raise ValueError("a kernel has a start or duration that is not finite")
        if self.start_s.min() < 0 or self.duration_s.min() < 0:
            raise ValueError("a kernel has a negative start or duration")
        last_s = float(self.end_s.max())
        if last_s > self.step_s * (1 + _SLACK):
            raise ValueError(f"a kernel ends at {last_s} s, after the step of {self.step_s} s")

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def end_s(self) -> Floats:
        """When each kernel ends."""
        return self.start_s + self.duration_s


class EventLog:
    """Collects kernels in any order; ``freeze`` returns them as ``Events`` sorted by start."""

    __slots__ = ("_dtypes", "_groups", "_names", "_rows")

    def __init__(self) -> None:
        self._rows: list[tuple[float, float, int, int, bool, int, int, float, int]] = []
        self._names: dict[str, int] = {}
        self._groups: dict[RankGroup, int] = {}
        self._dtypes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def compute(self, name: str, start_s: float, duration_s: float) -> None:
        """Add one compute kernel."""
        name_id = self._names.setdefault(name, len(self._names))
        self._rows.append((start_s, duration_s, COMPUTE_STREAM, name_id, False, -1, -1, 0.0, -1))

    def comm(
        self,
        collective: str,
        group: RankGroup,
        start_s: float,
        duration_s: float,
        message_bytes: float,
        dtype: str = "bf16",
        stream: int = COMM_STREAM,
    ) -> None:
        """Add one communication kernel, named for its collective."""
        if collective not in COLLECTIVES:
            raise ValueError(f"{collective!r} is not a collective (known: {', '.join(COLLECTIVES)})")
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"{dtype!r} is not a type (known: {', '.join(DTYPE_BYTES)})")
        name_id = self._names.setdefault(collective, len(self._names))
        group_id = self._groups.setdefault(group, len(self._groups))
        dtype_id = self._dtypes.setdefault(dtype, len(self._dtypes))
        kind = COLLECTIVES.index(collective)
        self._rows.append((start_s, duration_s, stream, name_id, True, kind, group_id, message_bytes, dtype_id))

    def freeze(self, *, rank: int = 0, world_size: int = 1, step_s: float | None = None) -> Events:
        """The log as ``Events``. A step without ``step_s`` ends with its last kernel."""
        rows = sorted(self._rows, key=lambda row: row[0])
        values = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
        columns = {n: np.array(v, dtype=d) for (n, d), v in zip(_COLUMNS.items(), values, strict=True)}
        if step_s is None:
            step_s = float(np.max(columns["start_s"] + columns["duration_s"], initial=0.0))
        return Events(
            rank=rank,
            world_size=world_size,
            step_s=step_s,
            names=tuple(self._names),
            groups=tuple(self._groups),
            dtypes=tuple(self._dtypes),
            **columns,
        )


class Collective(NamedTuple):
    """A message as one rank issues it."""

    collective: str
    """all_gather, reduce_scatter, all_reduce, all_to_all, send or recv."""
    group: str
    """The mesh axes it runs over: dp_shard (with cp), dp_replicate, tp, cp, pp or world; of experts ep, etp, edp and
    edp_replicate."""
    group_size: int
    message_bytes: int
    """Of one full (gathered or unreduced) message, or all that a rank sends in an all-to-all."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One step of one rank."""

    stage: int
    rank: int
    product_flop: int
    """Matrix products of the linear maps."""
    attention_flop: int
    """Attention, the causal mask respected; its backward with the scores it computes again."""
    collectives: dict[Collective, int]
    """Calls of each, in the order of their first."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        collectives = [{**c._asdict(), "calls": n} for c, n in self.collectives.items()]
        return asdict(self) | {"collectives": collectives}


Times = NDArray[Any]
"""Seconds, or whole nanoseconds: what comes out has the unit that came in."""


def merge(start: Times, end: Times) -> tuple[Times, Times]:
    """Return the same set as sorted, disjoint intervals of positive length; those that touch become one."""
    start, end = np.asarray(start), np.asarray(end)
    if not np.all(end >= start):
        raise ValueError("an interval ends before it starts, or has no number as a time")
    positive = end > start
    start, end = start[positive], end[positive]
    if start.size == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    # A new interval begins where a start lies beyond everything that began before it.
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def covered(time: Times, start: Times, end: Times) -> Times:
    """Return how much of all time before each ``time`` lies in one of the disjoint, sorted intervals."""
    before = np.concatenate(([0], np.cumsum(end - start)))
    begun = np.searchsorted(start, time, side="right")
    inside = np.where(begun > 0, np.minimum(time, end[begun - 1]) - start[begun - 1], 0) if len(start) else 0 * time
    full: Times = before[np.maximum(begun - 1, 0)] + inside
    return full


def outside(a: tuple[Times, Times], b: tuple[Times, Times]) -> tuple[Times, Times]:
    """Intervals of A that lie in none of B."""
    (a_start, a_end), (b_start, b_end) = merge(*a), merge(*b)
    borders = np.unique(np.concatenate((a_start, a_end, b_start, b_end)))
    left, right = borders[:-1], borders[1:]

    def within(start: Times, end: Times) -> Times:
        return np.searchsorted(start, left, side="right") > np.searchsorted(end, left, side="right")

    kept = within(a_start, a_end) & ~within(b_start, b_end)
    return merge(left[kept], right[kept])
