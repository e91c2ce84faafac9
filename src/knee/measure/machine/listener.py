"""Measures a list of points into a file, one line each, and reports progress; known points are not measured again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knee.base.errors import RunFailed
from knee.measure.machine.readings import Point, Readings, ReadingsFile, Record, key_of

# What a probe tells whoever waits for it, and how an interruption ends it.


class ProbeListener:
    """Hears how a probe goes. This one keeps silent; a subclass shows what it wants to show."""

    def replayed(self, path: Path, readings: int) -> None:
        """So many readings of a recording stand in for this machine."""

    def sharing_unknown(self, why: str) -> None:
        """NVML does not answer, so that nobody can tell whether someone else uses the GPU."""

    def no_energy_counter(self, gpu: str) -> None:
        """The power of this GPU is a mean of instant readings."""

    def resumed(self, path: Path, done: int, total: int | None) -> None:
        """A file has readings already, of a total where that is known."""

    def started(self, total: int, unit: str) -> None:
        """So many points, or series of points, are left to measure."""

    def advanced(self, point: Point) -> None:
        """One of them is done."""

    def ended(self) -> None:
        """Measuring is over, by its end or by an interruption."""

    def failed(self, readings: Readings) -> None:
        """Some points could not be measured; nothing is told where all could."""


SILENT = ProbeListener()


class ProbeStopped(KeyboardInterrupt):
    """A probe was interrupted; the readings that it has are kept, and the same call goes on with them."""

    def __init__(self, path: Path | None, *, kept: int = 0, left: int | None = None, signal: int | None = None) -> None:
        super().__init__("the probe was stopped; its readings are saved, and the same call continues from them")
        self.path = path
        """The file of readings; None on a rank that does not write it."""
        self.kept = kept
        """Readings in the file."""
        self.left = left
        """Points that are not measured yet, where that is known."""
        self.signal = signal
        """Number of the signal that made the ranks of a job stop together."""


FULL_FRAC = 0.3
"""Share of the device's memory that may stay cached between points."""


def collect(
    file: ReadingsFile,
    points: Sequence[Point],
    measure: Callable[[Any], Record],
    listener: ProbeListener = SILENT,
) -> None:
    """Measure what the file does not have yet. An error ends a point, not the probe; an interruption raises
    ``ProbeStopped``."""
    todo = [point for point in points if key_of(point) not in file.done]
    todo.sort(key=lambda point: key_of(point) in file.failed)
    kept, left = len(points) - len(todo), len(todo)
    if kept:
        listener.resumed(file.path, kept, len(points))
    listener.started(left, "points")
    try:
        for point in todo:
            try:
                record = measure(point)
            except KeyboardInterrupt:
                raise ProbeStopped(file.path, kept=kept, left=left) from None
            except RuntimeError as error:  # out of memory, no such kernel: torch has no finer ones
                record = {"error": error_text(error)}
            file.add(key_of(point), asdict(point) | record)
            if "error" in record:
                refuse_if_broken(point, record["error"])
            kept += "error" not in record
            left -= 1
            listener.advanced(point)
            free_memory()
    finally:
        listener.ended()


def refuse_if_broken(point: Point, why: str) -> None:
    """End the probe where a point has left the device unusable: every later one would only fail with it."""
    if (torch := _torch_with_gpu()) is None:
        return
    try:
        torch.rand(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError:
        raise RunFailed(
            f"the GPU can no longer be used after {key_of(point)}: {why}",
            hint="the readings are saved; the same command continues from them and measures this point last",
            code="device-broken",
        ) from None


def _torch_with_gpu() -> Any:
    torch = sys.modules.get("torch")  # a replay runs without it
    return torch if torch is not None and torch.cuda.is_available() else None


def error_text(error: Exception) -> str:
    """torch's complaint, short."""
    text = str(error).strip()
    if "out of memory" in text:
        return "out of memory"
    return text.splitlines()[0][:200] if text else type(error).__name__


def free_memory() -> None:
    """Give back what earlier points held, once it is much: collecting garbage takes longer than most points."""
    torch = _torch_with_gpu()
    if torch is not None and torch.cuda.memory_reserved() > FULL_FRAC * torch.cuda.mem_get_info()[1]:
        gc.collect()
        torch.cuda.empty_cache()
