"""``knee doctor``: what this machine has and what works on it. Looks for packages; loads only nvidia-ml-py."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec

import click

import knee
from knee.cli import available
from knee.probe.gpus import NO_DRIVER, NO_PACKAGE, LocalGpu, NvidiaDriver, nvml_library
from knee.probe.inventory import Cpu, Inventory, Nic, Software, read_inventory
from knee.units import show

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that a part of knee needs."""

    name: str
    module: str | None = None
    """What is imported, for a Python package."""
    why: str
    get: str
    """How to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Whether it is there."""

    name: str
    found: str | None
    """Version or place; None where it is missing."""
    why: str
    get: str


BASE, REPORT, TRAIN = "pip install knee", "pip install 'knee[report]'", "pip install 'knee[train]'"
DATA = "pip install 'knee[data]'"
FIT = "pip install 'knee[fit]'"
NEEDS = (
    Need(name="numpy", module="numpy", why="every answer", get=BASE),
    Need(name="pydantic", module="pydantic", why="reading models, clusters and jobs", get=BASE),
    Need(name="click", module="click", why="the command line", get=BASE),
    Need(name="rich", module="rich", why="tables", get=BASE),
    Need(name="msgspec", module="msgspec", why="reading traces quickly", get=BASE),
    Need(name="duckdb", module="duckdb", why="SQL over traces", get="pip install 'knee[trace]'"),
    Need(name="altair", module="altair", why="figures", get=REPORT),
    Need(name="vl-convert-python", module="vl_convert", why="figures", get=REPORT),
    Need(name="torch", module="torch", why="measuring this machine; no simulation needs it", get=TRAIN),
    Need(name="scipy", module="scipy", why="fitting what was measured; no simulation needs it", get=FIT),
    Need(name="nvidia-ml-py", module="pynvml", why="reading NVIDIA GPUs; no simulation needs it", get=TRAIN),
    Need(name="tokenizers", module="tokenizers", why="making tokens of text; synthetic tokens need none", get=DATA),
    Need(name="pyarrow", module="pyarrow", why="reading text from Parquet files", get=DATA),
    Need(name="NVML", why="power of NVIDIA GPUs; no simulation needs it", get="install the NVIDIA driver"),
    Need(name="chromium", why="tests of web pages", get="apt install chromium"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": ("numpy", "pydantic", "click", "rich"),
    "plan": ("numpy", "pydantic", "click", "rich"),
    "scale": ("numpy", "pydantic", "click", "rich"),
    "budget": ("numpy", "pydantic", "click", "rich"),
    "train": ("numpy", "pydantic", "click", "rich", "torch"),
    "dryrun": ("numpy", "pydantic", "click", "rich", "torch"),
    "compare": ("numpy", "pydantic", "click", "rich"),
    "trace": ("numpy", "msgspec", "click", "rich"),
    "study": ("numpy", "pydantic", "click", "rich", "altair", "vl-convert-python"),
    "report": ("numpy", "pydantic", "click", "rich", "altair", "vl-convert-python"),
    "sweep": ("numpy", "pydantic", "click", "rich", "torch"),
    "validate": ("numpy", "pydantic", "click", "rich"),
    "calibrate": ("numpy", "pydantic", "click", "rich", "scipy"),
    "data prepare": ("numpy", "click", "rich", "tokenizers"),
    "data show": ("numpy", "click", "rich"),
    "catalog": ("numpy", "pydantic", "click", "rich"),
    "probe kernels": ("numpy", "pydantic", "click", "rich", "torch", "scipy"),
    "probe collectives": ("numpy", "pydantic", "click", "rich", "torch"),
    "probe power": ("numpy", "pydantic", "click", "rich", "torch", "nvidia-ml-py", "NVML"),
    "probe steps": ("numpy", "pydantic", "click", "rich", "torch"),
    "doctor": ("click", "rich"),
}
"""Command, with its subcommand where it has some -> what it cannot do without."""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Say what this machine has, what works on it, and how to get what is missing.

    Reads GPUs, driver, network and versions where they can be read, and imports neither torch nor any other large
    package. Always exits with 0.
    """
    inventory = read_inventory()
    findings = [_find(need, inventory.software) for need in NEEDS]
    missing = {finding.name for finding in findings if finding.found is None}
    ready = {
        name: [need for need in needs if need in missing]
        for name, needs in COMMANDS.items()
        if name.split()[0] in available()
    }
    if as_json:
        answer = {
            "knee": knee.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            **asdict(inventory),
            "needs": [asdict(finding) for finding in findings],
            "commands": {name: {"ready": not lacking, "missing": lacking} for name, lacking in ready.items()},
        }
        click.echo(json.dumps(answer, indent=2))
        return
    _print_machine(inventory)
    parts = [[f.name, f.found or "not found", f.why if f.found else f"{f.why}: {f.get}"] for f in findings]
    _print("parts", parts, dim=(2,))
    states = {name: f"needs {', '.join(lacking)}" if lacking else "ready" for name, lacking in ready.items()}
    _print("commands", [[f"knee {name}", state] for name, state in states.items()])


def _print_machine(inventory: Inventory) -> None:
    rows = {
        "knee": knee.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "CPU": _cpu(inventory.cpu),
        "driver": _driver(inventory.software.driver),
        "NCCL": _nccl(inventory.software),
    }
    _print("this machine", list(rows.items()))
    _print("GPUs", _gpus(inventory.gpus) or [["none seen"]])
    _print("network", [_nic(nic) for nic in inventory.network] or [["none seen"]])


def _print(heading: str, rows: Sequence[Sequence[str]], *, dim: Sequence[int] = ()) -> None:
    if find_spec("rich") is None:  # the doctor speaks without it
        for line in (heading, *("  " + "  ".join(row) for row in rows)):
            click.echo(line)
        return
    from knee.cli.render.table import print_heading, print_rows

    print_heading(heading)
    print_rows(rows, dim=dim)


def _facts(facts: dict[str, str | None]) -> str:
    """What is known in a row, and the names of what is not."""
    known = ", ".join(fact for fact in facts.values() if fact is not None)
    unknown = ", ".join(name for name, fact in facts.items() if fact is None)
    return "; ".join(part for part in (known, f"unknown: {unknown}" if unknown else "") if part)


def _count(number: int | None, one: str, many: str) -> str | None:
    return None if number is None else f"{number} {one if number == 1 else many}"


def _cpu(cpu: Cpu) -> str:
    cpus, nodes = _count(cpu.cpus, "CPU", "CPUs"), _count(cpu.numa_nodes, "NUMA node", "NUMA nodes")
    return _facts({"model": cpu.model, "number": cpus, "NUMA nodes": nodes})


def _driver(driver: NvidiaDriver) -> str:
    version = f"NVIDIA {driver.version}" if driver.version else None
    cuda = f"runs CUDA up to {driver.cuda}" if driver.cuda else None
    known = ", ".join(part for part in (version, cuda) if part)
    return "; ".join(part for part in (known, driver.trouble) if part) or "unknown"


def _nccl(software: Software) -> str:
    if software.nccl:
        return f"{software.nccl} ({software.nccl_from})"
    return "not found" if software.torch is None else "unknown: torch may hold its own"


def _gpus(gpus: Sequence[LocalGpu]) -> list[list[str]]:
    """A line for GPUs that are alike, not one for each."""
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
    rate = None if gpu.nvlink_bytes_per_s is None else f"{show(gpu.nvlink_bytes_per_s, 'bytes_per_s')} each way"
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
        "rate": None if nic.bytes_per_s is None else f"{show(nic.bytes_per_s, 'bytes_per_s')} each way",
        "NUMA node": None if nic.numa_node is None else f"NUMA node {nic.numa_node}",
    }
    return [nic.name, _facts(facts)]


def _find(need: Need, software: Software) -> CheckResult:
    get = need.get
    match need.name:
        case "torch":
            found = _torch(software)
        case "NVML":
            found, get = _nvml(software.driver), _nvml_cure(software.driver, get)
        case "chromium":
            found = _chromium()
        case _:
            found = _package(need)
    return CheckResult(name=need.name, found=found, why=need.why, get=get)


def _package(need: Need) -> str | None:
    if need.module is None or find_spec(need.module) is None:
        return None
    try:
        return metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return "version unknown"


def _torch(software: Software) -> str | None:
    return f"{software.torch} ({software.torch_build or 'build unknown'})" if software.torch else None


def _nvml(driver: NvidiaDriver) -> str | None:
    """Its version where it answers; without nvidia-ml-py nobody asks it, and its library has to do."""
    if driver.trouble is None:
        return driver.nvml or "version unknown"
    return nvml_library() if driver.trouble == NO_PACKAGE else None


def _nvml_cure(driver: NvidiaDriver, install: str) -> str:
    """A driver that is there but does not answer is not cured by installing it."""
    return install if driver.trouble in (None, NO_DRIVER, NO_PACKAGE) else driver.trouble


def _chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
