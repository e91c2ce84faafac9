"""Draw and energy of this rank's GPU over a window, read beside the run by a thread."""

from __future__ import annotations

import threading
import time
from typing import Any

from knee.base.errors import KneeError

PERIOD_S = 0.04
"""Between readings; NVML's own refresh every 0.1 s."""
BOXCAR_S = 1.0
"""NVML's draw is a mean over the last second: in a longer window, the first second's are of what was before it."""
LONG_S = 3.0


class PowerWindow:
    """Readings between start and stop. The energy counter counts from its first refresh inside to its last."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.counts = bool(nvml.has_counter)
        self.samples: list[tuple[float, float, float, bool, bool]] = []
        """(time, draw, clock, held by the power limit, held by heat)"""
        self.ticks: list[tuple[float, float]] = []
        """(time, joules) whenever the counter has moved"""
        self.failed: str | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.began_s = self.window_s = 0.0

    def start(self) -> None:
        self.began_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="knee-power", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the window; a second call does nothing."""
        if self._thread is None:
            return
        self.window_s = time.perf_counter() - self.began_s
        self._over.set()
        self._thread.join()
        self._thread = None

    def now_w(self) -> float | None:
        """The draw of the last second; None if the board does not tell."""
        try:
            return float(self.nvml.mean_w())
        except KneeError:
            return None

    def _run(self) -> None:
        before = None
        try:
            while not self._over.wait(PERIOD_S):
                now = time.perf_counter()
                if self.counts:
                    joules = self.nvml.energy_j()
                    if before is not None and joules != before:
                        self.ticks.append((now, joules))
                    before = joules
                held = self.nvml.held_by()
                self.samples.append((now, self.nvml.mean_w(), self.nvml.sm_hz(), *held))
        except KneeError as error:
            self.failed = error.message

    def result(self) -> dict[str, Any]:
        """Means over the window; None where the board does not tell."""
        used = self.samples
        if self.window_s > LONG_S:
            used = [sample for sample in used if sample[0] > self.began_s + BOXCAR_S] or used
        counter_w = None
        if len(self.ticks) > 1:
            (first_s, first_j), (last_s, last_j) = self.ticks[0], self.ticks[-1]
            counter_w = (last_j - first_j) / (last_s - first_s)
        limits = self._limits()
        return {
            "draw_w": _mean([sample[1] for sample in used]),
            "counter_w": counter_w,
            "energy_j": None if counter_w is None else counter_w * self.window_s,
            "window_s": self.window_s,
            "samples": len(used),
            "sm_hz": _mean([sample[2] for sample in used if sample[2] == sample[2]]),
            "power_capped_frac": _mean([float(sample[3]) for sample in used]),
            "heat_capped_frac": _mean([float(sample[4]) for sample in used]),
            "power_limit_w": limits.power_limit_w if limits else None,
            "driver": limits.driver if limits else None,
            "trouble": self.failed,
        }

    def _limits(self) -> Any:
        try:
            return self.nvml.limits()
        except KneeError as error:
            self.failed = self.failed or error.message
            return None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def open_power(uuid: str | None) -> tuple[PowerWindow | None, str | None]:
    """Return a power window for the GPU of that UUID, or the reason why there is none."""
    if uuid is None:
        return None, "power can be read only from NVIDIA GPUs"
    from knee.measure.machine.nvml import Nvml

    try:
        nvml = Nvml(uuid.removeprefix("GPU-"))
        if nvml.mig:
            return None, f"{nvml.called} is split into MIG instances, which have no power readings of their own"
        return PowerWindow(nvml), None
    except KneeError as error:
        return None, error.message
