"""Power and energy of a GPU, read from a driver that is made up here."""

from __future__ import annotations

import os
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from knee.base.errors import RunFailed
from knee.base.units import GIB, MIB
from knee.measure.machine import gpus
from knee.measure.machine import nvml as module
from knee.measure.machine import power_loads as power
from knee.measure.machine.gpus import NVML_ERRORS
from knee.measure.machine.nvml import EnergyMeter, Nvml, SamplingMeter, meter_of, refuse_if_shared
from knee.measure.machine.readings import PowerPoint
from made_nvml import NVMLError, answers
from refusals import caught, kind, numbers

NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, NO_LIBRARY, LOST, MISMATCH = 3, 4, 9, 12, 15, 18
UUIDS = ["GPU-aaaa-1", b"GPU-bbbb-2"]
H200 = {
    "nvmlDeviceGetName": b"NVIDIA H200",
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * GIB, free=140 * GIB),
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=690_000))],
    "nvmlDeviceGetPowerUsage": 650_000,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A ``pynvml`` with two H200s; handles are their numbers."""
    made = ModuleType("pynvml")
    made.__spec__ = ModuleSpec("pynvml", None)
    for name, value in H200.items():
        setattr(made, name, answers(value))
    made.__dict__.update(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        nvmlInit=answers(None),
        nvmlDeviceGetCount=answers(2),
        nvmlSystemGetDriverVersion=answers("580.159.04"),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=answers(NVMLError(6)),
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetIndex=lambda handle: handle,
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


@pytest.mark.usefixtures("driver")
def test_what_a_board_tells() -> None:
    gpu = Nvml()
    limits = gpu.limits()
    assert (limits.name, limits.driver, limits.power_limit_w) == ("NVIDIA H200", "580.159.04", 700.0)
    assert (gpu.energy_j(), gpu.instant_w(), gpu.sm_hz()) == (5000.0, 690.0, 1.98e9)
    assert gpu.held_by() == (True, False)
    assert gpu.has_counter
    assert not gpu.mig
    assert (gpu.index, gpu.uuid, gpu.free_bytes()) == (0, "GPU-aaaa-1", 140 * GIB)
    assert gpu.others() == []
    refuse_if_shared(gpu)


@pytest.mark.parametrize(("visible", "index"), [("0", 0), ("1,0", 1), (" 1 ", 1), ("GPU-bbbb", 1), ("GPU-aaaa-1", 0)])
@pytest.mark.usefixtures("driver")
def test_the_gpu_is_the_one_that_cuda_sees(monkeypatch: pytest.MonkeyPatch, visible: str, index: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Nvml().index == index


@pytest.mark.usefixtures("driver")
def test_the_gpu_is_found_as_cuda_names_it() -> None:
    assert Nvml("bbbb-2").index == 1
    assert caught(lambda: Nvml("cccc")).code == "no-gpu"


@pytest.mark.parametrize(("visible", "code"), [("", "no-gpu"), ("-1", "no-gpu"), ("7", "out-of-range")])
@pytest.mark.usefixtures("driver")
def test_no_gpu_is_visible(monkeypatch: pytest.MonkeyPatch, visible: str, code: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert kind(caught(Nvml)) == (code, "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_LOADED, NO_LIBRARY, MISMATCH])
def test_why_the_driver_does_not_answer(driver: ModuleType, code: int) -> None:
    driver.__dict__["nvmlInit"] = answers(NVMLError(code))
    error = caught(Nvml)
    assert (error.code, error.message) == ("no-driver", NVML_ERRORS[code])
    assert error.hint


def test_a_driver_without_gpus(driver: ModuleType) -> None:
    driver.__dict__["nvmlDeviceGetCount"] = answers(0)
    assert caught(Nvml).code == "no-gpu"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "nvml_library", lambda: "libnvidia-ml.so.1")
    assert caught(Nvml).code == "missing-extra"
    monkeypatch.setattr(gpus, "nvml_library", lambda: None)
    assert caught(Nvml).code == "no-driver"


@pytest.mark.parametrize(
    ("code", "told"),
    [(NOT_SUPPORTED, "not-told"), (LOST, "device-broken"), (999, "not-told"), (NO_PERMISSION, "not-told")],
)
def test_a_reading_that_fails(driver: ModuleType, code: int, told: str) -> None:
    driver.__dict__["nvmlDeviceGetTotalEnergyConsumption"] = answers(NVMLError(code))
    assert caught(Nvml().energy_j).code == told


def test_a_board_that_tells_little(driver: ModuleType) -> None:
    for name in H200:
        if name not in ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage"):
            setattr(driver, name, answers(NVMLError(NOT_SUPPORTED)))
    del driver.__dict__["nvmlDeviceGetCurrentClocksEventReasons"]
    gpu = Nvml()
    assert gpu.limits().power_limit_w is None
    assert gpu.instant_w() == 650.0
    assert gpu.sm_hz() != gpu.sm_hz()
    assert gpu.held_by() == (False, False)
    assert not gpu.has_counter
    assert isinstance(meter_of(gpu), SamplingMeter)
    refuse_if_shared(gpu)
    driver.__dict__["nvmlDeviceGetPowerUsage"] = answers(NVMLError(NOT_SUPPORTED))
    assert caught(gpu.instant_w).code == "not-told"


def test_an_instant_reading_that_says_it_is_none(driver: ModuleType) -> None:
    none = [SimpleNamespace(nvmlReturn=NOT_SUPPORTED, value=SimpleNamespace(uiVal=0))]
    driver.__dict__["nvmlDeviceGetFieldValues"] = answers(none)
    assert Nvml().instant_w() == 650.0


def test_a_gpu_that_others_use(driver: ModuleType) -> None:
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=1)
    one = SimpleNamespace(pid=4242, usedGpuMemory=2048 * MIB)
    driver.__dict__["nvmlDeviceGetComputeRunningProcesses"] = answers([mine, one])
    error = caught(lambda: refuse_if_shared(Nvml()))
    assert kind(error) == ("gpu-in-use", "anyway")
    assert numbers(error.message)[:4] == [0, 1, 4242, 2048]
    two = SimpleNamespace(pid=17, usedGpuMemory=None)  # what a container may not know
    driver.__dict__["nvmlDeviceGetComputeRunningProcesses"] = answers([one, two])
    assert numbers(caught(lambda: refuse_if_shared(Nvml())).message)[:5] == [0, 2, 4242, 2048, 17]


class Clock:
    """Time that passes when someone sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-6  # looking takes time, so that no loop is endless
        return self.now_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def counting(clock: Clock, watts: float, period_s: float = 0.1) -> Any:
    """A GPU whose counter is refreshed ten times a second."""
    return SimpleNamespace(energy_j=lambda: clock.now_s // period_s * period_s * watts, refresh_s=period_s)


def test_the_counter_is_read_at_its_refreshes(clock: Clock) -> None:
    meter = EnergyMeter(counting(clock, 500.0))
    clock.sleep(0.234)
    meter.start()
    clock.sleep(2.6)
    joules = meter.stop()
    assert meter.window_s == pytest.approx(2.7, abs=0.003)
    assert joules / meter.window_s == pytest.approx(500.0, rel=0.002)


def test_the_load_goes_on_until_the_refresh(clock: Clock) -> None:
    meter, calls = EnergyMeter(counting(clock, 500.0)), []

    def work() -> None:
        calls.append(clock.now_s)
        clock.sleep(0.007)

    meter.start(work)
    before = len(calls)
    clock.sleep(2.55)
    joules = meter.stop(work)
    assert len(calls) > before > 0
    assert calls[-1] > meter.began_s + meter.window_s - 0.01
    assert joules / meter.window_s == pytest.approx(500.0, rel=0.006)


def test_a_counter_that_stands_still(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="does not advance"):
        EnergyMeter(counting(clock, 0.0)).start()


def test_samples_in_place_of_a_counter() -> None:
    taken = threading.Semaphore(0)
    gpu: Any = SimpleNamespace(instant_w=lambda: taken.release() or 300.0, refresh_s=0.002)
    meter = SamplingMeter(gpu)
    meter.start()
    for _ in range(20):
        taken.acquire()
    assert meter.stop() / meter.window_s == pytest.approx(300.0)
    assert meter.uncertainty_frac > EnergyMeter.uncertainty_frac


def test_samples_that_fail() -> None:
    asked = threading.Event()

    def lost() -> float:
        asked.set()
        raise RunFailed("GPU 0 no longer responds", code="device-broken")

    meter = SamplingMeter(SimpleNamespace(instant_w=lost, refresh_s=0.002))  # type: ignore[arg-type]
    meter.start()
    asked.wait()
    assert caught(meter.stop).code == "device-broken"
    short = SamplingMeter(SimpleNamespace(instant_w=lambda: 1.0, refresh_s=60.0))  # type: ignore[arg-type]
    short.start()
    with pytest.raises(RuntimeError, match="too short"):
        short.stop()


def test_a_window_under_load(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what ran inside the window counts, and the load never rests in it."""
    torch = ModuleType("torch")
    torch.__dict__["cuda"] = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(power, "time", clock)
    load = power.PowerLoad(flop=2e12, moved_bytes=1e9, run=lambda: clock.sleep(0.005))
    monkeypatch.setattr(power, "load_of", lambda _: load)
    gpu = counting(clock, 600.0)
    gpu.has_counter, gpu.sm_hz, gpu.instant_w = True, lambda: module.NAN, lambda: 590.0
    gpu.held_by = lambda: (True, False)
    read = power.measure_power(PowerPoint(load="gemm", duty_frac=1.0), gpu)
    assert 2.6 <= read["window_s"] <= 2.71
    assert read["calls"] == pytest.approx(read["window_s"] / 0.005, abs=2)
    assert read["power_w"] == pytest.approx(600.0, rel=0.005)
    assert (read["instant_w"], read["sm_hz"]) == (590.0, None)
    assert (read["capped_frac"], read["hot_frac"], read["by"]) == (1.0, 0.0, "energy counter")


def test_what_the_power_probe_refuses(monkeypatch: pytest.MonkeyPatch, driver: ModuleType) -> None:
    monkeypatch.setattr(power, "need_torch", lambda _: None)
    driver.__dict__["nvmlDeviceGetMigMode"] = answers([1, 1])
    assert kind(caught(lambda: power.ready_gpu(anyway=False))) == ("split-gpu", "CUDA_VISIBLE_DEVICES")
    driver.__dict__["nvmlDeviceGetMigMode"] = answers(NVMLError(NOT_SUPPORTED))
    driver.__dict__["nvmlDeviceGetMemoryInfo"] = answers(SimpleNamespace(total=4 * GIB, free=1 * GIB))
    error = caught(lambda: power.ready_gpu(anyway=False))
    assert kind(error) == ("out-of-memory", "CUDA_VISIBLE_DEVICES")
    assert numbers(error.message) == [3, 1, 4, 0]  # GiB needed, free and in all, and the GPU
    process = SimpleNamespace(pid=4242, usedGpuMemory=None)
    driver.__dict__["nvmlDeviceGetComputeRunningProcesses"] = answers([process])
    assert caught(lambda: power.ready_gpu(anyway=False)).code == "gpu-in-use"
    assert caught(lambda: power.ready_gpu(anyway=True)).code == "out-of-memory"
