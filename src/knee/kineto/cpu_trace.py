"""A processor's trace as columns: operators that compute and gloo's calls stand for a device's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from knee.kineto.event_columns import FURTHEST_NS, KERNEL, LaunchCall, RankTrace
from knee.kineto.event_stream import EventStream
from knee.kineto.gloo import args_asked, gloo_calls, host_compute, is_asked, settle
from knee.kineto.nested_spans import NestedSpan, span_of
from knee.kineto.process_groups import DTYPES, Call, ProcessGroups, collective_of
from knee.limits import LONGEST_TRACE_NS
from knee.record.events import COMM_STREAM, COMPUTE_STREAM, DTYPE_BYTES, RankGroup


def host_columns(trace: RankTrace) -> RankTrace:
    """Read the file once more, for what a processor did; ``trace`` is what the first reading found."""
    stream = EventStream(path=trace.path, all_args=True)
    found = (span_of(event, args_asked(event)) for events in stream.events() for event in events if is_asked(event))
    spans, first = _sane([span for span in found if span is not None], trace)
    rows: list[tuple[NestedSpan, LaunchCall | None]] = [(span, None) for span in host_compute(spans)]
    rows += gloo_calls(spans)
    rows.sort(key=lambda row: (row[0].start_ns, row[0].end_ns))
    names: dict[str, int] = {}
    ids = [names.setdefault(span.name, len(names)) for span, _ in rows]
    issued = {i: call for i, (_, call) in enumerate(rows) if call is not None}
    unknown = sum(call.operator is None for call in issued.values())
    notes = [
        f"{unknown} of {len(issued)} gloo calls could not be identified: the operator that issued them is "
        "missing from the trace"
    ]
    return replace(
        trace,
        first_ns=first,
        start_ns=np.array([span.start_ns - first for span, _ in rows], dtype=np.int64),
        end_ns=np.array([span.end_ns - first for span, _ in rows], dtype=np.int64),
        kind=np.full(len(rows), KERNEL),
        stream=np.array([COMPUTE_STREAM if call is None else COMM_STREAM for _, call in rows], dtype=np.int64),
        device=np.zeros(len(rows), dtype=np.int64),
        correlation=np.full(len(rows), -1),
        name_id=np.array(ids, dtype=np.int64),
        names=tuple(names),
        is_host=True,
        issued=issued,
        notes=(*trace.notes, *(notes if unknown else ())),
    )


def host_calls(columns: RankTrace, axes: Mapping[str, str] | None) -> dict[int, Call]:
    """What each of gloo's calls does, by row."""
    groups = ProcessGroups(columns.info, axes)
    settled = settle(list(columns.issued.values()), {group.name: group.size for group in groups.known.values()})
    return {row: _call(call, groups) for row, call in zip(columns.issued, settled, strict=True)}


def _sane(spans: list[NestedSpan], trace: RankTrace) -> tuple[list[NestedSpan], int]:
    """Spans without broken clocks, and the time from which all count: the steps' where there are any."""
    starts = sorted(span.start_ns for span in spans)
    middle = trace.first_ns if trace.steps or not starts else starts[len(starts) // 2]
    near = (span for span in spans if abs(span.start_ns - middle) < FURTHEST_NS)
    kept = [span for span in near if span.end_ns - span.start_ns < LONGEST_TRACE_NS]
    return kept, middle if trace.steps else min((span.start_ns for span in kept), default=middle)


def _call(call: LaunchCall, groups: ProcessGroups) -> Call:
    collective = collective_of(call.operator if call.operator is not None else call.name)
    group = groups.on_axis(call.axis)
    ranks_known = group is not None
    if group is None and call.axis is not None:
        world = groups.on_axis(groups.renamed.get("world", "world"))
        group = replace(world, name=call.axis) if world else RankGroup(name=call.axis, size=1)
        ranks_known = world is not None
    if group is not None and call.ranks not in (None, group.size):
        # several axes together
        group, ranks_known = RankGroup(name=group.name, size=call.ranks or 1), False
    dtype = DTYPES.get(call.dtype)
    elements = call.elements * (group.size if collective == "all_gather" and group and not call.full else 1)
    return Call(
        collective=collective,
        group=group,
        message_bytes=float(elements * DTYPE_BYTES[dtype]) if dtype else 0.0,
        dtype=dtype,
        key=groups.key_of(group.name, group, ranks_known) if group is not None else "",
        ranks_known=ranks_known,
    )
