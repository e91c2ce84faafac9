"""What this machine has: GPUs, network, CPUs, driver, NCCL, torch. Only looks, imports no torch and never fails.

What a machine does not tell is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from knee.base.units import GB, MB
from knee.measure.machine.gpus import LocalGpu, NvidiaDriver, amd_gpus, entries, number_of, nvidia_gpus, text_of

TorchBackend = Literal["cuda", "rocm", "cpu"]
BACKENDS: dict[TorchBackend, str] = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPU"}


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
    torch_backend: TorchBackend | None

    @property
    def torch_uses_gpus(self) -> bool:
        """Whether torch was built for GPUs."""
        return self.torch_backend in ("cuda", "rocm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Hardware and software of this machine."""

    gpus: tuple[LocalGpu, ...]
    network: tuple[Nic, ...]
    cpu: Cpu
    software: Software


def read_inventory(root: Path = Path("/")) -> Inventory:
    """Look at everything; ``root`` holds ``sys``, ``proc`` and the libraries."""
    gpus, driver = nvidia_gpus(root)
    torch, backend, backend_version = _torch()
    nccl, place = _nccl(root, backend_version if backend == "cuda" else None)
    build = None if backend is None else f"{BACKENDS[backend]} {backend_version or ''}".rstrip()
    return Inventory(
        gpus=(*gpus, *amd_gpus(root, after=len(gpus))),
        network=(*_rdma(root), *_ethernet(root)),
        cpu=read_cpu(root),
        software=Software(
            driver=driver, nccl=nccl, nccl_from=place, torch=torch, torch_build=build, torch_backend=backend
        ),
    )


def _rdma(root: Path) -> Iterator[Nic]:
    for device in entries(root / "sys/class/infiniband"):
        for port in entries(device / "ports"):
            state = (text_of(port / "state") or "").rpartition(":")[2].strip().lower() or None  # "4: ACTIVE"
            rate = re.match(r"([\d.]+) Gb/sec", text_of(port / "rate") or "")
            yield Nic(
                name=f"{device.name}:{port.name}",
                rdma=True,
                link_layer=text_of(port / "link_layer"),
                state=state,
                bytes_per_s=float(rate[1]) * GB / 8 if rate and state == "active" else None,
                numa_node=number_of(device / "device/numa_node"),
            )


def _ethernet(root: Path) -> Iterator[Nic]:
    """Interfaces with hardware behind them that are not already there as RDMA ports."""
    for interface in entries(root / "sys/class/net"):
        device = interface / "device"  # bridges, tunnels and the loopback have none
        if not device.exists() or (device / "infiniband").exists():
            continue
        state, mbit_per_s = text_of(interface / "operstate"), number_of(interface / "speed")
        yield Nic(
            name=interface.name,
            rdma=False,
            link_layer="Ethernet" if text_of(interface / "type") == "1" else None,
            state=state,
            bytes_per_s=mbit_per_s * MB / 8 if mbit_per_s and state == "up" else None,
            numa_node=number_of(device / "numa_node"),
        )


def read_cpu(root: Path) -> Cpu:
    """Name and number of the processors."""
    model = re.search(r"^model name\s*:\s*(.+)$", text_of(root / "proc/cpuinfo") or "", re.M)
    nodes = sum(bool(re.fullmatch(r"node\d+", node.name)) for node in entries(root / "sys/devices/system/node"))
    return Cpu(model=model[1] if model else None, cpus=os.cpu_count(), numa_nodes=nodes or None)


def _torch() -> tuple[str | None, TorchBackend | None, str | None]:
    """Version, backend and the backend's version, from the file that torch itself reads them from."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None, None
    text = text_of(Path(spec.origin).with_name("version.py")) or ""
    said = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]?([^'\"\s]+)", text, re.M))
    version = said.get("__version__") or installed_version("torch")
    if said.get("cuda", "None") != "None":
        return version, "cuda", said["cuda"]
    if said.get("hip", "None") != "None":
        return version, "rocm", said["hip"]
    return version, "cpu" if said.get("cuda") == "None" else None, None


def _nccl(root: Path, cuda_version: str | None) -> tuple[str | None, str | None]:
    """The package that torch's wheels bring, otherwise the library of the system."""
    cuda = re.match(r"(\d+)", cuda_version or "")
    for major in (cuda[1],) if cuda else ("13", "12"):
        if version := installed_version(package := f"nvidia-nccl-cu{major}"):
            return version, package
    for folder in _library_folders(root):
        for file in entries(folder):
            if match := re.fullmatch(r"libnccl\.so\.(\d+\.\d+\.\d+)", file.name):
                return match[1], str(file)
    return None, None


def _library_folders(root: Path) -> Iterator[Path]:
    """Where the dynamic linker looks, roughly in its order."""
    yield from (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    for conf in entries(root / "etc/ld.so.conf.d"):
        for line in (text_of(conf) or "").splitlines():
            if line.startswith("/"):
                yield root / line.strip().lstrip("/")
    yield from (root / folder for folder in ("usr/lib64", "usr/lib", "usr/local/lib", "usr/local/cuda/lib64"))


def installed_version(package: str) -> str | None:
    """Version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
