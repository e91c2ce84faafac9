"""What a probe tells whoever waits for it, and how an interruption ends it."""

from __future__ import annotations

from pathlib import Path

from knee.measure.machine.probe_points import Point
from knee.measure.machine.readings import Readings


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
