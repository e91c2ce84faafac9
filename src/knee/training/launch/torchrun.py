"""What is started for a run: torchrun on each of its nodes. Every word is a separate argument, or quoted."""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from knee.base.errors import InputError
from knee.base.processes import free_port, output_of
from knee.training.launch.environment import PACKAGE, SETUP_PYTHON, in_environment, path_line, setup_selects_python
from knee.training.launch.site import SSH, Site
from knee.training.launch.sweep_folder import SweepRun

HEAD, PORT = "KNEE_HEAD", "KNEE_PORT"
"""Where the ranks of a Slurm job meet: set by the supervisor, which runs on the first node."""
NODE = "KNEE_NODE"
"""A host's name in the sweep, for what its ranks write down."""
REMOTE_SHELLS = ("ssh", "rsh")
"""They join their arguments to one line, which a shell on the other side takes apart."""
IN_CONTAINERS = "python3"
ANSWER_S = 20.0
FREE_PORT = "import socket; one = socket.socket(); one.bind(('', 0)); print(one.getsockname()[1])"


def torchrun(entry: SweepRun, run: Path, *, python: str, timeout_s: float) -> tuple[list[str], list[str]]:
    """Return torchrun's words before and after those that name the node and the meeting place."""
    sizes = [f"--nnodes={entry.nodes}", f"--nproc-per-node={entry.per_node}", "--max-restarts=0"]
    before = [python, "-m", "torch.distributed.run", *sizes, f"--rdzv-conf=timeout={max(1, int(timeout_s))}"]
    return before, ["-m", "knee.training.launch.rank", str(run)]


def on_this_machine(site: Site, entry: SweepRun, run: Path, *, timeout_s: float, program: Sequence[str]) -> list[str]:
    """Return the command that starts all ranks on this machine."""
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    meet = f"--node-rank=0 --master-addr=127.0.0.1 --master-port={free_port()}"
    line = _line(site, run, before, meet, after, program)
    return in_environment(site, run.parents[1], line)


def on_hosts(
    site: Site, entry: SweepRun, run: Path, hosts: Sequence[str], *, timeout_s: float, program: Sequence[str]
) -> list[list[str]]:
    """Return one command per host; ranks meet on the first host."""
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    port, head = free_port_on(site, hosts[0], run), address(hosts[0])
    found = []
    for rank, host in enumerate(hosts):
        meet = f"--node-rank={rank} --master-addr={shlex.quote(head)} --master-port={port}"
        line = _line(site, run, before, meet, after, program)
        found.append(_reached(site, host, in_environment(site, run.parents[1], line, more={NODE: host})))
    return found


def on_host(site: Site, host: str, words: Sequence[str], run: Path) -> list[str]:
    """A command of knee's own on a host, which needs neither the set-up nor the variables of runs."""
    return _reached(site, host, ["bash", "-c", f"{path_line(run.parents[1])}; exec {shlex.join(words)}"])


def _reached(site: Site, host: str, words: list[str]) -> list[str]:
    return words if is_direct(site, host) else through(site.via, host, words)


def is_direct(site: Site, host: str) -> bool:
    """Whether a host is this machine, and nothing leads there."""
    here = ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())
    return address(host) in here and site.via == SSH


def on_slurm(site: Site, entry: SweepRun, run: Path, *, timeout_s: float, program: Sequence[str]) -> list[str]:
    """One task a node of the allocation, each a torchrun; quoted where a shell on the node puts in its number."""
    srun = ["srun", f"--nodes={entry.nodes}", f"--ntasks={entry.nodes}", "--ntasks-per-node=1"]
    srun += ["--cpu-bind=none", "--kill-on-bad-exit=1", "--label"]
    if site.container and site.container_runtime == "pyxis":
        srun += [f"--container-image={site.container}", f"--container-mounts={','.join(map(str, _seen_inside(run)))}"]
    if program:
        return [*srun, *in_container(site, [*program, str(run)], run)]
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    meet = f'--node-rank="$SLURM_NODEID" --master-addr="${HEAD}" --master-port="${PORT}"'
    return [*srun, "bash", "-c", f"exec {_line(site, run, before, meet, after, ())}"]


def _line(site: Site, run: Path, before: Sequence[str], meet: str, after: Sequence[str], program: Sequence[str]) -> str:
    """What a shell is to start: the program, or torchrun; ``meet`` is quoted already."""
    if program:
        return shlex.join(in_container(site, [*program, str(run)], run))
    first = (
        f'"${SETUP_PYTHON}" {shlex.join(before[1:])}'
        if setup_selects_python(site)
        else shlex.join(in_container(site, before, run))
    )
    return f"{first} {meet} {shlex.join(after)}"


def in_container(site: Site, words: Sequence[str], run: Path) -> list[str]:
    """Return a command that runs inside the site's container, where there is one."""
    if not site.container or site.container_runtime == "pyxis":
        return list(words)
    seen = ",".join(map(str, _seen_inside(run)))
    return [site.container_runtime, "exec", "--nv", "--bind", seen, site.container, *words]


def _seen_inside(run: Path) -> tuple[Path, Path]:
    """What a container must see besides its own: the sweep's folder, and knee."""
    found = run.parents[1], PACKAGE
    odd = next((path for path in found if set(str(path)) & set(",:")), None)
    if odd is not None:
        text = f"{odd} contains a comma or a colon, which container runtimes cannot mount"
        raise InputError(text, hint="name another --out", code="not-a-folder-name", field="out")
    return found


def through(via: str, host: str, words: Sequence[str]) -> list[str]:
    """Return a command that runs another one on a host."""
    # no option of ssh's can come of a host's name
    prefix = ["ssh", "--", host] if via == SSH else [part.replace("{host}", host) for part in shlex.split(via)]
    remote = Path(prefix[0]).name in REMOTE_SHELLS
    return [*prefix, shlex.join(words)] if remote else [*prefix, *words]


def interpreter(site: Site) -> str:
    """Return the Python of the ranks, where no set-up script selects one; a container has its own."""
    return site.python or (IN_CONTAINERS if site.container else sys.executable)


def interpreter_outside(site: Site) -> str:
    """Of the nodes themselves, where a run's supervisor is; what a set-up brings may lack what knee needs."""
    return sys.executable if site.container else interpreter(site)


def address(host: str) -> str:
    """A host without the user's name and the brackets that it may have."""
    return host.rpartition("@")[2].strip("[]")


def free_port_on(site: Site, host: str, run: Path) -> int:
    """A port that nobody has on a host; one of this machine where that host does not say."""
    if is_direct(site, host):
        return free_port()
    words = on_host(site, host, [interpreter_outside(site), "-c", FREE_PORT], run)
    text = output_of(words, timeout_s=ANSWER_S) or ""
    try:
        return int(text.split()[-1])
    except (ValueError, IndexError):
        return free_port()
