"""What a machine has, read from folders and a driver that are made up here."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from knee.measure.machine import gpus, inventory
from knee.measure.machine.gpus import LocalGpu
from knee.measure.machine.inventory import read_inventory
from made_nvml import NVMLError, answers

NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, NO_LIBRARY, MISMATCH, UNKNOWN = 3, 4, 9, 12, 18, 999
SYSTEM = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlDeviceGetCount": 2,
    "nvmlSystemGetDriverVersion": "580.159.04",
    "nvmlSystemGetCudaDriverVersion": 13000,
    "nvmlSystemGetNVMLVersion": b"13.580.159.04",
}
H100 = {
    "Name": "NVIDIA H100 80GB HBM3",
    "MemoryInfo": SimpleNamespace(total=85_520_809_984),
    "EnforcedPowerLimit": 700_000,
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MigMode": [0, 1],
    "EccMode": [1, 1],
    "ComputeRunningProcesses": [SimpleNamespace(pid=-1), SimpleNamespace(pid=-2)],
}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A ``pynvml`` with two H100s, 18 links each."""

    def state(_: Any, link: int) -> int:
        if link >= 18:
            raise NVMLError(2)
        return 1

    def fields(_: Any, wanted: list[Any]) -> list[Any]:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26_562)) for _ in wanted]

    module = ModuleType("pynvml")
    module.__spec__ = ModuleSpec("pynvml", None)
    calls = SYSTEM | {f"nvmlDeviceGet{name}": value for name, value in H100.items()}
    for name, value in calls.items():
        setattr(module, name, answers(value))
    module.__dict__.update(
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=36,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetFieldValues=fields,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.usefixtures("nvml")
def test_gpus_as_nvml_tells_them(tmp_path: Path) -> None:
    found = read_inventory(tmp_path)
    assert [gpu.index for gpu in found.gpus] == [0, 1]
    assert found.gpus[1] == LocalGpu(
        index=1, name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984.0, power_limit_w=700.0, pcie_generation=5,
        pcie_width=16, nvlinks=18, nvlink_bytes_per_s=pytest.approx(18 * 26.562e9), mig=False, ecc=True,
        other_processes=2,
    )  # fmt: skip
    driver = found.software.driver
    assert (driver.version, driver.cuda, driver.nvml, driver.trouble) == ("580.159.04", "13.0", "13.580.159.04", None)


def test_what_a_board_does_not_tell_is_none(nvml: ModuleType, tmp_path: Path) -> None:
    kept = {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}
    for name in [name for name in vars(nvml) if name.startswith(("nvmlDevice", "nvmlSystem")) and name not in kept]:
        setattr(nvml, name, answers(NVMLError(NOT_SUPPORTED)))
    found = read_inventory(tmp_path)
    assert found.gpus == (LocalGpu(index=0), LocalGpu(index=1))
    assert found.software.driver == gpus.NvidiaDriver()


def test_an_older_package_lacks_calls(nvml: ModuleType, tmp_path: Path) -> None:
    def fields(_: Any, wanted: list[Any]) -> list[Any]:
        if isinstance(wanted[0], tuple):
            raise TypeError("an integer is required")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=25_000))]

    nvml.nvmlDeviceGetFieldValues = fields
    del nvml.nvmlDeviceGetMigMode, nvml.NVML_NVLINK_MAX_LINKS
    gpu = read_inventory(tmp_path).gpus[0]
    assert gpu.mig is None
    assert (gpu.nvlinks, gpu.nvlink_bytes_per_s) == (18, 450e9)


def test_links_without_a_speed(nvml: ModuleType, tmp_path: Path) -> None:
    untold = [SimpleNamespace(nvmlReturn=NOT_SUPPORTED, value=SimpleNamespace(uiVal=0))]
    nvml.nvmlDeviceGetFieldValues = answers(untold)
    gpu = read_inventory(tmp_path).gpus[0]
    assert (gpu.nvlinks, gpu.nvlink_bytes_per_s) == (18, None)
    nvml.nvmlDeviceGetNvLinkState = answers(0)
    assert read_inventory(tmp_path).gpus[0].nvlinks == 0


def test_one_gpu_of_two_is_closed(nvml: ModuleType, tmp_path: Path) -> None:
    def handle(index: int) -> int:
        if index == 1:
            raise NVMLError(NO_PERMISSION)
        return index

    nvml.nvmlDeviceGetHandleByIndex = handle
    first, second = read_inventory(tmp_path).gpus
    assert first.name is not None
    assert second.name is None
    assert second.trouble == gpus.NVML_ERRORS[NO_PERMISSION]


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_LOADED, NO_LIBRARY, MISMATCH])
def test_why_the_driver_does_not_answer(nvml: ModuleType, tmp_path: Path, code: int) -> None:
    nvml.nvmlInit = answers(NVMLError(code))
    found = read_inventory(tmp_path)
    assert found.gpus == ()
    assert found.software.driver.trouble == gpus.NVML_ERRORS[code]
    nvml.nvmlInit = answers(NVMLError(UNKNOWN))
    assert str(UNKNOWN) in str(read_inventory(tmp_path).software.driver.trouble)


def test_a_driver_without_gpus(nvml: ModuleType, tmp_path: Path) -> None:
    nvml.nvmlDeviceGetCount = answers(0)
    assert read_inventory(tmp_path).software.driver.trouble == gpus.NO_GPU


@pytest.mark.parametrize(("release", "version"), [
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
])  # fmt: skip
def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, version: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "nvml_library", lambda: None)
    assert read_inventory(tmp_path).software.driver == gpus.NvidiaDriver(trouble=gpus.NO_DRIVER)

    monkeypatch.setattr(gpus, "nvml_library", lambda: gpus.NVML_LIBRARY)
    write(
        tmp_path / "proc/driver/nvidia",
        {
            "version": release,
            "gpus/0000:18:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18",
            "gpus/0000:2a:00.0/information": "IRQ:   \t\t 18",
        },
    )
    found = read_inventory(tmp_path)
    assert found.gpus == (LocalGpu(index=0, name="NVIDIA H100 80GB HBM3"), LocalGpu(index=1))
    assert found.software.driver == gpus.NvidiaDriver(version=version, trouble=gpus.NO_PACKAGE)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without an NVIDIA driver, torch or NCCL."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "nvml_library", lambda: None)
    monkeypatch.setattr(inventory, "find_spec", lambda _: None)
    monkeypatch.setattr(inventory, "installed_version", lambda _: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def test_nothing_is_there(bare: Path) -> None:
    found = read_inventory(bare)
    assert (found.gpus, found.network) == ((), ())
    assert (found.cpu.model, found.cpu.numa_nodes) == (None, None)
    assert (found.software.nccl, found.software.torch, found.software.torch_build) == (None, None, None)


def test_network(bare: Path) -> None:
    def port(device: str, state: str, rate: str, layer: str) -> dict[str, str]:
        at = f"infiniband/{device}/ports/1"
        return {f"{at}/state": state, f"{at}/rate": rate, f"{at}/link_layer": layer}

    write(
        bare / "sys/class",
        {
            **port("mlx5_10", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"),
            "infiniband/mlx5_10/device/numa_node": "1",
            **port("mlx5_2", "1: DOWN", "40 Gb/sec (4X QDR)", "Ethernet"),
            "infiniband/mlx5_2/device/numa_node": "-1",
            "infiniband/mlx5_3/ports/1/rate": "what is this?",
            "net/lo/type": "772",
            "net/docker0/speed": "10000",
            "net/ens1/device/infiniband/mlx5_2/node_type": "1: CA",
            "net/eth0/device/numa_node": "0",
            "net/eth0/type": "1",
            "net/eth0/operstate": "up",
            "net/eth0/speed": "25000",
            "net/eth1/device/vendor": "0x1af4",
            "net/eth1/type": "1",
            "net/eth1/operstate": "up",
            "net/eth1/speed": "-1",
        },
    )
    nics = read_inventory(bare).network
    assert [(n.name, n.rdma, n.link_layer, n.state, n.bytes_per_s, n.numa_node) for n in nics] == [
        ("mlx5_2:1", True, "Ethernet", "down", None, None),
        ("mlx5_3:1", True, None, None, None, None),
        ("mlx5_10:1", True, "InfiniBand", "active", 50e9, 1),
        ("eth0", False, "Ethernet", "up", 3.125e9, 0),
        ("eth1", False, "Ethernet", "up", None, None),
    ]


def test_amd(bare: Path) -> None:
    files = {
        "drm/card1/device/vendor": "0x1002",
        "drm/card1/device/product_name": "AMD Instinct MI300X",
        "drm/card1/device/mem_info_vram_total": "206141652992",
        "drm/card1/device/current_link_width": "16",
        "drm/card1-DP-1/device/vendor": "0x1002",
        "drm/card0/device/vendor": "0x1a03",
        "drm/card2/device/vendor": "0x1002",
        "drm/card2/device/device": "0x74a1",
    }
    write(bare / "sys/class", files)
    assert read_inventory(bare).gpus == ()
    write(bare / "sys/class", {"kfd/kfd/dev": "234:0"})
    assert read_inventory(bare).gpus == (
        LocalGpu(index=0, name="AMD Instinct MI300X", memory_bytes=206141652992.0, pcie_width=16),
        LocalGpu(index=1, name="AMD device 0x74a1"),
    )


def test_cpu(bare: Path) -> None:
    write(
        bare,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nprocessor\t: 1",
            "sys/devices/system/node/node0/cpulist": "0-55",
            "sys/devices/system/node/node1/cpulist": "56-111",
            "sys/devices/system/node/online": "0-1",
        },
    )
    cpu = read_inventory(bare).cpu
    assert (cpu.model, cpu.numa_nodes) == ("Intel(R) Xeon(R) Platinum 8480C", 2)


@pytest.mark.parametrize(("text", "version", "build"), [
    ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: str | None = None", "2.11.0+cu130", "CUDA 13.0"),
    ("__version__ = '2.9.1+rocm6.4'\ncuda: str | None = None\nhip: str | None = '6.4'", "2.9.1+rocm6.4", "ROCm 6.4"),
    ("__version__ = '2.9.1+cpu'\ncuda: str | None = None\nhip: str | None = None", "2.9.1+cpu", "CPU"),
    ("from somewhere import everything", "2.9.1", None),
])  # fmt: skip
def test_torch_is_read_and_not_imported(
    monkeypatch: pytest.MonkeyPatch, bare: Path, text: str, version: str, build: str | None
) -> None:
    write(bare, {"torch/__init__.py": "raise AssertionError", "torch/version.py": text})
    monkeypatch.setattr(inventory, "find_spec", lambda _: SimpleNamespace(origin=str(bare / "torch/__init__.py")))
    monkeypatch.setattr(inventory, "installed_version", lambda package: "2.9.1" if package == "torch" else None)
    software = read_inventory(bare).software
    assert (software.torch, software.torch_build) == (version, build)
    assert software.torch_uses_gpus == ("cpu" not in version and build is not None)


def test_nccl_of_a_package_then_of_the_system(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    write(
        bare,
        {
            "etc/ld.so.conf.d/x86_64.conf": "# multiarch\n/usr/lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu/libnccl.so.2": "",
            "usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": "",
        },
    )
    software = read_inventory(bare).software
    assert (software.nccl, Path(str(software.nccl_from)).name) == ("2.21.5", "libnccl.so.2.21.5")

    monkeypatch.setattr(inventory, "installed_version", {"nvidia-nccl-cu12": "2.27.5"}.get)
    software = read_inventory(bare).software
    assert (software.nccl, software.nccl_from) == ("2.27.5", "nvidia-nccl-cu12")
