"""What this machine has: GPUs, network, CPUs, driver, NCCL, torch. Only looks, imports no torch and never fails.

What a machine does not tell is None.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from knee.units import GB, MB

NVML_LIBRARY = "libnvidia-ml.so.1"
NO_DRIVER = f"no NVIDIA driver: {NVML_LIBRARY} is not found"
NO_PACKAGE = "the NVIDIA driver is there, but the package that reads it, nvidia-ml-py, is not installed"
NO_GPU = "the NVIDIA driver answers, but shows no GPU"
NVML_ERRORS = {
    4: "this user has no permission to open the NVIDIA devices",
    9: "the NVIDIA driver is installed, but not loaded",
    12: NO_DRIVER,
    18: f"the loaded NVIDIA driver and {NVML_LIBRARY} are of different versions: reboot or reload the driver",
}
"""NVML's return code -> what it means here."""
NVLINK_MAX = 18
"""Links asked for where an older nvidia-ml-py does not know how many there can be."""
NVLINK_SPEED_OF_LINK, NVLINK_SPEED_COMMON = 164, 90  # NVML_FI_DEV_NVLINK_GET_SPEED, .._SPEED_MBPS_COMMON
AMD_VENDOR = "0x1002"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, numbered in the order of the PCI bus; CUDA may number them otherwise."""

    index: int
    name: str | None = None
    memory_bytes: float | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    """The highest that GPU and slot both have: the present one falls when the GPU idles."""
    pcie_width: int | None = None
    nvlinks: int | None = None
    """Active links."""
    nvlink_bytes_per_s: float | None = None
    """All active links together, per direction. The line rate, which lies a little above the data sheet's."""
    mig: bool | None = None
    ecc: bool | None = None
    other_processes: int | None = None
    """Processes that compute on it, this one not counted."""
    trouble: str | None = None
    """Why nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The driver and its library NVML."""

    version: str | None = None
    cuda: str | None = None
    """The newest CUDA it runs."""
    nvml: str | None = None
    trouble: str | None = None
    """Why NVML does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One port of the network."""

    name: str
    """As NCCL names it: ``mlx5_0:1`` for RDMA, ``eth0`` otherwise."""
    rdma: bool
    link_layer: str | None
    state: str | None
    bytes_per_s: float | None
    """Per direction; None where the port is not up, because its rate then says nothing."""
    numa_node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The host's processors."""

    model: str | None
    cpus: int | None
    """Logical ones, whether or not this process may use them all."""
    numa_nodes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What training runs on."""

    driver: NvidiaDriver
    nccl: str | None
    nccl_from: str | None
    """The package or file that says so. A torch that holds its own NCCL says nothing."""
    torch: str | None
    torch_build: str | None
    """``CUDA 13.0``, ``ROCm 6.4`` or ``CPU``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All of it."""

    gpus: tuple[Gpu, ...]
    network: tuple[Nic, ...]
    cpu: Cpu
    software: Software


def read_inventory(root: Path = Path("/")) -> Inventory:
    """Look at everything; ``root`` holds ``sys``, ``proc`` and the libraries."""
    gpus, driver = _nvidia(root)
    torch, build = _torch()
    nccl, place = _nccl(root, build)
    return Inventory(
        gpus=(*gpus, *_amd(root, after=len(gpus))),
        network=(*_rdma(root), *_ethernet(root)),
        cpu=_cpu(root),
        software=Software(driver=driver, nccl=nccl, nccl_from=place, torch=torch, torch_build=build),
    )


def nvml_library() -> str | None:
    """NVML's library, if the driver has brought it."""
    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return None
    return NVML_LIBRARY


def _nvidia(root: Path) -> tuple[tuple[Gpu, ...], NvidiaDriver]:
    try:
        import pynvml
    except ImportError:
        return _without_nvml(root, NO_PACKAGE if nvml_library() else NO_DRIVER)
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return _without_nvml(root, nvml_in_words(error))
    gpus = tuple(_gpu(pynvml, index) for index in range(count))
    cuda = _ask(pynvml, "nvmlSystemGetCudaDriverVersion")
    driver = NvidiaDriver(
        version=_ask(pynvml, "nvmlSystemGetDriverVersion"),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        nvml=_ask(pynvml, "nvmlSystemGetNVMLVersion"),
        trouble=None if gpus else NO_GPU,
    )
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    return gpus, driver


def _without_nvml(root: Path, trouble: str) -> tuple[tuple[Gpu, ...], NvidiaDriver]:
    """The kernel module alone tells its version and the GPUs' names."""
    proc = root / "proc/driver/nvidia"
    version = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _text(proc / "version") or "")
    files = sorted((proc / "gpus").glob("*/information"))  # folders are PCI addresses, of hexadecimal digits
    models = [re.search(r"^Model:\s*(.+)$", _text(file) or "", re.M) for file in files]
    gpus = tuple(Gpu(index=index, name=model[1] if model else None) for index, model in enumerate(models))
    return gpus, NvidiaDriver(version=version[1] if version else None, trouble=trouble)


def nvml_in_words(error: Any) -> str:
    """Why NVML does not answer."""
    return NVML_ERRORS.get(getattr(error, "value", None) or 0, f"NVML does not answer: {error}")


def _ask(nvml: Any, call: str, *arguments: Any) -> Any:
    """One answer of NVML, or None: boards, drivers and permissions differ in what they tell."""
    try:
        answer = getattr(nvml, call)(*arguments)
    except (nvml.NVMLError, AttributeError, TypeError):  # the last two: nvidia-ml-py is older than the call
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Gpu(index=index, trouble=nvml_in_words(error))

    def ask(what: str, *arguments: Any) -> Any:
        return _ask(nvml, f"nvmlDeviceGet{what}", handle, *arguments)

    memory, limit_mw, running = ask("MemoryInfo"), ask("EnforcedPowerLimit"), ask("ComputeRunningProcesses")
    mig, ecc = ask("MigMode"), ask("EccMode")  # each is [now, after a reset]
    nvlinks, nvlink_bytes_per_s = _nvlink(ask, getattr(nvml, "NVML_NVLINK_MAX_LINKS", NVLINK_MAX))
    return Gpu(
        index=index,
        name=ask("Name"),
        memory_bytes=None if memory is None else float(memory.total),
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        pcie_generation=ask("MaxPcieLinkGeneration"),
        pcie_width=ask("CurrPcieLinkWidth"),
        nvlinks=nvlinks,
        nvlink_bytes_per_s=nvlink_bytes_per_s,
        mig=None if mig is None else bool(mig[0]),
        ecc=None if ecc is None else bool(ecc[0]),
        other_processes=None if running is None else sum(process.pid != os.getpid() for process in running),
    )


def _nvlink(ask: Callable[..., Any], links: int) -> tuple[int | None, float | None]:
    """Active links, and what they carry together."""
    states = [ask("NvLinkState", link) for link in range(links)]
    if all(state is None for state in states):
        return None, None
    rates = [_nvlink_rate(ask, link) for link, state in enumerate(states) if state]
    known = [rate for rate in rates if rate is not None]
    return len(rates), sum(known) if len(known) == len(rates) else None


def _nvlink_rate(ask: Callable[..., Any], link: int) -> float | None:
    """Newer GPUs tell the speed of each link, older ones a speed that all share."""
    for field in ((NVLINK_SPEED_OF_LINK, link), NVLINK_SPEED_COMMON):
        answer = ask("FieldValues", [field])
        if answer is not None and answer[0].nvmlReturn == 0 and answer[0].value.uiVal:
            return float(answer[0].value.uiVal) * MB
    return None


def _amd(root: Path, *, after: int) -> Iterator[Gpu]:
    """AMD's cards as the kernel describes them, where its compute driver is loaded."""
    if not (root / "sys/class/kfd").exists():
        return
    cards = [card / "device" for card in _in(root / "sys/class/drm") if re.fullmatch(r"card\d+", card.name)]
    for index, card in enumerate((card for card in cards if _text(card / "vendor") == AMD_VENDOR), start=after):
        memory = _number(card / "mem_info_vram_total")
        yield Gpu(
            index=index,
            name=_text(card / "product_name") or f"AMD device {_text(card / 'device') or 'of unknown type'}",
            memory_bytes=None if memory is None else float(memory),
            pcie_width=_number(card / "current_link_width"),
        )


def _rdma(root: Path) -> Iterator[Nic]:
    for device in _in(root / "sys/class/infiniband"):
        for port in _in(device / "ports"):
            state = (_text(port / "state") or "").rpartition(":")[2].strip().lower() or None  # "4: ACTIVE"
            rate = re.match(r"([\d.]+) Gb/sec", _text(port / "rate") or "")
            yield Nic(
                name=f"{device.name}:{port.name}",
                rdma=True,
                link_layer=_text(port / "link_layer"),
                state=state,
                bytes_per_s=float(rate[1]) * GB / 8 if rate and state == "active" else None,
                numa_node=_number(device / "device/numa_node"),
            )


def _ethernet(root: Path) -> Iterator[Nic]:
    """Interfaces with hardware behind them that are not already there as RDMA ports."""
    for interface in _in(root / "sys/class/net"):
        device = interface / "device"  # bridges, tunnels and the loopback have none
        if not device.exists() or (device / "infiniband").exists():
            continue
        state, mbit_per_s = _text(interface / "operstate"), _number(interface / "speed")
        yield Nic(
            name=interface.name,
            rdma=False,
            link_layer="Ethernet" if _text(interface / "type") == "1" else None,
            state=state,
            bytes_per_s=mbit_per_s * MB / 8 if mbit_per_s and state == "up" else None,
            numa_node=_number(device / "numa_node"),
        )


def _cpu(root: Path) -> Cpu:
    model = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo") or "", re.M)
    nodes = sum(bool(re.fullmatch(r"node\d+", node.name)) for node in _in(root / "sys/devices/system/node"))
    return Cpu(model=model[1] if model else None, cpus=os.cpu_count(), numa_nodes=nodes or None)


def _torch() -> tuple[str | None, str | None]:
    """Version and build, from the file that torch itself reads them from."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    text = _text(Path(spec.origin).with_name("version.py")) or ""
    said = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]?([^'\"\s]+)", text, re.M))
    version = said.get("__version__") or _installed("torch")
    for name, key in (("CUDA", "cuda"), ("ROCm", "hip")):
        if said.get(key, "None") != "None":
            return version, f"{name} {said[key]}"
    return version, "CPU" if said.get("cuda") == "None" else None


def _nccl(root: Path, torch_build: str | None) -> tuple[str | None, str | None]:
    """The package that torch's wheels bring, otherwise the library of the system."""
    cuda = re.match(r"CUDA (\d+)", torch_build or "")
    for major in (cuda[1],) if cuda else ("13", "12"):
        if version := _installed(package := f"nvidia-nccl-cu{major}"):
            return version, package
    for folder in _library_folders(root):
        for file in _in(folder):
            if match := re.fullmatch(r"libnccl\.so\.(\d+\.\d+\.\d+)", file.name):
                return match[1], str(file)
    return None, None


def _library_folders(root: Path) -> Iterator[Path]:
    """Where the dynamic linker looks, roughly in its order."""
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    for conf in _in(root / "etc/ld.so.conf.d"):
        for line in (_text(conf) or "").splitlines():
            if line.startswith("/"):
                yield root / line.strip().lstrip("/")
    yield from (root / folder for folder in ("usr/lib64", "usr/lib", "usr/local/lib", "usr/local/cuda/lib64"))


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _in(folder: Path) -> list[Path]:
    """What a folder holds, ``mlx5_2`` before ``mlx5_10``; nothing where it cannot be read."""
    try:
        return sorted(
            folder.iterdir(), key=lambda path: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", path.name)]
        )
    except OSError:
        return []


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _number(file: Path) -> int | None:
    """A count; the kernel writes -1 for what it does not know."""
    text = _text(file)
    return int(text) if text is not None and re.fullmatch(r"[0-9]+", text) else None
