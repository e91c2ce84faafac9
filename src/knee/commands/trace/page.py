"""The page of ``knee trace``: where the time of a job went, in words, charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from knee.base.units import show
from knee.commands.trace import sections
from knee.commands.trace.sections import ACROSS, remarks_of
from knee.measure.kineto.trace_files import left_out_sentences
from knee.measure.traces.analyse import Analysis
from knee.measure.traces.device_time import Times
from knee.show.page.page import Key, Page, render_page

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
        sections.breakdown(analysis),
        sections.collectives(analysis),
        *([sections.waiting(analysis)] if any(rank.matched for rank in analysis.across.ranks) else []),
        sections.kernels(analysis),
        sections.timeline(analysis),
        sections.audit(analysis),
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
