"""Measures a list of points into a file, one line each; what is there already is not measured again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from knee.base.errors import RunFailed
from knee.measure.machine.listener import SILENT, ProbeListener, ProbeStopped
from knee.measure.machine.probe_points import Point, Record, key_of
from knee.measure.machine.readings import ReadingsFile

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
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
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


def error_text(error: Exception) -> str:
    """torch's complaint, short."""
    text = str(error).strip()
    if "out of memory" in text:
        return "out of memory"
    return text.splitlines()[0][:200] if text else type(error).__name__


def free_memory() -> None:
    """Give back what earlier points held, once it is much: collecting garbage takes longer than most points."""
    torch = sys.modules.get("torch")  # a replay runs without it
    if torch is None or not torch.cuda.is_available():
        return
    if torch.cuda.memory_reserved() > FULL_FRAC * torch.cuda.mem_get_info()[1]:
        gc.collect()
        torch.cuda.empty_cache()
