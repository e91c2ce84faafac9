"""Power and energy of one NVIDIA GPU, read through NVML (package nvidia-ml-py)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knee.base.errors import InputError, KneeError, MissingExtra, RunFailed, argument
from knee.base.units import MIB
from knee.measure.machine.gpus import DOCTOR, NO_GPU, ask_nvml, nvml_in_words, start_nvml

NOT_SUPPORTED, NO_PERMISSION, LOST = 3, 4, 15  # NVML's return codes
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT; the plain reading is a one-second average on most boards
POWER_CAP, THERMAL = 0x4, 0x20 | 0x40  # nvmlClocksEventReasons: SwPowerCap; SwThermalSlowdown, HwThermalSlowdown
VISIBLE = "CUDA_VISIBLE_DEVICES"
REFRESH_S = 0.1
"""All readings refresh this often, so windows shorter than twenty of them are not trusted."""
STILL_S = 1.0
"""A counter that has not moved for so long stands still."""
COUNTER_FRAC, SAMPLES_FRAC = 0.01, 0.05
"""What a mean draw is worth. The counter's windows begin and end with its refreshes, give or take half a call of the
load. Samples see a part of the time: on an H200 the mean of 25 was off the counter by up to 4.4% (data/h200)."""
NAN = float("nan")

Work = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimits:
    """What the board allows and has."""

    name: str
    driver: str | None
    power_limit_w: float | None
    """None where the board does not tell it."""
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A process on the GPU."""

    pid: int
    """In a container, as the host counts."""
    used_bytes: float | None


class Nvml:
    """One GPU: the one with the identity that CUDA gives it, or the first that CUDA will see."""

    refresh_s = REFRESH_S

    def __init__(self, uuid: str | None = None) -> None:
        self.nvml, count = start_nvml()
        if not count:
            raise MissingExtra(NO_GPU, hint="check that the container or job has a GPU", code="no-gpu")
        try:
            self.handle = self._handle(uuid or _first_visible())
        except self.nvml.NVMLError as error:
            raise MissingExtra(nvml_in_words(error), hint=DOCTOR, code="no-driver") from None
        self.index: int | None = self._ask("nvmlDeviceGetIndex")
        self.called = "the GPU" if self.index is None else f"GPU {self.index}"

    def _handle(self, wanted: str | None) -> Any:
        """By number or identity; CUDA writes an identity without its prefix, and its start is enough."""
        n = self.nvml
        if wanted is None or wanted.isdecimal():
            number, count = int(wanted or 0), n.nvmlDeviceGetCount()
            if number >= count:
                text = f"{VISIBLE} names GPU {number}, but this machine has {count}, counted from 0"
                raise InputError(text, code="out-of-range", field=VISIBLE)
            return n.nvmlDeviceGetHandleByIndex(number)
        if wanted.startswith("MIG-"):
            return n.nvmlDeviceGetHandleByUUID(wanted)
        for number in range(n.nvmlDeviceGetCount()):
            handle = n.nvmlDeviceGetHandleByIndex(number)
            if _text(n.nvmlDeviceGetUUID(handle)).removeprefix("GPU-").startswith(wanted.removeprefix("GPU-")):
                return handle
        try:
            return n.nvmlDeviceGetHandleByUUID("MIG-" + wanted)
        except n.NVMLError:
            raise MissingExtra(f"NVML knows no GPU {wanted}, which CUDA uses", hint=DOCTOR, code="no-gpu") from None

    def _ask(self, call: str, *arguments: Any) -> Any:
        """An answer, or None where the board, the driver or the package does not give it."""
        return ask_nvml(self.nvml, call, self.handle, *arguments)

    def _read(self, what: str, call: str, *arguments: Any) -> Any:
        """An answer, or one sentence about why there is none."""
        try:
            return getattr(self.nvml, call)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            why = {
                NOT_SUPPORTED: f"{self.called} does not report its {what}",
                NO_PERMISSION: f"this user has no permission to read the {what} of {self.called}",
                LOST: f"{self.called} no longer responds: it has fallen off the bus",
            }
            text = why.get(code or 0, f"the {what} of {self.called}: {error}")
            if code == LOST:
                raise RunFailed(text, hint=DOCTOR, code="device-broken") from None
            raise MissingExtra(text, hint=DOCTOR, code="not-told") from None

    @property
    def uuid(self) -> str:
        """The GPU's identity."""
        return _text(self._read("identity", "nvmlDeviceGetUUID"))

    @property
    def mig(self) -> bool:
        """Whether it is split into instances: they have no power readings of their own."""
        mode = self._ask("nvmlDeviceGetMigMode")
        return bool(self._ask("nvmlDeviceIsMigDeviceHandle")) or bool(mode and mode[0])

    @property
    def has_counter(self) -> bool:
        """Whether there is an energy counter: data-centre boards since Volta have one, many others do not."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption") is not None

    def limits(self) -> PowerLimits:
        """Name, driver, enforced power limit and memory."""
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return PowerLimits(
            name=_text(self._read("name", "nvmlDeviceGetName")),
            driver=ask_nvml(self.nvml, "nvmlSystemGetDriverVersion"),
            power_limit_w=None if limit_mw is None else limit_mw / 1e3,
            memory_bytes=float(self._read("memory", "nvmlDeviceGetMemoryInfo").total),
        )

    def free_bytes(self) -> float:
        """Memory that nobody has, asked without a CUDA context."""
        return float(self._read("memory", "nvmlDeviceGetMemoryInfo").free)

    def energy_j(self) -> float:
        """The energy counter since the driver was loaded."""
        return float(self._read("energy counter", "nvmlDeviceGetTotalEnergyConsumption")) / 1e3

    def instant_w(self) -> float:
        """Draw over the last refresh; boards that do not tell it tell a mean of the last second, or so."""
        answer = self._ask("nvmlDeviceGetFieldValues", [POWER_INSTANT])
        if answer and answer[0].nvmlReturn == 0:
            return float(answer[0].value.uiVal) / 1e3
        return self.mean_w()

    def mean_w(self) -> float:
        """Draw as nvidia-smi and most papers have it: a mean over the last second on recent boards."""
        return float(self._read("power", "nvmlDeviceGetPowerUsage")) / 1e3

    def sm_hz(self) -> float:
        """Present clock of the multiprocessors; NaN where it is not told."""
        mhz = self._ask("nvmlDeviceGetClockInfo", getattr(self.nvml, "NVML_CLOCK_SM", 1))
        return NAN if mhz is None else float(mhz) * 1e6

    def held_by(self) -> tuple[bool, bool]:
        """Whether the power limit and whether heat hold the clocks down now."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return bool(reasons & POWER_CAP), bool(reasons & THERMAL)

    def others(self) -> list[Other]:
        """Processes that compute on the GPU, to be asked before this one has a CUDA context.

        In a container the numbers are the host's, so that a process does not know its own.
        """
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            words = f"{self.called} does not report which processes use it; knee assumes that no other process does"
            print(words, file=sys.stderr)
            return []
        return [
            Other(pid=p.pid, used_bytes=None if p.usedGpuMemory is None else float(p.usedGpuMemory))
            for p in running
            if p.pid != os.getpid()
        ]


def _text(answer: str | bytes) -> str:
    return answer if isinstance(answer, str) else answer.decode()


def _first_visible() -> str | None:
    """What CUDA_VISIBLE_DEVICES names first; None where it is not set."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return None
    first = visible.split(",")[0].strip()
    if first.isdecimal() or first.startswith(("GPU-", "MIG-")):
        return first
    hint = f"unset it, or name one, as in {VISIBLE}=0"
    raise InputError(f"{VISIBLE} is {visible!r}, which hides every GPU", hint=hint, code="no-gpu", field=VISIBLE)


def refuse_if_shared(nvml: Nvml) -> None:
    """Refuse a GPU that someone else computes on. To be asked before this process has a CUDA context."""
    if others := nvml.others():
        who = ", ".join(
            f"pid {p.pid}" + ("" if p.used_bytes is None else f" with {p.used_bytes / MIB:,.0f} MiB") for p in others
        )
        many = f"{len(others)} other process" + ("es" if len(others) > 1 else "")
        raise InputError(
            f"{nvml.called} is in use by {many} ({who}), so the readings would include their work",
            hint=f"wait, choose another GPU with {VISIBLE}, or measure anyway with {argument('anyway')}",
            code="gpu-in-use",
            field="anyway",
        )


class EnergyMeter:
    """Joules between start and stop, by the counter; both wait for its next refresh."""

    by = "energy counter"
    uncertainty_frac = COUNTER_FRAC

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.began_j = self.began_s = self.window_s = 0.0

    def _tick(self, work: Work | None) -> float:
        """The counter at its next refresh."""
        before = self.nvml.energy_j()
        deadline = time.perf_counter() + STILL_S
        while (now := self.nvml.energy_j()) == before:
            if time.perf_counter() > deadline:
                raise RuntimeError("the energy counter does not advance")
            if work is None:
                time.sleep(0.001)
            else:
                work()
        return now

    def start(self, work: Work | None = None) -> None:
        """Begin a window at a refresh. ``work`` is repeated until then, so that the GPU does not rest meanwhile."""
        self.began_j, self.began_s = self._tick(work), time.perf_counter()

    def stop(self, work: Work | None = None) -> float:
        """End it at a refresh; ``window_s`` is how long it was. Without ``work`` its last part is idle."""
        joules = self._tick(work) - self.began_j
        self.window_s = time.perf_counter() - self.began_s
        return joules


class SamplingMeter:
    """Joules between start and stop of a board without a counter: the mean of instant readings, times the window."""

    by = "mean of instant readings (within 5%)"
    uncertainty_frac = SAMPLES_FRAC

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.began_s = self.window_s = 0.0
        self.samples: list[float] = []
        self.failed: KneeError | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def _sample(self) -> None:
        try:
            # half of a refresh, so that none is missed
            while not self._over.wait(self.nvml.refresh_s / 2):
                self.samples.append(self.nvml.instant_w())
        except KneeError as error:
            self.failed = error

    def start(self, work: Work | None = None) -> None:  # noqa: ARG002 - as the counter's
        """Begin a window."""
        self.samples.clear()
        self._over.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self.began_s = time.perf_counter()

    def stop(self, work: Work | None = None) -> float:  # noqa: ARG002
        """End it; ``window_s`` is how long it was."""
        self.window_s = time.perf_counter() - self.began_s
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.failed is not None:
            raise self.failed
        if not self.samples:
            raise RuntimeError(f"a window of {self.window_s:.2f} s is too short for a board without an energy counter")
        return sum(self.samples) / len(self.samples) * self.window_s


def meter_of(nvml: Nvml) -> EnergyMeter | SamplingMeter:
    """The counter where there is one."""
    return EnergyMeter(nvml) if nvml.has_counter else SamplingMeter(nvml)
