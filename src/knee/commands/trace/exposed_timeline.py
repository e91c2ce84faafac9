"""The exposed stretches of every rank on one line each, to zoom into; whole and still without a script."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from knee.base.units import show
from knee.engine.events import RankGroup
from knee.measure.traces.analyse import RankAnalysis
from knee.measure.traces.device_time import Exposed, exposed_intervals
from knee.show.page.lanes import Lanes, LaneSpan, LaneStyle
from knee.show.page.page import Fold
from knee.show.page.tables import UNKNOWN, Table, clipped_name, kind_table

MOST_SPANS = 2_000
"""Stretches that are drawn, the longest of all ranks together."""
IN_TABLE = 50
POINT = "Point at a stretch, or press Next longest stretch, to read what ran in it."
STYLES = (LaneStyle(name="window", inset=1), LaneStyle(name="span", inset=3), LaneStyle(name="step", inset=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedInterval:
    """One drawn stretch."""

    row: int
    start_ns: int
    """On the drawing's axis."""
    length_ns: int
    rank: RankAnalysis
    of: int
    """The kernel's row in its trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What is drawn, and what of everything that is."""

    ranks: tuple[RankAnalysis, ...]
    zero_ns: tuple[int, ...]
    """Of each rank, the time in its own columns that is 0 on the axis."""
    total_ns: int
    one_clock: bool
    """Whether ranks stand where their clocks put them; otherwise each begins at 0."""
    spans: tuple[ExposedInterval, ...]
    """The longest first."""
    found: int
    """Stretches of all ranks that were given."""
    found_ns: int


def timeline_of(ranks: Sequence[RankAnalysis], everyone: Sequence[RankAnalysis], most: int = MOST_SPANS) -> Timeline:
    """The drawing of ``ranks``, which may be some of ``everyone``."""
    begins = [rank.trace.columns.first_ns + rank.window.start_ns for rank in ranks]
    ends = [rank.trace.columns.first_ns + rank.window.end_ns for rank in ranks]
    one_clock = max(begins) < min(ends)
    zero = [min(begins) - rank.trace.columns.first_ns if one_clock else rank.window.start_ns for rank in ranks]
    lists = {rank.rank: exposed_intervals(rank.trace, rank.window) for rank in everyone}
    spans = (
        ExposedInterval(row=row, start_ns=one.start_ns - zero[row], length_ns=_length(one), rank=rank, of=one.row)
        for row, rank in enumerate(ranks)
        for one in lists[rank.rank]
    )
    return Timeline(
        ranks=tuple(ranks),
        zero_ns=tuple(zero),
        total_ns=max(rank.window.end_ns - at for rank, at in zip(ranks, zero, strict=True)),
        one_clock=one_clock,
        spans=tuple(heapq.nsmallest(most, spans, key=lambda span: (-span.length_ns, span.row, span.start_ns))),
        found=sum(map(len, lists.values())),
        found_ns=sum(_length(one) for found in lists.values() for one in found),
    )


def _length(one: Exposed) -> int:
    return one.end_ns - one.start_ns


def sentence(drawn: Timeline) -> str:
    """What the drawing holds, and what it leaves out."""
    if not drawn.found:
        return "No communication was exposed in this window, so there is nothing to draw."
    share = sum(span.length_ns for span in drawn.spans) / drawn.found_ns
    share = min(share, 0.999) if share < 1 else share  # never rounded up to all of it
    if len(drawn.spans) == drawn.found:
        held = f"All {drawn.found:,} stretches of exposed communication are drawn."
    else:
        held = (
            f"The {len(drawn.spans):,} longest of {drawn.found:,} stretches of exposed communication are drawn: "
            f"{share:.1%} of the exposed time."
        )
    clock = "Each rank begins at 0: their clocks have no time in common."
    if drawn.one_clock:
        clock = "Ranks stand where their own clocks put them." if len(drawn.ranks) > 1 else ""
    steps = any(part.step is not None for rank in drawn.ranks for part in rank.steps)
    lines = "Thin lines are where steps begin." if steps else ""
    return " ".join(part for part in (held, clock, lines) if part)


def timeline_blocks(drawn: Timeline) -> tuple[Lanes | Fold, ...]:
    """The drawing and the table of its longest stretches; nothing where there are none."""
    if not drawn.spans:
        return ()
    shown = min(IN_TABLE, len(drawn.spans))
    return lanes_of(drawn), Fold(summary=f"Table of the {shown} longest stretches", blocks=(_table(drawn),))


def lanes_of(drawn: Timeline) -> Lanes:
    """A lane for each rank: its window, the stretches on it, and where its steps begin."""
    kinds, numbers = _kinds(drawn)
    spans = [
        LaneSpan(row=row, start=rank.window.start_ns - zero, length=rank.window.end_ns - rank.window.start_ns, style=0)
        for row, (rank, zero) in enumerate(zip(drawn.ranks, drawn.zero_ns, strict=True))
    ]
    first = len(spans)
    spans += [
        LaneSpan(row=span.row, start=span.start_ns, length=span.length_ns, style=1, kind=kind)
        for span, kind in zip(drawn.spans, numbers, strict=True)
    ]
    order = tuple(range(first, len(spans)))
    spans += [
        LaneSpan(row=row, start=part.window.start_ns - zero, length=0, style=2)
        for row, (rank, zero) in enumerate(zip(drawn.ranks, drawn.zero_ns, strict=True))
        for part in rank.steps
        if part.step is not None
    ]
    return Lanes(
        rows=tuple(f"rank {rank.rank}" for rank in drawn.ranks),
        total=drawn.total_ns,
        tick_ns=1,
        styles=STYLES,
        spans=tuple(spans),
        words=tuple(kinds),
        order=order,
        verb=" exposed",
        row_height=22 if len(drawn.ranks) <= 16 else 14,
        label=f"Exposed communication over time. {sentence(drawn)} The longest are in the table below.",
        hint=POINT,
    )


def _what(span: ExposedInterval) -> tuple[str, str, int | None, float | None, str]:
    """Collective, group, ranks of the group, bytes and kernel."""
    trace = span.rank.trace
    call = trace.calls.get(span.of)
    name = trace.columns.names[int(trace.columns.name_id[span.of])]
    group = _group(span)
    return (
        (call.collective if call is not None else None) or UNKNOWN,
        group.name if group is not None else UNKNOWN,
        group.size if group is not None else None,
        (call.message_bytes if call is not None else 0.0) or None,
        name,
    )


def _group(span: ExposedInterval) -> RankGroup | None:
    call = span.rank.trace.calls.get(span.of)
    return None if call is None else call.group


def _kinds(drawn: Timeline) -> tuple[list[str], list[int]]:
    """What ran in each stretch in words, each once, and which of them each stretch is."""
    known: dict[str, int] = {}
    numbers = []
    for span in drawn.spans:
        collective, group, size, message, name = _what(span)
        of = _group(span)
        where = group if of is not None and not of.is_axis else f"group {group}"
        ranks = f" of {size} ranks" if size is not None else ""
        moved = show(message, "bytes") if message else "unknown size"
        words = f"{collective}, {where}{ranks}, {moved}, kernel {clipped_name(name)}"
        numbers.append(known.setdefault(words, len(known)))
    return list(known), numbers


def _table(drawn: Timeline) -> Table:
    kinds = {
        "rank": "words",
        "at": "ms",
        "exposed": "ms",
        "collective": "words",
        "group": "words",
        "ranks": "count",
        "message": "bytes",
        "kernel": "name",
    }
    rows = [
        (
            span.rank.rank,
            span.start_ns / 1e9,
            span.length_ns / 1e9,
            *(None if word == UNKNOWN else word for word in _what(span)),
        )
        for span in drawn.spans[:IN_TABLE]
    ]
    caption = "The longest stretches of exposed communication, with the kernel that fills most of each"
    return kind_table(caption, kinds, rows)
