"""What starts the runs of a sweep: whether it is here, and which jobs it cannot start."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from knee.base.errors import InputError, argument, either
from knee.measure.machine.machine_facts import need_torch
from knee.specs import Job
from knee.specs.choices import Launcher
from knee.training.launch.site import Site
from knee.training.launch.torchrun import through
from knee.training.sweeps.local_devices import LocalDevices
from knee.training.sweeps.slurm import node_count, require_slurm

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
    """A container has its own commands, and a set-up may put more into the PATH."""
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
    if launcher == "torchrun":
        hosts = len(site.hosts)
        return lambda job: _too_many_nodes(job, site, hosts, f"hosts, but {hosts} are given")
    nodes = node_count(site) if ask_slurm else None
    return lambda job: None if nodes is None else _too_many_nodes(job, site, nodes, f"nodes, but Slurm has {nodes}")


def _too_many_nodes(job: Job, site: Site, most: int, words: str) -> str | None:
    nodes = -(-job.gpus // (site.gpus_per_node or job.cluster.node.gpus))
    return None if nodes <= most else f"it needs {nodes} {words}"
