"""One rank's trace as columns: kernels, copies, launches and steps, in whole nanoseconds from the first of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from knee.base.arrays import ByValue
from knee.base.errors import InputError
from knee.base.limits import MOST_KERNELS
from knee.measure.kineto.decode import Args

Int64 = npt.NDArray[np.int64]
KERNEL, COPY, FILL = range(3)
DEVICE_KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
FURTHEST_NS = 1 << 61
"""Beyond any trace: what lies so far from the first event has a broken clock."""
RANK_IN_NAME = (
    re.compile(r"(?<!node)(?<!node[-_])rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE),
    re.compile(r"worker[-_]?(\d{1,9})(?!\d)", re.IGNORECASE),
)
"""The first that fits counts: a worker may have several ranks, and a node's rank is no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A profiler step, as the host ran it."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was read, and what of it has no place in the columns."""

    events: int = 0
    without_duration: int = 0
    """Device events with no duration, or no time."""
    clock_anomalies: int = 0
    """Device events with a negative duration, or a time beyond reason."""
    repairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTrace(ByValue):
    """What the device of one rank did. Row ``i`` of every column is event ``i``; they are sorted by start."""

    path: Path
    rank: int
    rank_known: bool
    """Whether the trace or its file's name says the rank."""
    world_size: int | None
    device_name: str | None
    info: dict[str, Any]
    """The trace's distributedInfo."""
    knee: dict[str, Any]
    """What knee wrote into the head: of a simulated trace, and of one that ``--perfetto`` made."""
    start_ns: Int64
    """From ``first_ns`` on."""
    end_ns: Int64
    kind: Int64
    """KERNEL, COPY or FILL."""
    stream: Int64
    device: Int64
    correlation: Int64
    """-1 where it has none."""
    name_id: Int64
    names: tuple[str, ...]
    args: dict[int, Args]
    """Arguments of kernels that have a collective, by row."""
    launch_correlation: Int64
    """Sorted."""
    launch_ns: Int64
    """When the host launched, in the order of ``launch_correlation``."""
    steps: tuple[Step, ...]
    first_ns: int
    """The file's own time of the first event, and base of all others."""
    counts: Counts
    cut: str | None = None
    is_host: bool = False
    """A processor's trace: operators and gloo's calls instead of kernels."""
    issued: dict[int, LaunchCall] = field(default_factory=dict)
    """gloo's calls of a processor's trace, by row."""
    notes: tuple[str, ...] = field(default=())

    @property
    def is_simulated(self) -> bool:
        """Whether knee's simulator wrote it."""
        return bool(self.knee.get("simulated"))

    @property
    def simulated_step_ns(self) -> tuple[int, int] | None:
        """When the step of a simulated trace begins and ends on the device; None where its head does not say."""
        match self.knee:
            case {"simulated": True, "step_ns": [int(start), int(end)]} if -FURTHEST_NS < start <= end < FURTHEST_NS:
                return start - self.first_ns, end - self.first_ns
        return None

    def __len__(self) -> int:
        return len(self.start_ns)


def of_gpu(columns: RankTrace) -> bool:
    """Whether a trace without kernels is a GPU's all the same: something was launched, or the file ends too early."""
    named = columns.device_name is not None or "nccl" in str(columns.info.get("backend"))
    return bool(len(columns.launch_correlation)) or (columns.cut is not None and named)


def rank_of(path: Path, info: dict[str, Any]) -> int | None:
    """From the trace, or else from its file's name; None where neither says it."""
    rank = whole(info.get("rank"))
    if rank is None:
        found = next((match for pattern in RANK_IN_NAME if (match := pattern.search(path.name))), None)
        rank = int(found.group(1)) if found else None
    return None if rank is None else max(0, rank)


def whole(value: Any) -> int | None:
    """A whole number, also where it is written as text; None for anything else."""
    if type(value) is not int:
        try:
            value = int(float(value) if isinstance(value, str) and "." in value else value)
        except (TypeError, ValueError, OverflowError):
            return None
    number: int = value
    return number if -FURTHEST_NS < number < FURTHEST_NS else None


class LaunchCall(NamedTuple):
    """One call of gloo, and who issued it."""

    name: str
    thread: str
    """The one that ran it."""
    operator: str | None
    axis: str | None
    elements: int
    """Of the largest tensor that the operator had, or else of gloo's."""
    full: bool
    """Whether that is the whole message, not a rank's part."""
    dtype: str
    ranks: int | None
    """Ranks of the group, where the operator's tensors tell: what it gathers over what a rank has."""


def check_kernels(count: int) -> None:
    """Refuse more rows than memory is meant for."""
    if count > MOST_KERNELS:
        raise InputError(
            f"the trace has more than {MOST_KERNELS:,} kernels, copies and launches, which is the most that "
            "knee keeps in memory",
            hint="give fewer ranks, or trace fewer steps (torch.profiler.schedule)",
            code="too-large",
        )
