"""The page of ``knee trace``: where the time of a job went, in words, charts and tables."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from knee.base.units import show
from knee.commands.trace import charts
from knee.engine.events import RankGroup
from knee.measure.kineto.trace_files import left_out_sentences
from knee.measure.traces.analyse import Analysis, RankAnalysis
from knee.measure.traces.device_time import (
    UNKNOWN,
    CollectiveLoad,
    Exposed,
    KernelLoad,
    Times,
    class_loads,
    exposed_intervals,
    mean_times,
)
from knee.show.figures.vega import to_svg
from knee.show.page.lanes import Lanes, LaneSpan, LaneStyle
from knee.show.page.page import Block, Bullets, Chart, Fold, Key, Page, Section, render_page
from knee.show.page.tables import Table, clipped_name, kind_table
from knee.specs.metrics import METRICS

MOST_BARS = 64
"""Ranks or steps that a chart has room for."""
MOST_ROWS = 400
"""Rows of a table; --json has all."""
LONGEST, IN_THE_OPEN = 40, 12
"""Kernels that are named, and how many of them without opening anything."""
READ = {
    "events": "events",
    "kernels": "kernels",
    "copies": "copies",
    "without launch": "without_launch",
    "overlaps on a stream": "same_stream_overlaps",
    "communication as compute": "communication_as_compute",
    "clock anomalies": "clock_anomalies",
    "without duration": "without_duration",
    "GPUs": "devices",
}
"""Column -> the count of a rank's audit that it has."""
TIMES = {
    "window": "ms",
    **{METRICS[name].label: "ms" for name in charts.BREAKDOWN},
    "of exposed: bubble": "ms",
    "compute share": "share",
    "exposed share": "share",
    "idle share": "share",
}
COLLECTIVES = {
    "collective": ("words", "collective"),
    "group": ("words", "group"),
    "ranks": ("count", "group_size"),
    "message": ("bytes", "message_bytes"),
    "calls": ("count", "calls"),
    "load": ("ms", "load_s"),
    "exposed": ("ms", "exposed_s"),
    "median time": ("us", "median_s"),
    "bus bandwidth": ("rate", "bus_bytes_per_s"),
}
"""Column -> its kind, and the field of a ``CollectiveLoad`` that it has."""
COLLECTIVE_KINDS = {column: kind for column, (kind, _) in COLLECTIVES.items()}
ACROSS = "Of a call that several ranks show, the shortest is the transfer; what others last beyond it is waiting."


# The exposed stretches of every rank on one line each, to zoom into; whole and still without a script.

MOST_SPANS = 2_000
"""Stretches that are drawn, the longest of all ranks together."""
LONGEST_IN_TABLE = 50
POINT = "Point at a stretch, or press Next longest stretch, to read what ran in it."
LANE_STYLES = (LaneStyle(name="window", inset=1), LaneStyle(name="span", inset=3), LaneStyle(name="step", inset=1))


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
    shown = min(LONGEST_IN_TABLE, len(drawn.spans))
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
        styles=LANE_STYLES,
        spans=tuple(spans),
        words=tuple(kinds),
        order=order,
        verb=" exposed",
        row_height=22 if len(drawn.ranks) <= 16 else 14,
        label=f"Exposed communication over time. {sentence(drawn)} The longest are in the table below.",
        hint=POINT,
    )


def _what(span: ExposedInterval) -> tuple[str | None, RankGroup | None, float | None, str]:
    """Collective, group, bytes and kernel of a stretch; None for what the trace does not say."""
    trace = span.rank.trace
    call, name = trace.calls.get(span.of), trace.columns.names[int(trace.columns.name_id[span.of])]
    return (None, None, None, name) if call is None else (call.collective, call.group, call.message_bytes, name)


def _kinds(drawn: Timeline) -> tuple[list[str], list[int]]:
    """What ran in each stretch in words, each once, and which of them each stretch is."""
    known: dict[str, int] = {}
    numbers = []
    for span in drawn.spans:
        collective, group, message, name = _what(span)
        where = f"group {UNKNOWN}"
        if group is not None:
            where = f"{'group ' if group.is_axis else ''}{group.name} of {group.size} ranks"
        moved = show(message, "bytes") if message else "unknown size"
        words = f"{collective or UNKNOWN}, {where}, {moved}, kernel {clipped_name(name)}"
        numbers.append(known.setdefault(words, len(known)))
    return list(known), numbers


def _table(drawn: Timeline) -> Table:
    kinds = {"rank": "words", "at": "ms", "exposed": "ms", "collective": "words", "group": "words", "ranks": "count"}
    kinds |= {"message": "bytes", "kernel": "name"}
    rows = []
    for span in drawn.spans[:LONGEST_IN_TABLE]:
        collective, group, message, name = _what(span)
        words = (None if word == UNKNOWN else word for word in (collective or None, group and group.name))
        times = (span.rank.rank, span.start_ns / 1e9, span.length_ns / 1e9)
        rows.append((*times, *words, group and group.size, message or None, name))
    caption = "The longest stretches of exposed communication, with the kernel that fills most of each"
    return kind_table(caption, kinds, rows)


def breakdown(analysis: Analysis) -> Section:
    """Bars by rank and by step."""
    some = most_exposed(analysis.ranks)
    charts = [_by_rank(analysis.ranks, some)]
    if analysis.steps:
        charts.append(_by_step(analysis))
    return Section(
        id="breakdown",
        title="Where the time went",
        says="The upper bar of each pair is the window, or the step; the lower, dashed one is communication that hides "
        "beside its compute." + ("" if analysis.steps else " The trace has no profiler steps."),
        charts=tuple(charts),
    )


def most_exposed(ranks: Sequence[RankAnalysis]) -> list[RankAnalysis]:
    """Those that are drawn: all, or the ones with the most exposed communication, by rank."""
    worst = sorted(ranks, key=lambda rank: -rank.times.exposed_comm_s)[:MOST_BARS]
    return sorted(worst, key=lambda rank: rank.rank)


def _drawn(drawn_count: int, count: int, what: str) -> str:
    return "" if drawn_count == count else f" Drawn are {drawn_count} of {count:,} {what}; the table has more."


def _by_rank(ranks: Sequence[RankAnalysis], some: Sequence[RankAnalysis]) -> Chart:
    rows = [(rank.rank, *_times(rank.times)) for rank in ranks]
    spec = charts.breakdown({str(rank.rank): rank.times for rank in some}, title="rank")
    return Chart(
        id="by-rank",
        title="By rank",
        caption="The whole window of each rank." + _drawn(len(some), len(ranks), "ranks, the most exposed"),
        svg=to_svg(spec),
        tables=(_capped("Times of each rank's window", {"rank": "words"} | TIMES, rows),),
    )


def _by_step(analysis: Analysis) -> Chart:
    parts: dict[str, list[Times]] = {}
    ordered = sorted(
        ((part.step, part.times) for rank in analysis.ranks for part in rank.steps),
        key=lambda pair: -1 if pair[0] is None else pair[0],
    )
    for step, times in ordered:
        parts.setdefault("before" if step is None else str(step), []).append(times)
    means = {name: mean_times(times) for name, times in parts.items()}
    some = dict(list(means.items())[:MOST_BARS])
    rows = [
        (rank.rank, "before" if part.step is None else part.step, *_times(part.times))
        for rank in analysis.ranks
        for part in rank.steps
    ]
    before = " “before” is what lies before the first step." if "before" in means else ""
    mean = "Mean over the ranks that have the step." if len(analysis.ranks) > 1 else "Each step of the rank."
    return Chart(
        id="by-step",
        title="By step",
        caption=mean + before + _drawn(len(some), len(means), "steps, the first"),
        svg=to_svg(charts.breakdown(some, title="step")),
        tables=(_capped("Times of each rank's steps", {"rank": "words", "step": "words"} | TIMES, rows),),
    )


def _times(t: Times) -> tuple[float | None, ...]:
    whole = t.window_s or None
    shares = [value / whole if whole else None for value in (t.compute_s, t.exposed_comm_s, t.idle_s)]
    return (t.window_s, *(getattr(t, name) for name in charts.BREAKDOWN), t.bubble_s, *shares)


def _capped(caption: str, kinds: dict[str, str], rows: Sequence[Sequence[Any]], most: int = MOST_ROWS) -> Table:
    more = "" if len(rows) <= most else f"; the first {most:,} of {len(rows):,} rows, --json has all"
    return kind_table(caption + more, kinds, rows[:most])


def collectives(analysis: Analysis) -> Section:
    """Communication by collective, group and size."""
    ranks = analysis.ranks
    blocks: tuple[Block, ...] = ()
    says = "No communication was found in the window."
    if any(rank.collectives for rank in ranks):
        each = [(rank.rank, *_collective(load)) for rank in ranks for load in rank.collectives]
        if len(ranks) > 1:
            says = "Calls, load and exposed time are means over ranks; times and bandwidths are medians of the ranks'."
            every = _capped("Communication of each rank", {"rank": "words"} | COLLECTIVE_KINDS, each)
            blocks = (
                _capped(
                    "Communication, mean over ranks, largest load first", COLLECTIVE_KINDS, _mean_collectives(ranks)
                ),
                Fold(summary="Table of each rank's communication", blocks=(every,)),
            )
        else:
            says = "By collective, group and size of message."
            rows = [row[1:] for row in each]
            blocks = (_capped("Communication, largest load first", COLLECTIVE_KINDS, rows),)
    return Section(id="collectives", title="Collectives", says=says, blocks=blocks)


def _collective(load: CollectiveLoad) -> tuple[Any, ...]:
    values = (getattr(load, field) for _, field in COLLECTIVES.values())
    return tuple(None if value == UNKNOWN else value for value in values)


def _mean_collectives(ranks: Sequence[RankAnalysis]) -> list[tuple[Any, ...]]:
    kinds: dict[tuple[Any, ...], list[CollectiveLoad]] = {}
    for rank in ranks:
        for load in rank.collectives:
            kinds.setdefault(_collective(load)[:4], []).append(load)
    rows = []
    for kind, loads in kinds.items():
        rates = [load.bus_bytes_per_s for load in loads if load.bus_bytes_per_s is not None]
        sums = (sum(getattr(load, name) for load in loads) / len(ranks) for name in ("calls", "load_s", "exposed_s"))
        middle = median(load.median_s for load in loads)
        rows.append((*kind, *sums, middle, median(rates) if rates else None))
    return sorted(rows, key=lambda row: -row[5])


def waiting(analysis: Analysis) -> Section:
    """Transfer against waiting, and who was waited for."""
    ranks = analysis.across.ranks
    some = sorted(sorted(ranks, key=lambda r: -(r.waiting_s + r.waited_for_s))[:MOST_BARS], key=lambda r: r.rank)
    kinds = {
        "rank": "words",
        "transfer": "ms",
        "waiting": "ms",
        "others waited for it": "ms",
        "entered last": "count",
        "calls matched": "count",
        "calls on this rank only": "count",
        "calls of unknown ranks": "count",
    }
    rows = [
        (r.rank, r.transfer_s, r.waiting_s, r.waited_for_s, r.last_arrivals, r.matched, r.unmatched, r.unnamed)
        for r in ranks
    ]
    slow = analysis.across.straggler
    chart = Chart(
        id="waiting-by-rank",
        title="Transfer and waiting by rank",
        caption="Of calls that were found on more than one rank." + _drawn(len(some), len(ranks), "ranks"),
        svg=to_svg(charts.waiting(some)),
        tables=(),
    )
    return Section(
        id="waiting",
        title="Transfer and waiting",
        says=ACROSS + (f" The others waited most for rank {slow.rank}." if slow is not None else ""),
        charts=(chart,),
        blocks=(_capped("Transfer, waiting, and who was waited for", kinds, rows),),
    )


def kernels(analysis: Analysis) -> Section:
    """Kernels by class and by name."""
    count = len(analysis.ranks)
    kernels = _mean_kernels(analysis.ranks)
    by_class = class_loads(kernels)
    total = sum(kernel.load_s for kernel in kernels)
    mean = ", mean over ranks" if count > 1 else ""
    kinds = {"class": "words", "kind": "words", "calls": "count", "load": "ms", "share of kernel time": "share"}
    rows = [
        (load.name.replace("_", " "), _kind(load), load.calls / count, load.load_s / count, _share(load, total))
        for load in by_class
    ]
    chart = Chart(
        id="by-class",
        title="Kernel time by class",
        caption=f"Summed kernel time{mean}, with its share of all kernel time.",
        svg=to_svg(charts.classes([replace(load, load_s=load.load_s / count) for load in by_class[:MOST_BARS]])),
        tables=(kind_table(f"Kernel time by class{mean}", kinds, rows),),
    )
    named = {"kernel": "name", "class": "words", "calls": "count", "load": "ms", "share": "share", "mean time": "us"}
    longest = [
        (
            k.name,
            k.kernel_class.replace("_", " "),
            k.calls / count,
            k.load_s / count,
            _share(k, total),
            k.load_s / k.calls if k.calls else None,
        )
        for k in kernels[:LONGEST]
    ]
    open_to = min(IN_THE_OPEN, len(longest))
    which = f"The {open_to} of {len(kernels):,} kernels that took most" if len(kernels) > open_to else "All kernels"
    blocks: list[Block] = [kind_table(which + mean, named, longest[:open_to])]
    if rest := longest[open_to:]:
        table = kind_table("Kernels that took less", named, rest)
        blocks.append(Fold(summary=f"Table of the next {len(rest)}", blocks=(table,)))
    return Section(
        id="kernels",
        title="Kernels",
        says=f"What the time was spent on, by class and by name{mean}.",
        charts=(chart,),
        blocks=tuple(blocks),
    )


def _kind(load: KernelLoad) -> str:
    return "communication" if load.communication else "compute"


def _share(load: KernelLoad, total: float) -> float | None:
    return load.load_s / total if total else None


def _mean_kernels(ranks: Sequence[RankAnalysis]) -> list[KernelLoad]:
    found: dict[tuple[str, str, bool], tuple[int, float]] = {}
    for rank in ranks:
        for k in rank.kernels:
            calls, load_s = found.get((k.name, k.kernel_class, k.communication), (0, 0.0))
            found[k.name, k.kernel_class, k.communication] = (calls + k.calls, load_s + k.load_s)
    loads = [
        KernelLoad(name=name, kernel_class=of, communication=comm, calls=calls, load_s=load_s)
        for (name, of, comm), (calls, load_s) in found.items()
    ]
    return sorted(loads, key=lambda load: -load.load_s)


def timeline(analysis: Analysis) -> Section:
    """The exposed stretches, to zoom into."""
    some = most_exposed(analysis.ranks)
    line = timeline_of(some, analysis.ranks)
    missing = _drawn(len(some), len(analysis.ranks), "ranks, the most exposed")
    return Section(
        id="timeline",
        title="When communication was exposed",
        says=sentence(line) + missing,
        blocks=timeline_blocks(line),
    )


def audit(analysis: Analysis) -> Section:
    """What was read, and what looks odd."""
    remarks = remarks_of(analysis.ranks)
    said = [f"{_who(ranks, len(analysis.ranks))}{remark}" for remark, ranks in remarks.items()]
    said += [f"{remark[:1].upper()}{remark[1:]}" for remark in left_out_sentences(analysis.left_out)]
    kinds = dict.fromkeys(READ, "count") | {"whole": "words"}
    rows = [
        (
            rank.rank,
            rank.path.name,
            *(getattr(rank.audit, field) for field in READ.values()),
            "yes" if rank.audit.cut is None else f"no: {rank.audit.cut}",
        )
        for rank in analysis.ranks
    ]
    return Section(
        id="audit",
        title="Audit",
        says="What the answer stands on: what was read, what was left out, and what looks odd."
        + ("" if said else " Nothing looked odd."),
        blocks=(
            *([Bullets(sentences=tuple(said))] if said else []),
            _capped("What was read of each rank", {"rank": "words", "file": "name"} | kinds, rows),
        ),
    )


def remarks_of(ranks: Sequence[RankAnalysis]) -> dict[str, list[int]]:
    """Each sentence of the audits once, with the ranks that it is about."""
    found: dict[str, list[int]] = {}
    for rank in ranks:
        for remark in rank.audit.sentences():
            found.setdefault(remark, []).append(rank.rank)
    return found


def _who(ranks: Sequence[int], count: int) -> str:
    if count == 1:
        return ""
    if len(ranks) == count:
        return "All ranks: "
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}{', …' if len(ranks) > 16 else ''}: "


ASSUMPTIONS = (
    "Compute, exposed communication, exposed copies and idle add up to the window. Exposed communication is time with "
    "a kernel that communicates and none that computes; overlapped communication is time with both.",
    "Loads are summed kernel times: what runs at the same time counts twice.",
    "A kernel's time in a collective includes waiting for its peers. Bus bandwidth is counted as nccl-tests does, of "
    "the median call.",
    "On the device a step begins with the first kernel that was launched in it; what lies across a border is cut.",
    "The window is the stretch that is measured: by default the whole trace, what lies before its first step included. "
    "A step lasts as long as the host's annotation or the device's part of the window, whichever is longer, so that a "
    "step times their number need not be the window.",
    "Unknown means that the trace does not say.",
)


def trace_page(analysis: Analysis, *, title: str | None = None, command: str = "") -> str:
    """An analysis as one HTML file."""
    several = len(analysis.ranks) > 1
    parts = (
        breakdown(analysis),
        collectives(analysis),
        *([waiting(analysis)] if any(rank.matched for rank in analysis.across.ranks) else []),
        kernels(analysis),
        timeline(analysis),
        audit(analysis),
    )
    page = render_page(
        Page(
            title=title or f"Where the time went, by {_files(analysis)}",
            question=_question(analysis),
            command=command,
            keys=_keys(analysis),
            found=tuple(sentences(analysis)),
            sections=parts,
            assumptions=(*ASSUMPTIONS, ACROSS) if several else ASSUMPTIONS,
        )
    )
    # a name in a trace may hold half of a character, which no file can
    return page.encode("utf-8", "replace").decode("utf-8")


def _files(analysis: Analysis) -> str:
    count = len(analysis.ranks)
    return f"the traces of {count} ranks" if count > 1 else f"the trace of rank {analysis.ranks[0].rank}"


def _question(analysis: Analysis) -> str:
    first = analysis.ranks[0]
    c = first.trace.columns
    where = "a processor" if c.is_host else c.device_name or "a GPU of unknown name"
    world = f"a job of {c.world_size:,} ranks" if c.world_size else "a job of unknown size"
    steps = f"{analysis.steps} profiler steps" if analysis.steps != 1 else "one profiler step"
    if not analysis.steps:
        steps = "no profiler steps"
    name = first.path.name if len(analysis.ranks) == 1 else f"{first.path.parent.name or first.path.parent}/"
    return f"{name}: {world} on {where}, {steps}."


def sentences(analysis: Analysis) -> Iterable[str]:
    """What was found, the sentence for everyone first."""
    t = analysis.times
    several = len(analysis.ranks) > 1
    who = ("The processor" if analysis.ranks[0].trace.columns.is_host else "The GPU") + ("s" if several else "")
    over = f"mean over {len(analysis.ranks)} ranks of " if several else "of "
    yield (
        f"{who} computed for {_of(t.compute_s, t)} of the time, stood still for communication for "
        f"{_of(t.exposed_comm_s, t)} and for copies for {_of(t.exposed_copies_s, t)}, and had nothing to do for "
        f"{_of(t.idle_s, t)} ({over}{show(t.window_s, 's')})."
    )
    if t.comm_s:
        yield f"Of all communication, {t.overlapped_comm_s / t.comm_s:.1%} was hidden beside compute."
    else:
        yield "No communication was found."
    yield from _about_ranks(analysis)
    audits = [rank.audit for rank in analysis.ranks]
    read = f"{sum(a.kernels for a in audits):,} kernels and {sum(a.copies for a in audits):,} copies were read"
    whole = ", every file to its end" if analysis.is_whole else "; not every file is whole"
    remarks = len(remarks_of(analysis.ranks)) + len(left_out_sentences(analysis.left_out))
    odd = {0: "nothing looked odd", 1: "the audit has one remark"}.get(remarks, f"the audit has {remarks} remarks")
    yield f"{read}{whole}; {odd}."


def _of(seconds: float, times: Times) -> str:
    return f"{seconds / times.window_s:.1%}" if times.window_s else "an unknown share"


def _about_ranks(analysis: Analysis) -> Iterable[str]:
    across = analysis.across
    slow = across.straggler
    if slow is not None:
        calls = f"{slow.last_arrivals:,} call{'s' if slow.last_arrivals != 1 else ''}"
        yield (
            f"The others waited most for rank {slow.rank}: {show(slow.waited_for_s, 's')} on average, in {calls} "
            "that it entered last."
        )
    elif any(rank.matched for rank in across.ranks):
        yield "No rank was waited for."
    elif analysis.times.comm_s:
        why = "The trace is of one rank only" if len(analysis.ranks) == 1 else "The ranks have no call in common"
        yield f"{why}: how much of communication was waiting for others is unknown."
    if across.missing:
        yield f"No trace was given of {_some(across.missing)} of the groups seen."
    for note in across.notes:
        yield f"{note[:1].upper()}{note[1:]}."


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"{len(ranks):,} rank{'s' if len(ranks) > 1 else ''} ({shown})"


def _keys(analysis: Analysis) -> tuple[Key, ...]:
    t = analysis.times
    hidden = f"{t.overlapped_comm_s / t.comm_s:.1%}" if t.comm_s else "none"
    steps = [rank.step_s for rank in analysis.ranks]
    step = show(sum(steps) / len(steps), "s")
    return (
        Key(value=_of(t.compute_s, t), says="of the window: compute"),
        Key(value=_of(t.exposed_comm_s, t), says="exposed communication: nothing computes meanwhile"),
        Key(value=_of(t.idle_s, t), says="idle: nothing runs at all"),
        Key(value=_of(t.exposed_copies_s, t), says="copies and fills beside nothing else"),
        Key(value=hidden, says="of communication is hidden beside compute" if t.comm_s else "no communication found"),
        Key(value=step, says="a step, mean" if analysis.steps else "the window, mean over ranks"),
    )
