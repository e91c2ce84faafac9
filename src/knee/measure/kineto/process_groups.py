"""Collectives and process groups as a trace names them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from knee.engine.events import DTYPE_BYTES, RankGroup
from knee.measure.kineto.decode import Args
from knee.measure.kineto.event_columns import whole

COALESCED = "coalesced"
"""Several calls as one. torch has this word alone where they are sends and receives, and at times for others."""
COLLECTIVE_NAMES = (
    ("reduce_scatter", "reducescatter"),
    ("all_gather", "allgather"),
    ("all_reduce", "allreduce"),
    ("broadcast", "broadcast"),
    ("all_to_all", "alltoall"),
    ("send_recv", "sendrecv"),
    ("send_recv", "send"),
    ("send_recv", "recv"),
    ("all_reduce", "crossdevicereduce"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send_recv", COALESCED),
)
"""Collective -> how its name begins or what it contains, underscores left out; the first that fits counts."""
ALIASES = {"default_pg": "world", "fsdp": "dp_shard", "dp": "dp_shard", "shards": "dp_shard", "copies": "dp_replicate"}
"""A group's description in torch, or knee's name of several axes together -> the axis it runs over."""
MOST_RANKS = 1 << 20
"""Of a job; a trace that says more is wrong."""
NAMELESS = ("undefined", "None", "")
UNKNOWN = "unknown"
DTYPES = {
    "Float": "fp32",
    "float": "fp32",
    "BFloat16": "bf16",
    "c10::BFloat16": "bf16",
    "Half": "fp16",
    "c10::Half": "fp16",
    "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8",
    "Byte": "uint8",
    "Char": "uint8",
    "Long": "int64",
    "long int": "int64",
    "Double": "int64",
    "Int": "fp32",
    "int": "fp32",
    "Bool": "uint8",
}
"""torch's word for a type -> ours, by its width."""
TORCH_DTYPES = {ours: torch for torch, ours in reversed(DTYPES.items())}
"""Our word for a type -> torch's; of several the first above."""
BUS_FACTORS = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "all_reduce": 2.0}
"""Collective -> how often (n - 1) / n of the message crosses a rank's link (nccl-tests' bus bandwidth)."""


class Call(NamedTuple):
    """One call of a collective."""

    collective: str | None
    group: RankGroup | None
    message_bytes: float
    """Of the whole message, all that is gathered or one rank's input of a reduction; 0 where it is not known."""
    dtype: str | None
    key: str = ""
    """What tells its group from others of the same job: the group's ranks, or its name in torch."""
    seq: int | None = None
    """Its number in the group, where the trace counts them."""
    ranks_known: bool = True
    """Whether the trace tells which ranks the group has; where it does not, those of ``group`` mean nothing."""


def collective_of(name: str) -> str | None:
    """Our word for a collective, by torch's name for it or by a kernel's."""
    plain = name.lower().replace("_", "")
    return next((ours for ours, word in COLLECTIVE_NAMES if word in plain), None)


def bus_bytes(collective: str | None, group_size: int | None, message_bytes: float) -> float | None:
    """Bytes that a rank's link carries for a message; None where that is not known."""
    if collective in ("send_recv", "broadcast", "reduce"):
        return message_bytes or None
    if not message_bytes or collective not in BUS_FACTORS or not group_size or group_size < 2:
        return None
    return BUS_FACTORS[collective] * message_bytes * (group_size - 1) / group_size


class ProcessGroups:
    """The process groups that a trace names."""

    def __init__(self, info: Mapping[str, Any], axes: Mapping[str, str] | None = None) -> None:
        """``axes`` renames groups: the world may be, say, the ``dp_shard`` axis."""
        self.renamed = ALIASES | dict(axes or {})
        self.world_size = whole(info.get("world_size"))
        self.known: dict[str, RankGroup] = {}
        self.described: dict[str, tuple[RankGroup | None, bool, str]] = {}
        entries = info.get("pg_config")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("ranks"), list):
                ranks = tuple(rank for rank in map(whole, entry["ranks"]) if rank is not None)
                if ranks and min(ranks) >= 0:
                    name = str(entry.get("pg_name"))
                    self.known[name] = group_of(*self.name(str(entry.get("pg_desc")), name), ranks)
        self.rank_texts = {id(group): _rank_text(group) for group in self.known.values()}
        self.widest: dict[str, RankGroup] = {}
        for group in self.known.values():
            if group.name not in self.widest or group.size > self.widest[group.name].size:
                self.widest[group.name] = group

    def name(self, description: str, torch_name: str = "") -> tuple[str, bool]:
        """The axis that a description stands for, and True; a group without one goes by its name in torch."""
        plain = description.removeprefix("mesh_")
        if plain in NAMELESS and torch_name:
            return f"group {torch_name}", False
        return self.renamed.get(plain, plain), True

    def of_args(self, args: Args) -> tuple[RankGroup | None, bool]:
        """The group of a NCCL kernel, and whether its ranks are known."""
        name, size = args.group, whole(args.group_size)
        if name is None and size is None:
            return None, True  # as in traces that say nothing of groups at all
        known = self.known.get(str(name))
        if known is not None and (size is None or known.size == size):
            return known, True
        ranks = _ranks(args.group_ranks)
        is_sized = size is not None and 1 <= size <= MOST_RANKS
        start, stride = whole(args.rank_start), whole(args.rank_stride) or 1
        if ranks and (size is None or len(ranks) == size):
            return group_of(*self._axis(args, len(ranks)), ranks), True
        if not is_sized or size is None:
            return None, False
        name, is_axis = self._axis(args, size)
        if start is not None and start >= 0 and stride >= 1:
            return RankGroup(name=name, is_axis=is_axis, size=size, first_rank=start, stride=stride), True
        # a group as large as the world has all of its ranks; which ranks a smaller one has, nothing tells
        return RankGroup(name=name, is_axis=is_axis, size=size), size == self.world_size

    def _axis(self, args: Args, size: int) -> tuple[str, bool]:
        if args.group is None and args.group_description is None:
            return self.name("default_pg") if size == self.world_size else (f"{UNKNOWN} (size {size})", True)
        return self.name(str(args.group_description or args.group), str(args.group))

    def call(self, args: Args, kernel: str) -> Call:
        """What a kernel with these arguments does."""
        group, ranks_known, key = self._described(args)
        named, of_kernel = collective_of(str(args.collective or "")), collective_of(kernel)
        dtype = DTYPES.get(str(args.dtype))
        elements = max(whole(args.in_elements) or 0, whole(args.out_elements) or 0)
        return Call(
            collective=of_kernel or named if args.collective == COALESCED else named or of_kernel,
            group=group,
            message_bytes=float(elements * DTYPE_BYTES[dtype]) if dtype else 0.0,
            dtype=dtype,
            key=key,
            seq=whole(args.seq),
            ranks_known=ranks_known,
        )

    def _described(self, args: Args) -> tuple[RankGroup | None, bool, str]:
        """Return the group, whether its ranks are known, and its key: once for all calls that describe it alike, since
        a thousand ranks are 4 kB of text in each."""
        description = repr(
            (args.group, args.group_description, args.group_ranks, args.group_size, args.rank_start, args.rank_stride)
        )
        if description not in self.described:
            group, ranks_known = self.of_args(args)
            key = self.key_of(args.group, group, ranks_known) if group is not None else ""
            self.described[description] = group, ranks_known, key
        return self.described[description]

    def on_axis(self, axis: str | None) -> RankGroup | None:
        """The group of this rank on an axis; of several, the one that spans another axis too."""
        return None if axis is None else self.widest.get(axis)

    def key_of(self, name: Any, group: RankGroup, ranks_known: bool) -> str:
        """What tells a group from others: its ranks, or all that there is."""
        ranks = (self.rank_texts.get(id(group)) or _rank_text(group)) if ranks_known else f"{group.size} ranks"
        return f"{name}/{ranks}"


def _rank_text(group: RankGroup) -> str:
    """List the ranks; those at equal distances as a range, since a few bytes of a trace may say a million of them."""
    if group.members:
        return ",".join(map(str, group.members))
    return f"{group.size} from {group.first_rank} by {group.stride if group.size > 1 else 1}"


def _ranks(text: Any) -> tuple[int, ...]:
    """``"[0, 1]"``; a list that was cut off with dots is not known."""
    try:
        ranks = text if isinstance(text, list) else json.loads(str(text))
    except (ValueError, RecursionError):
        return ()
    good = isinstance(ranks, list) and all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks)
    return tuple(ranks) if good else ()


def group_of(name: str, is_axis: bool, ranks: tuple[int, ...]) -> RankGroup:
    """A group by its ranks."""
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks) * stride, stride))
    return RankGroup(
        name=name,
        is_axis=is_axis,
        size=len(ranks),
        first_rank=ranks[0],
        stride=stride if even else 1,
        members=() if even else ranks,
    )
