"""Measures a list of points into a file, one line each; what is there already is not measured again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from knee.errors import RunFailed
from knee.record.probe_points import Point, Record, key_of
from knee.record.readings import ReadingsFile

FULL_FRAC = 0.3
"""Share of the device's memory that may stay cached between points."""

Measure = Callable[[Point], Record]
Tell = Callable[[Point, Record], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """How a probe went."""

    measured: int
    kept: int
    """Readings that were in the file before."""
    failed: int
    left: int
    """Points that an interruption left unmeasured."""


def collect(file: ReadingsFile, points: Iterable[Point], measure: Measure, tell: Tell) -> Collected:
    """Measure what the file does not have yet. An error ends a point, not the probe; an interruption ends it softly."""
    points = list(points)
    todo = [point for point in points if key_of(point) not in file.done]
    todo.sort(key=lambda point: key_of(point) in file.failed)
    measured = failed = 0
    for point in todo:
        try:
            record = measure(point)
        except KeyboardInterrupt:
            return Collected(
                measured=measured, kept=len(points) - len(todo), failed=failed, left=len(todo) - measured - failed
            )
        except RuntimeError as error:  # out of memory, no such kernel: torch has no finer ones
            record = {"error": in_words(error)}
        file.add(key_of(point), asdict(point) | record)
        if "error" in record:
            refuse_if_broken(point, record["error"])
        failed += "error" in record
        measured += "error" not in record
        tell(point, record)
        free_memory()
    return Collected(measured=measured, kept=len(points) - len(todo), failed=failed, left=0)


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
            f"the GPU cannot be used any more after {key_of(point)}: {why}",
            hint="what was measured is kept; the same command goes on, and tries this point last",
        ) from None


def in_words(error: Exception) -> str:
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
