"""This machine, as the first line of a file of readings says it; and whether it can be measured at all."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import knee
from knee.base.errors import InputError, KneeError, MissingExtra, argument
from knee.measure.machine.inventory import read_cpu
from knee.measure.machine.listener import SILENT, ProbeListener
from knee.measure.machine.nvml import Nvml, refuse_if_shared
from knee.measure.machine.readings import Machine, Probe

TRAIN = "pip install 'knee[train]'"
HOW = "torchrun --nproc-per-node 8 -m knee probe collectives --out mine.toml"
"""The command for a node of eight GPUs."""


def need_torch(what: str) -> None:
    """Refuse in words where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingExtra(f"{what} needs torch", hint=TRAIN)


def ready(probe: Probe, wanted: str | None, *, anyway: bool = False, listener: ProbeListener = SILENT) -> Machine:
    """The device that will be measured, once it is there and nobody else uses it."""
    need_torch(f"knee probe {probe}")
    # before a context exists: in a container one's own process cannot be told from others
    nvml, why = open_nvml()
    device = choose_device(wanted)
    if device == "cuda" and nvml is None:
        listener.sharing_unknown(why)
    if device == "cuda" and nvml is not None and not anyway:
        refuse_if_shared(nvml)
    return describe(probe, device, nvml=nvml)


def choose_device(wanted: str | None) -> str:
    """The device that was asked for, or the GPU where there is one."""
    import torch

    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        built = torch.version.cuda or torch.version.hip
        why = "torch finds no GPU" if built else f"torch {torch.__version__} was built without CUDA"
        hint = f"`knee doctor` shows the devices of this machine; {argument('device')} cpu measures the CPU"
        raise InputError(f"{argument('device')} cuda: {why}", hint=hint, code="no-gpu", field="device")
    return wanted or ("cuda" if there else "cpu")


def open_nvml() -> tuple[Nvml | None, str]:
    """NVML of the GPU that CUDA will take for its first, or why there is none; no CUDA context is made."""
    try:
        return Nvml(), ""
    except KneeError as error:
        return None, error.message


def same_gpu(nvml: Nvml) -> Nvml:
    """NVML of the GPU that CUDA did take: on a machine of different GPUs, CUDA may count the fastest first."""
    import torch

    uuid = str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")
    return nvml if nvml.uuid.removeprefix("GPU-") == uuid else Nvml(uuid)


def describe(probe: Probe, device: str, *, nvml: Nvml | None = None, devices: int | None = None) -> Machine:
    """Device, host and versions."""
    import torch

    cuda = device == "cuda"
    limits = nvml.limits() if nvml is not None and cuda else None
    properties = torch.cuda.get_device_properties(0) if cuda else None
    cores = len(os.sched_getaffinity(0))
    return Machine(
        probe=probe,
        date=datetime.now(UTC).date().isoformat(),
        device=properties.name if properties is not None else processor(),
        kind="cuda" if cuda else "cpu",
        devices=devices or (torch.cuda.device_count() if cuda else 1),
        sms=properties.multi_processor_count if properties is not None else cores,
        memory_bytes=float(
            properties.total_memory
            if properties is not None
            else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        ),
        power_limit_w=limits.power_limit_w if limits is not None else None,
        host=f"{processor()}, {cores} cores",
        knee=knee.__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda if cuda else None,
        driver=limits.driver if limits is not None else None,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.version.cuda else None,
    )


def processor() -> str:
    """The processor's name, or its architecture where it does not tell."""
    return read_cpu(Path("/")).model or platform.machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunLaunch:
    """What torchrun tells a process in its environment."""

    rank: int
    world: int
    local_rank: int
    per_node: int
    """Processes on this node."""


def read_launch() -> TorchrunLaunch:
    """This process' place, or words about how to start several."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if missing := [name for name in names if name not in os.environ]:
        raise InputError(
            f"collectives are measured between processes, but {missing[0]} is not set; start "
            "this command with torchrun",
            hint=f"`{HOW}`",
            code="missing-argument",
            field=missing[0],
        )
    try:
        rank, world, local_rank, per_node = (int(os.environ[name]) for name in names)
    except ValueError:
        raise InputError(f"{', '.join(names)} should be whole numbers", hint=f"`{HOW}`", code="not-a-number") from None
    if world < 2:
        text = "a collective needs at least two processes, but only one was started"
        raise InputError(text, hint=f"`{HOW}`", code="too-few-gpus", field="WORLD_SIZE")
    if world % per_node:
        raise InputError(
            f"{world} processes do not fill nodes of {per_node}",
            hint="start the same number of processes on every node",
            code="does-not-divide",
            field="WORLD_SIZE",
        )
    return TorchrunLaunch(rank=rank, world=world, local_rank=local_rank, per_node=per_node)


def ready_rank(backend: str | None) -> tuple[TorchrunLaunch, str]:
    """This process' place, and what the backend moves: the memory of GPUs for NCCL, the host's for gloo."""
    need_torch("`knee probe collectives`")
    import torch

    launch, gpus = read_launch(), torch.cuda.device_count()
    if backend == "nccl" and not gpus:
        raise InputError(
            f"{argument('backend')} nccl: torch {torch.__version__} finds no GPU",
            hint=f"`knee doctor` shows the devices of this machine; {argument('backend')} gloo measures the CPU",
            code="no-gpu",
            field="backend",
        )
    device = choose_device("cpu" if backend == "gloo" else None)
    if device == "cuda" and launch.per_node > gpus:
        raise InputError(
            f"{launch.per_node} processes on this node would share {gpus} GPUs",
            hint=f"give torchrun --nproc-per-node {gpus}, or measure the CPU with {argument('backend')} gloo",
            code="shared-gpus",
        )
    return launch, device
