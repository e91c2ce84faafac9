"""Reads a Kineto trace, of ``torch.profiler`` or of ``write_kineto``, into events that ``knee.metrics`` measures.

A trace of GPUs has kernels; NCCL's carry the collective, the group and the sizes as arguments, which are trusted, while
their names are not. A trace of processors has operators; gloo's annotations do not say who issued them, so that
``knee.record.gloo`` finds the operator that did. Times are whole nanoseconds made from the file's text: as a float64,
microseconds since 1970 are no longer exact.

Nothing is left out silently: what is in no load is counted in ``Trace.notes``.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from knee.errors import InputError
from knee.record.events import COLLECTIVES, COMM_STREAM, COMPUTE_STREAM, DTYPE_BYTES, Events, Group
from knee.record.gloo import Issued, gloo_calls, host_compute, settle
from knee.record.spans import Span, spans_of

NCCL = re.compile(r"nccl|rccl", re.IGNORECASE)
STEP = re.compile(r"ProfilerStep#\d+")
DTYPES = {"Float": "fp32", "float": "fp32", "BFloat16": "bf16", "c10::BFloat16": "bf16", "Half": "fp16",
          "c10::Half": "fp16", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "Byte": "uint8", "Char": "uint8",
          "Long": "int64", "long int": "int64", "Int": "fp32", "int": "fp32"}
"""torch's word for a type -> ours, by its width."""
WORDS = (("reduce_scatter", "reducescatter"), ("all_gather", "allgather"), ("all_reduce", "allreduce"),
         ("broadcast", "broadcast"), ("all_to_all", "alltoall"), ("send_recv", "sendrecv"), ("send_recv", "send"),
         ("send_recv", "recv"), ("send_recv", "coalesced"))
"""Collective -> how its name begins or what it contains, underscores left out; the first that fits counts."""
ALIASES = {"default_pg": "world", "fsdp": "dp_shard", "dp": "dp_shard", "shards": "dp_shard", "copies": "dp_replicate"}
"""A group's description in torch, or knee's name of several axes together -> the axis it runs over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One rank's trace."""

    events: Events
    """Kernels of all traced steps, one after another; ``events.step_s`` is the whole window."""
    steps: int
    """Steps of the window."""
    device: Literal["cuda", "cpu"]
    device_name: str | None
    copies_s: float
    """Summed time of memory copies and fills, which are in no load."""
    notes: tuple[str, ...] = ()


class Row(NamedTuple):
    """One kernel, in whole nanoseconds."""

    start_ns: int
    end_ns: int
    stream: int
    name: str
    is_comm: bool = False
    collective: str | None = None
    group: Group | None = None
    message_bytes: float = 0.0
    dtype: str | None = None


def read_kineto(path: str | Path, *, axes: Mapping[str, str] | None = None) -> Trace:
    """Read a ``.json`` or ``.json.gz`` trace. ``axes`` renames groups: the world may be, say, the ``dp_shard`` axis."""
    path = Path(path)
    document = _document(path)
    info = document.get("distributedInfo") or {}
    renamed = ALIASES | dict(axes or {})
    spans = spans_of(document["traceEvents"])
    groups = _Groups(info, renamed)
    steps = [span for span in spans if span.category == "user_annotation" and STEP.fullmatch(span.name)]
    kernels = [span for span in spans if span.category == "kernel"]
    copies = [span for span in spans if span.category in ("gpu_memcpy", "gpu_memset")]
    if kernels:
        rows = [_kernel(span, groups) for span in kernels]
        notes = _device_notes(spans, kernels, copies)
    else:
        rows, notes = _host_rows(spans, groups, steps)
    if not rows:
        raise InputError(f"{path}: there is no kernel and no operator in this trace")
    rank = int(info.get("rank", 0))
    events, count = _events(rows, _busy_steps(steps, rows, spans), rank, int(info.get("world_size", rank + 1)))
    devices = document.get("deviceProperties") or [{}]
    return Trace(events=events, steps=count, device="cuda" if kernels else "cpu", device_name=devices[0].get("name"),
                 copies_s=sum(span.end_ns - span.start_ns for span in copies) / 1e9, notes=tuple(notes))


def _document(path: Path) -> dict[str, Any]:
    """The file's JSON, with its fractional numbers as text."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        document = json.loads(data, parse_float=str)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a whole JSON file", hint="was the run ended while the trace was written?"
                         ) from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(f"{path} is not a Kineto trace: it has no traceEvents")
    return document


class _Groups:
    """The process groups that a trace names."""

    def __init__(self, info: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
        self.renamed = renamed
        self.known: dict[str, Group] = {}
        for entry in info.get("pg_config") or ():
            if isinstance(entry, dict) and entry.get("ranks"):
                ranks = tuple(int(rank) for rank in entry["ranks"])
                self.known[str(entry.get("pg_name"))] = _group(self.name(str(entry.get("pg_desc"))), ranks)

    def name(self, description: str) -> str:
        """The axis that a description stands for."""
        plain = description.removeprefix("mesh_")
        return self.renamed.get(plain, plain)

    def of_args(self, args: Mapping[str, Any]) -> Group | None:
        """The group of a NCCL kernel."""
        name, size = args.get("Process Group Name"), args.get("Group size")
        if name is None and size is None:
            return None
        known = self.known.get(str(name))
        if known is not None and (size is None or known.size == int(size)):
            return known
        axis = self.name(str(args.get("Process Group Description") or name))
        start, stride = int(args.get("Global rank start", 0)), int(args.get("Global rank stride", 1))
        ranks = _ranks(args.get("Process Group Ranks"))
        if size is None or len(ranks) == int(size):
            return _group(axis, ranks) if ranks else None
        return Group(name=axis, size=int(size), first_rank=max(0, start), stride=max(1, stride))

    def on_axis(self, axis: str | None) -> Group | None:
        """The group of this rank on an axis; of several, the one that spans another axis too."""
        return max((group for group in self.known.values() if group.name == axis), key=lambda g: g.size, default=None)


def _ranks(text: Any) -> tuple[int, ...]:
    """``"[0, 1]"``; a list that was cut off with dots is not known."""
    try:
        found = ast.literal_eval(str(text))
    except (ValueError, SyntaxError):
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(rank, int) for rank in found) else ()


def _group(name: str, ranks: tuple[int, ...]) -> Group:
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    even = stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks) * stride, stride))
    return Group(name=name, size=len(ranks), first_rank=ranks[0], stride=stride if even else 1,
                 members=() if even else ranks)


def _kernel(span: Span, groups: _Groups) -> Row:
    stream = int(span.args.get("stream", span.track[1]))
    if not NCCL.search(span.name):
        return Row(span.start_ns, span.end_ns, stream, span.name)
    args = span.args
    collective = collective_of(str(args.get("Collective name", ""))) or collective_of(span.name)
    dtype = DTYPES.get(str(args.get("dtype")))
    elements = max(int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0)))
    return Row(span.start_ns, span.end_ns, stream, span.name, True, collective, groups.of_args(args),
               elements * DTYPE_BYTES[dtype] if dtype else 0.0, dtype)


def collective_of(name: str) -> str | None:
    """Our word for a collective, by torch's name for it or by a kernel's."""
    plain = name.lower().replace("_", "")
    return next((ours for ours, word in WORDS if word in plain), None)


def _host_rows(spans: list[Span], groups: _Groups, steps: list[Span]) -> tuple[list[Row], list[str]]:
    """Operators of a processor and gloo's calls, inside the steps where there are any."""
    rows = [Row(span.start_ns, span.end_ns, COMPUTE_STREAM, span.name) for span in host_compute(spans)]
    calls = settle(gloo_calls(spans), {group.name: group.size for group in groups.known.values()})
    rows += [_gloo_row(call, groups) for call in calls]
    notes = []
    unknown = sum(call.operator is None for call in calls)
    if unknown:
        notes.append(f"{unknown} of {len(calls)} gloo calls: the operator that issued them is not in the trace")
    if steps:
        begin, end = min(s.start_ns for s in steps), max(s.end_ns for s in steps)
        inside = [row for row in rows if row.end_ns > begin and row.start_ns < end]
        if len(inside) < len(rows):
            notes.append(f"{len(rows) - len(inside)} operators outside the steps are left out")
        rows = inside
    return rows, notes


def _gloo_row(call: Issued, groups: _Groups) -> Row:
    collective = collective_of(call.operator.name if call.operator is not None else call.call.name)
    group = groups.on_axis(call.axis)
    if group is None and call.axis is not None:
        group = groups.on_axis(groups.renamed.get("world", "world"))
        group = Group(name=call.axis, size=group.size if group else 1)
    if group is not None and call.ranks not in (None, group.size):
        group = Group(name=group.name, size=call.ranks or 1)  # several axes together
    dtype = DTYPES.get(call.dtype)
    elements = call.elements * (group.size if collective == "all_gather" and group and not call.full else 1)
    return Row(call.call.start_ns, call.call.end_ns, COMM_STREAM, call.call.name, True, collective, group,
               float(elements * DTYPE_BYTES[dtype]) if dtype else 0.0, dtype)


def _busy_steps(steps: list[Span], rows: list[Row], spans: list[Span]) -> list[Span]:
    """Steps in which something was launched: traces end with an empty one."""
    launches = np.sort([s.start_ns for s in spans if s.category in ("cuda_runtime", "cuda_driver", "cpu_op")]
                       or [row.start_ns for row in rows])
    begin = np.searchsorted(launches, [step.start_ns for step in steps])
    end = np.searchsorted(launches, [step.end_ns for step in steps])
    return [step for step, first, last in zip(steps, begin, end, strict=True) if last > first]


def _events(rows: list[Row], steps: list[Span], rank: int, world_size: int) -> tuple[Events, int]:
    """Rows as columns. The window is as long as the steps, and longer where the device finished after the host."""
    rows.sort(key=lambda row: row.start_ns)
    first, last = rows[0].start_ns, max(row.end_ns for row in rows)
    length = sum(step.end_ns - step.start_ns for step in steps)
    begin = min([first, *([max(steps[0].start_ns, last - length)] if steps else [])])
    window = max(length, last - begin)
    names, groups, dtypes = (_numbered(values) for values in (
        (row.name for row in rows), (row.group for row in rows if row.group),
        (row.dtype for row in rows if row.dtype)))
    events = Events(
        rank=rank,
        world_size=max(world_size, rank + 1),
        step_s=window / 1e9,
        start_s=np.array([row.start_ns - begin for row in rows]) / 1e9,
        duration_s=np.array([row.end_ns - row.start_ns for row in rows]) / 1e9,
        stream=np.array([row.stream for row in rows], dtype=np.int32),
        name_id=np.array([names[row.name] for row in rows], dtype=np.int32),
        names=tuple(names),
        is_comm=np.array([row.is_comm for row in rows]),
        collective=np.array([COLLECTIVES.index(row.collective) if row.collective else -1 for row in rows], np.int8),
        group_id=np.array([groups[row.group] if row.group else -1 for row in rows], np.int16),
        groups=tuple(groups),
        message_bytes=np.array([row.message_bytes for row in rows]),
        dtype_id=np.array([dtypes[row.dtype] if row.dtype else -1 for row in rows], np.int8),
        dtypes=tuple(dtypes),
    )
    return events, max(1, len(steps))


def _numbered(values: Iterable[Any]) -> dict[Any, int]:
    """Distinct values in order, with their number."""
    found: dict[Any, int] = {}
    for value in values:
        found.setdefault(value, len(found))
    return found


def _device_notes(spans: list[Span], kernels: list[Span], copies: list[Span]) -> list[str]:
    notes = []
    launched = {s.args.get("correlation") for s in spans if s.category in ("cuda_runtime", "cuda_driver")}
    orphans = sum(span.args.get("correlation") not in launched for span in kernels)
    if orphans:
        notes.append(f"{orphans} of {len(kernels)} kernels were launched before the trace began; they are counted")
    if copies:
        notes.append(f"{len(copies)} memory copies and fills are in no load")
    devices = {span.args.get("device", span.track[0]) for span in kernels}
    if len(devices) > 1:
        notes.append(f"kernels of {len(devices)} GPUs are taken together")
    return notes
