"""What is checked before runs are planned: the numbers and folder of a request, its launcher, and the devices here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from knee.base.errors import InputError, argument, either
from knee.base.files import real_path
from knee.measure.machine.inventory import read_inventory
from knee.measure.machine.machine_facts import need_torch
from knee.specs import Job
from knee.specs.argument_types import not_in_range
from knee.specs.choices import Launcher
from knee.specs.hardware import Cluster
from knee.training.launch.site import Site, in_folder
from knee.training.launch.torchrun import through
from knee.training.parallelism.trainer_job import LONGEST_TIMEOUT_S
from knee.training.sweeps.job_for_trainer import PROCESSOR
from knee.training.sweeps.slurm import node_count, require_slurm

PROCESSES_PER_CORE = 4
"""On a processor ranks wait for each other, not for their core alone; more than this only measures the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevices:
    """The devices of this machine that can train."""

    gpus: tuple[str, ...]
    """Names of the GPUs that torch can use."""
    cores: int

    @classmethod
    def here(cls) -> LocalDevices:
        """Read the devices of this machine."""
        found = read_inventory()
        gpus = found.gpus if found.software.torch_uses_gpus else ()
        return cls(gpus=tuple(gpu.name or "" for gpu in gpus), cores=os.cpu_count() or 1)

    def refuses(self, cluster: Cluster, ranks: int) -> str | None:
        """Why a run of a cluster's GPUs cannot be trained here, if it cannot."""
        if cluster.gpu.vendor == PROCESSOR:
            most = PROCESSES_PER_CORE * self.cores
            return None if ranks <= most else f"{ranks:,} processes are too many for {self.cores} cores"
        if not self.gpus:
            return f"{cluster.gpu.name} is required, but no GPU can be used here"
        if ranks > len(self.gpus):
            return f"{ranks:,} GPUs are required, but this machine has {len(self.gpus)}"
        word = cluster.gpu.name.partition("-")[0]
        others = [name for name in self.gpus if name and word.lower() not in name.lower().replace("-", " ").split()]
        return f"{cluster.gpu.name} is required, but this machine has {others[0]}" if others else None


def check_run_numbers(steps: int | None, warmup: int | None, trace_steps: int, timeout_s: float) -> None:
    """Refuse numbers that no run can have."""
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("trace_steps", trace_steps, 0)):
        if value is not None and value < least:
            raise not_in_range(name, str(value), f"it must be at least {least}")
    if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise not_in_range("timeout_s", f"{timeout_s:g}", f"it must be positive and at most {LONGEST_TIMEOUT_S:,.0f}")


def checked_folder(out: str | Path) -> Path:
    """The folder of a sweep without links; refused where no folder can have that name."""
    if not str(out).strip() or any(ord(letter) < 32 for letter in str(out)):
        why = "contains a line break" if str(out).strip() else "is empty"
        raise InputError(
            f"{argument('out')} {str(out)!r} {why}", hint="name another folder", code="not-a-folder-name", field="out"
        )
    if Path(out).exists() and not Path(out).is_dir():
        text = f"{out} cannot be created: a file with that name exists"
        raise InputError(text, hint="name another folder", code="not-a-folder", field="out")
    return real_path(out)


def check_container(site: Site, launcher: Launcher) -> None:
    """Refuse a container runtime that the launcher does not have."""
    if site.container_runtime == "pyxis" and launcher != "slurm":
        raise InputError(
            f"pyxis needs Slurm, but {argument('launcher')} is {launcher}",
            hint=f"use {argument('container_runtime')} apptainer, or {argument('launcher')} slurm",
            code="contradiction",
            field="container_runtime",
        )


def program_paths(program: Sequence[str]) -> list[str]:
    """The words of a program with absolute paths of files, because runs start in other folders than this one."""
    return [in_folder(word, Path(), bare=at > 0) if Path(word).is_file() else word for at, word in enumerate(program)]


SLURM_OPTIONS = (
    *("partition", "account", "qos", "exclusive", "exclude", "cpus_per_node", "max_queued", "max_running", "wait"),
    "pack",
)
TORCHRUN_OPTIONS = ("hosts", "via")
Refusal = Callable[[Job], str | None]
"""Why a launcher cannot start a job; None where it can."""


def refuse_unread(launcher: Launcher, given: Collection[str]) -> None:
    """Refuse options that the launcher would not read; a site file may have them, for other launchers."""
    for owner, names in (("slurm", SLURM_OPTIONS), ("torchrun", TORCHRUN_OPTIONS)):
        unread = [option for option in names if option in given] if launcher != owner else []
        if unread:
            raise InputError(
                f"{argument(unread[0])} applies only to the launcher {owner}",
                hint=f"add {argument('launcher')} {owner}",
                code="contradiction",
                field=unread[0],
            )
    if "gpus_per_node" in given and launcher == "local":
        raise InputError(
            f"{argument('gpus_per_node')} cannot be used with {argument('launcher')} local, which starts all "
            "processes on this machine",
            hint="leave it out",
            code="contradiction",
            field="gpus_per_node",
        )


def require_launcher(launcher: Launcher, site: Site, program: Sequence[str]) -> None:
    """Refuse a sweep before it is planned where what starts its runs is missing."""
    if launcher == "slurm":
        require_slurm()
    elif launcher == "torchrun":
        _require_hosts(site)
    else:
        _require_commands(site, program)
        if not (program or site.python or site.container):
            need_torch(either('knee.prepare_sweep(launcher="local")', "knee sweep --launcher local"))


def _require_hosts(site: Site) -> None:
    if not site.hosts:
        raise InputError(
            f"{argument('hosts')} is missing: the launcher torchrun needs the names or addresses of the machines",
            hint=f"use {argument('hosts')} node1,node2, or {argument('launcher')} local for this machine",
            code="missing-argument",
            field="hosts",
        )
    command = through(site.via, site.hosts[0], ["true"])[0]
    if shutil.which(command) is None:
        raise InputError(
            f"{argument('via')} {site.via!r}: there is no {command} here",
            hint=f'give a command that runs commands on another machine, for example {argument("via")} "ssh {{host}}"',
            code="missing-command",
            field="via",
        )


def _require_commands(site: Site, program: Sequence[str]) -> None:
    """Refuse a program that is missing. A container has its own commands, and a set-up may extend the PATH."""
    name, word = ("program", program[0]) if program else ("python", site.python)
    if not word or site.container or (site.setup and "/" not in word) or shutil.which(word) is not None:
        return
    problem = "is not executable" if Path(word).is_file() else "is not here"
    raise InputError(
        f"{argument(name)} {word!r} {problem}",
        hint="give an executable file, or a command on the PATH",
        code="missing-command",
        field=name,
    )


def refusal_by(launcher: Launcher, site: Site, *, own_program: bool, ask_slurm: bool) -> Refusal:
    """What this launcher says of a job. A program of the user's may run any job on this machine."""
    if launcher == "local":
        machine = None if own_program else LocalDevices.here()
        return lambda job: None if machine is None else machine.refuses(job.cluster, job.gpus)
    most = len(site.hosts) if launcher == "torchrun" else node_count(site) if ask_slurm else None
    words = f"hosts, but {most} are given" if launcher == "torchrun" else f"nodes, but Slurm has {most}"

    def too_many_nodes(job: Job) -> str | None:
        nodes = -(-job.gpus // (site.gpus_per_node or job.cluster.node.gpus))
        return None if most is None or nodes <= most else f"it needs {nodes} {words}"

    return too_many_nodes
