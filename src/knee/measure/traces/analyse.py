"""``analyse(paths)``: where the time of a job went, from the traces of one or more of its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from knee.base.errors import InputError, RunFailed, argument
from knee.base.limits import MOST_TRACE_BYTES
from knee.base.processes import core_count, process_pool
from knee.base.progress import Progress
from knee.base.units import counted
from knee.measure.kineto.blocks import too_large
from knee.measure.kineto.event_columns import KERNEL, check_kernels
from knee.measure.kineto.trace_files import SkippedTrace, find_files
from knee.measure.traces.device_time import (
    NS,
    CollectiveLoad,
    KernelLoad,
    Times,
    Window,
    collective_loads,
    kernel_loads,
    mean_times,
    times_in,
)
from knee.measure.traces.kernel_classes import OTHER, Classes, classes_of
from knee.measure.traces.rank_waits import AcrossRanks, across_ranks, check_one_job
from knee.measure.traces.read_trace import Trace, read_trace

# What an answer about a trace stands on: what was read, what was left out, and what looks odd.

COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
LOUD = 0.01
"""Share of all kernel time from which an unclassified kernel is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the measurements of one rank's trace stand on."""

    events: int
    kernels: int
    copies: int
    without_launch: int
    """Kernels whose launch is not in the trace: they were launched before it began. They are counted."""
    without_launch_s: float
    same_stream_overlaps: int
    """Kernels that begin before the one before them on their stream has ended; Perfetto drops such kernels."""
    unclassified: tuple[tuple[str, float], ...]
    """(name, share of all kernel time) of kernels of no known class on streams beside the main one."""
    sounds_like_communication: tuple[tuple[str, float], ...]
    """The same of kernels that are compute by their class and a collective by a word of their name."""
    communication_as_compute: int
    """Kernels that communicate on the stream that computes, and are counted as compute."""
    communication_as_compute_s: float
    communication_classes: tuple[str, ...]
    """Their classes."""
    clock_anomalies: int
    """Device events left out (negative or impossible times), and kernels that begin before they are launched."""
    without_duration: int
    """Device events left out because they have no time or no duration."""
    devices: int
    empty_steps: tuple[int, ...]
    """Numbers of profiler steps that launched nothing, and are no steps of the answer."""
    repairs: int
    cut: str | None
    """Why the rest of the file could not be read."""
    notes: tuple[str, ...]

    def sentences(self) -> list[str]:
        """What a reader should know beyond the counts."""
        said = []
        if self.cut:
            said.append(f"the file is incomplete ({self.cut}); the answer covers the part that could be read")
        if self.without_launch:
            said.append(
                f"{self.without_launch:,} kernels ({self.without_launch_s * 1e3:.3f} ms) have no launch in the trace; "
                "they are counted"
            )
        if self.communication_as_compute:
            said.append(
                f"{self.communication_as_compute:,} kernels ({self.communication_as_compute_s * 1e3:.3f} ms) "
                "communicate on the compute stream and are counted as compute; "
                f"{' '.join(f'--comm {name}' for name in self.communication_classes)} counts them as communication"
            )
        said += [
            f"kernel of unknown class on a side stream, {share:.0%} of kernel time: {name}; use "
            "--comm-pattern to count it "
            "as communication"
            for name, share in self.unclassified
        ]
        said += [
            f"kernel on a side stream that is named like a collective but counted as compute, {share:.0%} of "
            "kernel time: "
            f"{name}; use --comm-pattern to count it as communication"
            for name, share in self.sounds_like_communication
        ]
        if self.without_duration:
            said.append(f"{self.without_duration:,} device events without time or duration are skipped")
        if self.clock_anomalies:
            said.append(
                f"{self.clock_anomalies:,} clock anomalies: negative or impossible times, or kernels that "
                "begin before their launch"
            )
        if self.devices > 1:
            said.append(f"kernels of {self.devices} GPUs are analysed together")
        if self.empty_steps:
            said.append(f"steps that launched nothing are not counted: {', '.join(map(str, self.empty_steps))}")
        if self.repairs:
            said.append("numbers that JSON does not have (nan, inf) were read as unknown")
        return [*said, *self.notes]


def _made_by_knee(trace: Trace) -> list[str]:
    made: dict[str, Any] = trace.columns.knee
    said: list[str] = []
    if not made:
        return said
    from knee.specs.notes import Note  # and with it all specs: most traces need none

    if trace.columns.is_simulated:
        text = "the trace is simulated: a pipeline stage waits without a kernel, so the bubble is "
        said.append(Note("simulated", text + "unknown, and part of idle"))
    if "of_kernels" in made:
        text = f"the trace was reduced by knee to {made.get('kernels')} of {made['of_kernels']} "
        said.append(Note("reduced", text + "kernels: exposed communication is complete, compute and idle time are not"))
    return said


def audit(trace: Trace) -> Audit:
    """Look through a whole trace."""
    c, of = trace.columns, trace.classified
    kernels = c.kind == KERNEL
    length = c.end_ns - c.start_ns
    orphans = kernels & (trace.launched_ns < 0) & (len(c.launch_correlation) > 0)
    unclassified, sounding = ((), ()) if c.is_host else _beside_the_main_stream(trace)
    early = kernels & (trace.launched_ns > c.start_ns) & (trace.launched_ns >= 0) & (not c.is_host)
    return Audit(
        events=c.counts.events,
        kernels=int(kernels.sum()),
        copies=int((~kernels).sum()),
        without_launch=int(orphans.sum()),
        without_launch_s=int(length[orphans].sum()) / NS,
        same_stream_overlaps=0 if c.is_host else _overlaps(trace),
        unclassified=unclassified,
        sounds_like_communication=sounding,
        communication_as_compute=int(of.counted_as_compute.sum()),
        communication_as_compute_s=int(length[of.counted_as_compute].sum()) / NS,
        communication_classes=tuple(of.names[i] for i in sorted(set(of.class_id[of.counted_as_compute].tolist()))),
        clock_anomalies=c.counts.clock_anomalies + int(early.sum()),
        without_duration=c.counts.without_duration,
        devices=len(set(c.device[kernels].tolist())),  # np.unique imports more of NumPy than all else here
        empty_steps=trace.empty_steps,
        repairs=c.counts.repairs,
        cut=c.cut,
        notes=(*_made_by_knee(trace), *c.notes),
    )


def _overlaps(trace: Trace) -> int:
    """Rows that begin before all of their stream that began earlier has ended."""
    c = trace.columns
    order = np.lexsort((c.start_ns, c.stream, c.device))
    start, end = c.start_ns[order], c.end_ns[order]
    same = (np.diff(c.stream[order]) == 0) & (np.diff(c.device[order]) == 0)
    # the latest end so far, stream by stream: as places among all ends, those of later streams beyond all before
    by_end = np.argsort(end, kind="stable")
    place = np.empty_like(by_end)
    place[by_end] = np.arange(len(end))
    lift = np.concatenate(([0], np.cumsum(~same))) * len(end)
    reach = end[by_end[np.maximum.accumulate(place + lift) - lift]]
    return int((same & (start[1:] < reach[:-1])).sum())


Loud = tuple[tuple[str, float], ...]


def _beside_the_main_stream(trace: Trace) -> tuple[Loud, Loud]:
    """Loud kernels on other streams: those of no class, and those of one that are named like a collective."""
    c, of = trace.columns, trace.classified
    kernels = c.kind == KERNEL
    length = (c.end_ns - c.start_ns).astype(np.float64)
    total = float(length[kernels].sum())
    compute = np.flatnonzero(of.is_compute)
    if not total or not len(compute):
        return (), ()
    streams, inverse = np.unique(c.stream[compute], return_inverse=True)
    main = streams[int(np.argmax(np.bincount(inverse, weights=length[compute])))]
    beside = of.is_compute & (c.stream != main) & ~of.counted_as_compute
    share = np.bincount(c.name_id[beside], weights=length[beside], minlength=len(c.names)) / total
    other = set(c.name_id[of.class_id == of.names.index(OTHER)].tolist())
    loud = [(i, c.names[i], float(share[i])) for i in np.argsort(-share).tolist() if share[i] > LOUD]
    return (
        tuple((name, part) for i, name, part in loud if i in other),
        tuple((name, part) for i, name, part in loud if i not in other and COLLECTIVE.search(name)),
    )


TRACES_READ = "traces read"
BYTES_READ = "bytes read"
"""What progress is reported of; bytes only of files that this process reads itself."""
PARALLEL_BYTES = 1 << 25
"""From so many bytes on ranks are read at the same time; starting a process is dearer than reading less."""
DEVICES = ("/dev/", "/proc/")
PACKED = 12
"""How much smaller a trace is under gzip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A stretch of one rank's trace: a step, or what lies before the first."""

    step: int | None
    """The profiler's number; None before the first step."""
    window: Window
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    """What was measured in one rank's trace."""

    rank: int
    path: Path
    trace: Trace
    window: Window
    times: Times
    """Of the whole window."""
    steps: tuple[TracedStep, ...]
    step_s: float
    """Mean time of a step, by the host's or the device's clock, whichever is longer."""
    step_times: Times
    """Mean over its steps; of the whole window where it has none."""
    collectives: tuple[CollectiveLoad, ...]
    kernels: tuple[KernelLoad, ...]
    audit: Audit

    @property
    def step_window(self) -> tuple[Window, int]:
        """All of its steps together and their number; the whole window as one where it has none."""
        parts = [part for part in self.steps if part.step is not None]
        if not parts:
            return self.window, 1
        return Window(start_ns=parts[0].window.start_ns, end_ns=parts[-1].window.end_ns), len(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What was measured in the traces of one job."""

    ranks: tuple[RankAnalysis, ...]
    """By rank."""
    times: Times
    """Mean over ranks of their whole windows."""
    steps: int
    """Profiler steps in the window; 0 where the trace has none."""
    across: AcrossRanks
    left_out: tuple[SkippedTrace, ...] = ()
    """Files that were given, or lie in a folder that was, and are not read."""

    @property
    def is_whole(self) -> bool:
        """Whether every trace could be read to its end."""
        return all(rank.audit.cut is None for rank in self.ranks) and not any(one.is_trace for one in self.left_out)


def analyse(
    paths: str | Path | Iterable[str | Path],
    *,
    skip: int = 0,
    steps: int | None = None,
    classes: Classes | None = None,
    axes: Mapping[str, str] | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> Analysis:
    """Read traces (files, folders of them, pipes, ``-`` for the standard input) and measure them.

    ``skip`` leaves out that many profiler steps, ``steps`` then takes that many; without either all of it counts. Of
    several ranks those steps count that all of them have.
    """
    given = find_files([paths] if isinstance(paths, (str, Path)) else paths)
    if skip < 0 or (steps is not None and steps < 1):
        raise InputError(
            f"skip {skip} and steps {steps} leave no step to analyse",
            hint="skip must be at least 0 and steps at least 1",
            code="out-of-range",
            field="skip" if skip < 0 else "steps",
        )
    found = _read_all(given.files, classes or classes_of(), axes, cache, progress)
    traces = _numbered([trace for trace in found if isinstance(trace, Trace)])
    failed = [(path, why) for path, why in zip(given.files, found, strict=True) if isinstance(why, InputError)]
    if not traces:
        raise failed[0][1]
    traces.sort(key=lambda trace: trace.columns.rank)
    check_one_job(traces)
    chosen = _chosen(traces, skip, steps)
    ranks = tuple(_rank(trace, which) for trace, which in zip(traces, chosen, strict=True))
    return Analysis(
        ranks=ranks,
        times=mean_times([rank.times for rank in ranks]),
        steps=min(sum(step.step is not None for step in rank.steps) for rank in ranks),
        across=across_ranks(traces, [rank.window for rank in ranks]),
        left_out=(*(SkippedTrace(path=path, why=why.message, is_trace=True) for path, why in failed), *given.left_out),
    )


def _read_all(
    files: Sequence[Path], classes: Classes, axes: Mapping[str, str] | None, cache: bool, progress: Progress | None
) -> list[Trace | InputError]:
    """Each file's trace, or why there is none."""
    finished = kept = read_bytes = 0
    if progress:
        progress(TRACES_READ, 0, len(files))

    def report_bytes(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        if progress:
            progress(BYTES_READ, read_bytes, 0)

    def done(found: Trace | InputError) -> None:
        nonlocal finished, kept
        finished += 1
        if isinstance(found, Trace):
            kept += len(found.columns) + len(found.columns.launch_ns)
            check_kernels(kept)
        if progress:
            progress(TRACES_READ, finished, len(files))

    # a pipe of this process is none of another one's
    apart = [path for path in files if path.is_file() and not str(path).startswith(DEVICES)]
    total = sum(path.stat().st_size * (PACKED if path.suffix == ".gz" else 1) for path in apart)
    if total > MOST_TRACE_BYTES:
        raise too_large(apart[0] if len(apart) == 1 else apart[0].parent)
    workers = min(len(apart), core_count())
    read = partial(_read_one, classes=classes, axes=axes, cache=cache)
    found: dict[Path, Trace | InputError] = {}
    if workers > 1 and total >= PARALLEL_BYTES:
        largest_first = sorted(apart, key=lambda path: -path.stat().st_size)
        with process_pool(workers) as pool:
            futures = {pool.submit(read, path): path for path in largest_first}
            for future in as_completed(futures):
                try:
                    found[futures[future]] = future.result()
                except BrokenProcessPool:
                    hint = "the machine may have run out of memory"
                    raise RunFailed("a process that read traces was killed", hint=hint) from None
                done(found[futures[future]])
    for path in files:
        if path not in found:
            found[path] = read(path, report_bytes=report_bytes)
            done(found[path])
    return [found[path] for path in files]


def _read_one(path: Path, **how: Any) -> Trace | InputError:
    try:
        return read_trace(path, **how)
    except InputError as error:
        return error


def _numbered(traces: list[Trace]) -> list[Trace]:
    """The same; of several, those that say no rank get a free one, in their order."""
    if len(traces) < 2:
        return traces
    taken = {trace.columns.rank for trace in traces if trace.columns.rank_known}
    free = (number for number in count() if number not in taken)
    found = []
    for trace in traces:
        c = trace.columns
        if not c.rank_known:
            rank = next(free)
            note = f"{c.path.name} does not state its rank; it is counted as rank {rank}, by the order of the files"
            trace = replace(trace, columns=replace(c, rank=rank, notes=(*c.notes, note)))
        found.append(trace)
    return found


def _chosen(traces: Sequence[Trace], skip: int, steps: int | None) -> list[slice | None]:
    """Of each trace the steps that were asked for; None for all of it."""
    if not skip and steps is None:
        return [None] * len(traces)
    numbers = [[step.number for step in trace.steps] for trace in traces]
    where = str(traces[0].columns.path)
    if all(own == numbers[0] for own in numbers):
        every = list(range(len(numbers[0])))
    else:  # by number: ranks that began at different steps have those in common that were run at the same time
        common = set(numbers[0]).intersection(*numbers[1:])
        every = [i for i, number in enumerate(numbers[0]) if number in common]
        where = "every rank"
    wanted = every[skip:] if steps is None else every[skip : skip + steps]
    if not wanted:
        raise InputError(
            f"{where} has {counted(len(every), 'profiler step')}; none is left after {argument('skip')} {skip}",
            hint=f"skip fewer, or leave {argument('skip')} and {argument('steps')} out to analyse the whole trace",
            code="no-steps",
            field="skip",
        )
    if steps is not None and len(wanted) < steps:
        raise InputError(
            f"{where} has {counted(len(every), 'profiler step')}; {argument('skip')} {skip} and {argument('steps')} "
            f"{steps} need more",
            code="no-steps",
            field="steps",
        )
    if where != "every rank":
        return [slice(wanted[0], wanted[-1] + 1)] * len(traces)
    first, last = numbers[0][wanted[0]], numbers[0][wanted[-1]]
    return [slice(own.index(first), own.index(last) + 1) for own in numbers]


def _rank(trace: Trace, which: slice | None) -> RankAnalysis:
    c = trace.columns
    skip, chosen = (which.start, trace.steps[which]) if which is not None else (0, trace.steps)
    border = trace.border_ns
    if which is not None:
        window = Window(start_ns=int(border[skip]), end_ns=int(border[skip + len(chosen)]))
    else:
        # where launches are not known a step may begin before its first kernel
        begin, end = int(c.start_ns.min()), int(c.end_ns.max())
        window = Window(start_ns=min([begin, *border[:1].tolist()]), end_ns=max([end, *border[-1:].tolist()]))
    windows = [Window(start_ns=a, end_ns=b) for a, b in pairwise(border[skip : skip + len(chosen) + 1].tolist())]
    numbers: list[int | None] = [step.number for step in chosen]
    if windows and window.start_ns < windows[0].start_ns:
        windows.insert(0, Window(start_ns=window.start_ns, end_ns=windows[0].start_ns))
        numbers.insert(0, None)
    stepped = [w for number, w in zip(numbers, windows, strict=True) if number is not None] or [window]
    together = Window(start_ns=stepped[0].start_ns, end_ns=stepped[-1].end_ns)
    times, of_steps, *each = times_in(trace, [window, together, *windows])
    parts = [TracedStep(step=number, window=w, times=t) for number, w, t in zip(numbers, windows, each, strict=True)]
    device_s = sum(part.times.window_s for part in parts if part.step is not None)
    host_s = sum(step.end_ns - step.start_ns for step in chosen) / 1e9
    return RankAnalysis(
        rank=c.rank,
        path=c.path,
        trace=trace,
        window=window,
        times=times,
        steps=tuple(parts),
        step_s=max(device_s, host_s) / len(chosen) if chosen else times.window_s,
        step_times=of_steps.over(len(stepped)),
        collectives=tuple(collective_loads(trace, window)),
        kernels=tuple(kernel_loads(trace, window)),
        audit=audit(trace),
    )
