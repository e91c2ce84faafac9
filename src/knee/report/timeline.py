"""The exposed stretches of every rank on one line each, to zoom into; whole and still without a script."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from knee.report.cells import UNKNOWN, cells, clipped_name, folded
from knee.report.html import Markup, join, tag
from knee.trace.analyse import RankAnalysis
from knee.trace.exposed import Exposed, exposed_intervals
from knee.units import show

MOST_SPANS = 2_000
"""Stretches that are drawn, the longest of all ranks together."""
IN_TABLE = 50
WIDE = 1_000.0
"""Width of the drawing; it is stretched to its place."""
KEYS = (("in", "Zoom in"), ("out", "Zoom out"), ("left", "← Earlier"), ("right", "Later →"), ("all", "All"),
        ("previous", "Previous stretch"), ("next", "Next longest stretch"))  # fmt: skip
POINT = "Point at a stretch, or press Next longest stretch, to read what ran in it."
HELP = (
    "Drag over a part to zoom into it; on a touch screen drag to move. Ctrl with the wheel zooms. With the keyboard, "
    "once the drawing has the focus: + and - zoom, the arrows move, 0 shows all, n and p go from the longest stretch "
    "to the shortest and back."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
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
    spans: tuple[Span, ...]
    """The longest first."""
    found: int
    """Stretches of all ranks that were given."""
    found_ns: int

    @property
    def drawn_ns(self) -> int:
        """Exposed time that is drawn."""
        return sum(span.length_ns for span in self.spans)


def timeline_of(ranks: Sequence[RankAnalysis], everyone: Sequence[RankAnalysis], most: int = MOST_SPANS) -> Timeline:
    """The drawing of ``ranks``, which may be some of ``everyone``."""
    begins = [rank.trace.columns.first_ns + rank.window.start_ns for rank in ranks]
    ends = [rank.trace.columns.first_ns + rank.window.end_ns for rank in ranks]
    one_clock = max(begins) < min(ends)
    zero = [min(begins) - rank.trace.columns.first_ns if one_clock else rank.window.start_ns for rank in ranks]
    lists = {rank.rank: exposed_intervals(rank.trace, rank.window) for rank in everyone}
    spans = (
        Span(row=row, start_ns=one.start_ns - zero[row], length_ns=_length(one), rank=rank, of=one.row)
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
    share = drawn.drawn_ns / drawn.found_ns
    if len(drawn.spans) == drawn.found:
        held = f"All {drawn.found:,} stretches of exposed communication are drawn."
    else:
        held = (f"The {len(drawn.spans):,} longest of {drawn.found:,} stretches of exposed communication are drawn: "
                f"{_percent(share)} of the exposed time.")  # fmt: skip
    clock = "Each rank begins at 0: their clocks have no time in common."
    if drawn.one_clock:
        clock = "Ranks stand where their own clocks put them." if len(drawn.ranks) > 1 else ""
    steps = any(part.step is not None for rank in drawn.ranks for part in rank.steps)
    lines = "Thin lines are where steps begin." if steps else ""
    return " ".join(part for part in (held, clock, lines) if part)


def _percent(share: float) -> str:
    """Never rounded up to all of it."""
    return f"{min(share, 0.999) if share < 1 else share:.1%}"


def draw(drawn: Timeline) -> Markup:
    """The drawing with its buttons, its script and the table of its longest stretches."""
    if not drawn.spans:
        return Markup("")
    high = 22 if len(drawn.ranks) <= 16 else 14
    tools = tag("div", *(tag("button", words, type="button", name_=name) for name, words in KEYS), raw=True,
                class_="tools", hidden=True, role="group", aria_label="Zoom and move")  # fmt: skip
    names = tag(
        "div",
        *(tag("span", f"rank {r.rank}", style=f"height:{high}px;line-height:{high}px") for r in drawn.ranks),
        raw=True, class_="ranks", aria_hidden="true",
    )  # fmt: skip
    plot = tag("div", _svg(drawn, high), tag("div", class_="box", hidden=True), raw=True, class_="plot", tabindex="0",
               role="group", aria_label="Timeline of exposed communication")  # fmt: skip
    kinds, numbers = _kinds(drawn)
    data = {
        "total": drawn.total_ns,
        "rows": [f"rank {rank.rank}" for rank in drawn.ranks],
        "kinds": kinds,
        "spans": [[span.row, number] for span, number in zip(drawn.spans, numbers, strict=True)],
    }
    body = tag("div", tools, names, plot, _axis(drawn), tag("output", POINT, aria_live="polite"),
               tag("p", HELP, class_="help"), tag("script", json_in_html(data), raw=True, type="application/json"),
               raw=True, class_="timeline")  # fmt: skip
    script = resources.files("knee.report").joinpath("timeline.js").read_text(encoding="utf-8")
    return join([body, folded(f"Table of the {min(IN_TABLE, len(drawn.spans))} longest stretches", _table(drawn)),
                 tag("script", script, raw=True)])  # fmt: skip


def json_in_html(data: Any) -> str:
    """JSON that no name can leave: a script element ends at the first ``</``, and ``<!--`` opens a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _svg(drawn: Timeline, high: int) -> Markup:
    scale = WIDE / max(drawn.total_ns, 1)
    shapes = []

    def shape(kind: str, row: int, at: int, length: int, inset: int) -> None:
        # numbers only, so nothing to escape; without a width nothing is drawn
        shapes.append(f'<rect class="{kind}" data-at="{at} {length}" x="{at * scale:.2f}" y="{row * high + inset}" '
                      f'width="{max(length * scale, 0.01):.2f}" height="{high - 2 * inset}"/>')  # fmt: skip

    for row, (rank, zero) in enumerate(zip(drawn.ranks, drawn.zero_ns, strict=True)):
        shape("window", row, rank.window.start_ns - zero, rank.window.end_ns - rank.window.start_ns, 1)
    for span in drawn.spans:
        shape("span", span.row, span.start_ns, span.length_ns, 3)
    for row, (rank, zero) in enumerate(zip(drawn.ranks, drawn.zero_ns, strict=True)):
        for part in rank.steps:
            if part.step is not None:
                shape("step", row, part.window.start_ns - zero, 0, 1)
    label = f"Exposed communication over time. {sentence(drawn)} The longest are in the table below."
    tall = high * len(drawn.ranks)
    return tag("svg", Markup("".join(shapes)), raw=True, viewBox=f"0 0 {WIDE:.0f} {tall}", height=str(tall),
               preserveAspectRatio="none", role="img", aria_label=label)  # fmt: skip


def _axis(drawn: Timeline) -> Markup:
    """Three ticks; a script makes them finer."""
    marks = (0.0, 1 / 3, 2 / 3)
    ticks = (tag("span", f"{drawn.total_ns * at / 1e6:,.1f} ms", style=f"left:{at:.2%}") for at in marks)
    return tag("div", *ticks, raw=True, class_="axis", aria_hidden="true")


def _what(span: Span) -> tuple[str, str, int | None, float | None, str]:
    """Collective, group, ranks of the group, bytes and kernel."""
    trace = span.rank.trace
    call = trace.calls.get(span.of)
    name = trace.columns.names[int(trace.columns.name_id[span.of])]
    group = call.group if call is not None else None
    return (
        (call.collective if call is not None else None) or UNKNOWN,
        group.name if group is not None else UNKNOWN,
        group.size if group is not None else None,
        (call.message_bytes if call is not None else 0.0) or None,
        name,
    )


def _kinds(drawn: Timeline) -> tuple[list[str], list[int]]:
    """What ran in each stretch in words, each once, and which of them each stretch is."""
    known: dict[str, int] = {}
    numbers = []
    for span in drawn.spans:
        collective, group, size, message, name = _what(span)
        ranks = f" of {size} ranks" if size is not None else ""
        moved = show(message, "bytes") if message else "unknown size"
        words = f"{collective}, group {group.removeprefix('group ')}{ranks}, {moved}, kernel {clipped_name(name)}"
        numbers.append(known.setdefault(words, len(known)))
    return list(known), numbers


def _table(drawn: Timeline) -> Markup:
    kinds = {"rank": "words", "at": "ms", "exposed": "ms", "collective": "words", "group": "words", "ranks": "count",
             "message": "bytes", "kernel": "name"}  # fmt: skip
    rows = [(span.rank.rank, span.start_ns / 1e9, span.length_ns / 1e9,
             *(None if word == UNKNOWN else word for word in _what(span)))
            for span in drawn.spans[:IN_TABLE]]  # fmt: skip
    return cells("The longest stretches of exposed communication, with the kernel that fills most of each", kinds, rows)
