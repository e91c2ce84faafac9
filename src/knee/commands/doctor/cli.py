"""``knee doctor``: what this machine has and what works on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from knee.base.units import show
from knee.commands.doctor.api import MachineCheck
from knee.commands.options.output import print_result
from knee.commands.options.sections import as_json
from knee.measure.machine.gpus import LocalGpu
from knee.measure.machine.inventory import Nic, Software
from knee.show.terminal.table import print_heading, print_rows


def print_doctor(answer: MachineCheck) -> None:
    """The machine, the parts that knee needs, and which commands are ready."""
    inventory = answer.inventory
    cpus, nodes = _count(inventory.cpu.cpus, "CPU", "CPUs"), _count(inventory.cpu.numa_nodes, "NUMA node", "NUMA nodes")
    version = f"NVIDIA {inventory.software.driver.version}" if inventory.software.driver.version else None
    cuda = f"supports CUDA up to {inventory.software.driver.cuda}" if inventory.software.driver.cuda else None
    known = ", ".join(part for part in (version, cuda) if part)
    rows = {
        "knee": answer.knee,
        "python": f"{answer.python} ({sys.executable})",
        "platform": answer.platform,
        "CPU": _facts({"model": inventory.cpu.model, "number": cpus, "NUMA nodes": nodes}),
        "driver": ("; ".join(part for part in (known, inventory.software.driver.trouble) if part) or "unknown"),
        "NCCL": _nccl(inventory.software),
    }
    _print("this machine", list(rows.items()))
    _print("GPUs", _gpus(inventory.gpus) or [["none found"]])
    _print("network", [_nic(nic) for nic in inventory.network] or [["none found"]])
    parts = [
        [n.name, n.found or "not found", n.why if n.found else f"{n.why}; to install it: {n.get}"] for n in answer.needs
    ]
    _print("software and tools", parts, dim=(2,))
    states = {name: f"needs {', '.join(lacking)}" if lacking else "ready" for name, lacking in answer.missing.items()}
    _print("commands", [[f"knee {name}", state] for name, state in states.items()])


def _print(heading: str, rows: Sequence[Sequence[str]], *, dim: Sequence[int] = ()) -> None:
    print_heading(heading)
    print_rows(rows, dim=dim)


def _facts(facts: dict[str, str | None]) -> str:
    known = ", ".join(fact for fact in facts.values() if fact is not None)
    unknown = ", ".join(name for name, fact in facts.items() if fact is None)
    return "; ".join(part for part in (known, f"unknown: {unknown}" if unknown else "") if part)


def _count(number: int | None, one: str, many: str) -> str | None:
    return None if number is None else f"{number} {one if number == 1 else many}"


def _nccl(software: Software) -> str:
    if software.nccl:
        return f"{software.nccl} ({software.nccl_from})"
    return "not found" if software.torch is None else "unknown; torch may contain its own"


def _gpus(gpus: Sequence[LocalGpu]) -> list[list[str]]:
    alike: dict[LocalGpu, list[int]] = {}
    for gpu in gpus:
        alike.setdefault(replace(gpu, index=0), []).append(gpu.index)
    return [[_ranges(indices), gpu.name or "name unknown", gpu.trouble or _gpu(gpu)] for gpu, indices in alike.items()]


def _gpu(gpu: LocalGpu) -> str:
    return _facts(
        {
            "memory": None if gpu.memory_bytes is None else show(gpu.memory_bytes, "bytes"),
            "power limit": None if gpu.power_limit_w is None else f"up to {show(gpu.power_limit_w, 'w')}",
            "PCIe generation": None if gpu.pcie_generation is None else f"PCIe {gpu.pcie_generation}",
            "PCIe lanes": _count(gpu.pcie_width, "lane", "lanes"),
            "NVLink": _nvlink(gpu),
            "MIG": _switch("MIG", gpu.mig),
            "ECC": _switch("ECC", gpu.ecc),
            "other processes": _count(gpu.other_processes, "other process", "other processes"),
        }
    )


def _nvlink(gpu: LocalGpu) -> str | None:
    if not gpu.nvlinks:
        return None if gpu.nvlinks is None else "no active NVLink"
    rate = None if gpu.nvlink_bytes_per_s is None else f"{show(gpu.nvlink_bytes_per_s, 'bytes_per_s')} per direction"
    return f"{_count(gpu.nvlinks, 'NVLink', 'NVLinks')} ({rate or 'rate unknown'})"


def _switch(name: str, on: bool | None) -> str | None:
    return None if on is None else f"{name} {'on' if on else 'off'}"


def _ranges(indices: Sequence[int]) -> str:
    """``0-3,6`` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _nic(nic: Nic) -> list[str]:
    facts = {
        "kind": nic.link_layer,
        "RDMA": "RDMA" if nic.rdma else "no RDMA",
        "state": nic.state,
        "rate": None if nic.bytes_per_s is None else f"{show(nic.bytes_per_s, 'bytes_per_s')} per direction",
        "NUMA node": None if nic.numa_node is None else f"NUMA node {nic.numa_node}",
    }
    return [nic.name, _facts(facts)]


@click.command("doctor")
@as_json("Print JSON.")
def command(as_json: bool) -> None:
    """Show what this machine has, which commands work on it, and how to install what is missing.

    knee reads the GPUs, driver, network and versions if possible, without importing torch or other large packages.
    The exit code is always 0.
    """
    from knee.commands.doctor.api import doctor

    print_result(doctor(), as_json, print_doctor)
