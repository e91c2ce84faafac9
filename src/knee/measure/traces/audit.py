"""What an answer about a trace stands on: what was read, what was left out, and what looks odd."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from knee.measure.kineto.event_columns import KERNEL
from knee.measure.traces.device_time import NS
from knee.measure.traces.kernel_classes import OTHER
from knee.measure.traces.read_trace import Trace

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
