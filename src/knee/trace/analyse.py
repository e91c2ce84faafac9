"""``analyse(paths)``: where the time of a job went, from the traces of one or more of its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from knee.errors import InputError
from knee.trace.audit import Audit, audit
from knee.trace.classes import Classes, classes_of
from knee.trace.loads import CollectiveLoad, KernelLoad, collective_loads, kernel_loads
from knee.trace.ranks import AcrossRanks, across_ranks, check_one_job
from knee.trace.read import Trace, read_trace
from knee.trace.stream import HINT
from knee.trace.times import Times, Window, mean_times, times_of

PARALLEL_BYTES = 1 << 25
"""From so many bytes on ranks are read at the same time; starting a process is dearer than reading less."""
IN_FOLDERS = ("*.json", "*.json.gz", "*/*.json", "*/*.json.gz")
PACKED = 12
"""How much smaller a trace is under gzip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """A stretch of one rank's trace: a step, or what lies before the first."""

    step: int | None
    """The profiler's number; None before the first step."""
    window: Window
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnalysis:
    """One rank."""

    rank: int
    path: Path
    trace: Trace
    window: Window
    times: Times
    """Of the whole window."""
    steps: tuple[StepTimes, ...]
    step_s: float
    """Mean time of a step, by the host's or the device's clock, whichever is longer."""
    collectives: tuple[CollectiveLoad, ...]
    kernels: tuple[KernelLoad, ...]
    audit: Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One job."""

    ranks: tuple[RankAnalysis, ...]
    """By rank."""
    times: Times
    """Mean over ranks of their whole windows."""
    steps: int
    """Profiler steps in the window; 0 where the trace has none."""
    across: AcrossRanks

    @property
    def is_whole(self) -> bool:
        """Whether every file could be read to its end."""
        return all(rank.audit.cut is None for rank in self.ranks)


Progress = Callable[[int, int], None]


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
    """Read traces (files, or folders of them) and measure them.

    ``skip`` leaves out that many profiler steps, ``steps`` then takes that many; without either all of it counts.
    """
    files = trace_files([paths] if isinstance(paths, (str, Path)) else paths)
    if skip < 0 or (steps is not None and steps < 1):
        raise InputError(f"skip {skip} and steps {steps}: no step is left", hint="skip is 0 or more, steps 1 or more")
    traces = _read_all(files, classes or classes_of(), axes, cache, progress)
    traces.sort(key=lambda trace: trace.columns.rank)
    check_one_job(traces)
    ranks = tuple(_rank(trace, skip, steps) for trace in traces)
    return Analysis(
        ranks=ranks,
        times=mean_times([rank.times for rank in ranks]),
        steps=min(sum(step.step is not None for step in rank.steps) for rank in ranks),
        across=across_ranks(traces, [rank.window for rank in ranks]),
    )


def trace_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files that are meant: those of a folder are its .json and .json.gz, in it or one level below."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for pattern in IN_FOLDERS for p in path.glob(pattern))
            traces = [p for p in inside if "trace" in str(p.relative_to(path)) or "rank" in p.name] or inside
            if not traces:
                raise InputError(f"{path} has no .json and no .json.gz in it", hint=HINT)
            found += traces
        elif not path.exists():
            raise InputError(f"{path} does not exist", hint=HINT)
        else:
            found.append(path)
    found = list(dict.fromkeys(found))
    if not found:
        raise InputError("no trace was given", hint="give files, or folders that have traces in them")
    return found


def _read_all(
    files: list[Path], classes: Classes, axes: Mapping[str, str] | None, cache: bool, progress: Progress | None
) -> list[Trace]:
    total = sum(path.stat().st_size * (PACKED if path.suffix == ".gz" else 1) for path in files)
    workers = min(len(files), os.cpu_count() or 1)
    traces = []
    if workers < 2 or total < PARALLEL_BYTES:
        for path in files:
            traces.append(read_trace(path, classes, axes=axes, cache=cache))
            if progress:
                progress(len(traces), len(files))
        return traces
    finished = 0

    def done() -> None:
        nonlocal finished
        finished += 1
        if progress:
            progress(finished, len(files))

    from knee.trace.parallel import read_parallel  # one file needs none of it

    return read_parallel(files, classes, axes=axes, cache=cache, workers=workers, done=done)


def _rank(trace: Trace, skip: int, steps: int | None) -> RankAnalysis:
    c = trace.columns
    chosen = trace.steps[skip:] if steps is None else trace.steps[skip : skip + steps]
    selects = bool(skip) or steps is not None
    if selects and not chosen:
        raise InputError(
            f"{c.path} has {len(trace.steps)} profiler steps; none is left after --skip {skip}",
            hint="skip fewer, or leave --skip and --steps out to measure all of the trace",
        )
    if selects and steps is not None and len(chosen) < steps:
        raise InputError(f"{c.path} has {len(trace.steps)} profiler steps; {steps} after {skip} skipped are not there")
    border = trace.border_ns
    if selects:
        window = Window(start_ns=int(border[skip]), end_ns=int(border[skip + len(chosen)]))
    else:
        # where launches are not known a step may begin before its first kernel
        begin, end = int(c.start_ns.min()), int(c.end_ns.max())
        window = Window(start_ns=min([begin, *border[:1].tolist()]), end_ns=max([end, *border[-1:].tolist()]))
    parts = [
        StepTimes(
            step=step.number,
            window=(w := Window(start_ns=int(border[skip + i]), end_ns=int(border[skip + i + 1]))),
            times=times_of(trace, w),
        )
        for i, step in enumerate(chosen)
    ]
    if parts and window.start_ns < parts[0].window.start_ns:
        before = Window(start_ns=window.start_ns, end_ns=parts[0].window.start_ns)
        parts.insert(0, StepTimes(step=None, window=before, times=times_of(trace, before)))
    times = times_of(trace, window)
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
        collectives=tuple(collective_loads(trace, window)),
        kernels=tuple(kernel_loads(trace, window)),
        audit=audit(trace),
    )
