"""Power and energy of one NVIDIA GPU, read through NVML (package nvidia-ml-py)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from knee.errors import KneeError, MissingExtra

POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT; the plain reading is a one-second average
REFRESH_S = 0.1
"""All readings refresh this often, so windows shorter than twenty of them are not trusted."""
NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the board allows and has."""

    name: str
    driver: str
    power_limit_w: float
    memory_bytes: float


class Nvml:
    """One GPU, found by the identity that CUDA gives it, because indices differ once devices are remapped."""

    refresh_s = REFRESH_S

    def __init__(self, uuid: str | None = None) -> None:
        try:
            import pynvml
        except ImportError:
            raise MissingExtra("reading power needs nvidia-ml-py", hint="pip install nvidia-ml-py") from None
        self.nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            raise KneeError(f"NVML does not answer: {error}", hint="is the NVIDIA driver loaded?") from None

    def limits(self) -> Limits:
        """Name, driver, enforced power limit and memory."""
        n = self.nvml
        name, driver = n.nvmlDeviceGetName(self.handle), n.nvmlSystemGetDriverVersion()
        return Limits(
            name=name if isinstance(name, str) else name.decode(),
            driver=driver if isinstance(driver, str) else driver.decode(),
            power_limit_w=n.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1e3,
            memory_bytes=float(n.nvmlDeviceGetMemoryInfo(self.handle).total),
        )

    def energy_j(self) -> float:
        """The energy counter since the driver was loaded."""
        return float(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)) / 1e3

    def instant_w(self) -> float:
        """Draw over the last refresh, not the last second."""
        value = self.nvml.nvmlDeviceGetFieldValues(self.handle, [POWER_INSTANT])[0]
        return float(value.value.uiVal) / 1e3

    def sm_hz(self) -> float:
        """Present clock of the multiprocessors."""
        return float(self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM)) * 1e6

    def others(self) -> list[int]:
        """Processes of other people on the GPU."""
        import os

        running = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return [p.pid for p in running if p.pid != os.getpid()]


class EnergyMeter:
    """Joules between start and stop, by the counter; both wait for its next refresh."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.began_j = self.began_s = self.window_s = 0.0

    def _tick(self) -> float:
        """The counter at its next refresh."""
        before = self.nvml.energy_j()
        deadline = time.perf_counter() + 3 * REFRESH_S
        while (now := self.nvml.energy_j()) == before and time.perf_counter() < deadline:
            time.sleep(0.001)
        return now

    def start(self) -> None:
        """Begin a window at a refresh."""
        self.began_j, self.began_s = self._tick(), time.perf_counter()

    def stop(self) -> float:
        """End it at a refresh; ``window_s`` is how long it was."""
        joules = self._tick() - self.began_j
        self.window_s = time.perf_counter() - self.began_s
        return joules
