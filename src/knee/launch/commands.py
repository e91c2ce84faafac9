"""What is started for a run: torchrun on each of its nodes. Every word is an argument of its own, or quoted."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import knee
from knee.errors import InputError
from knee.launch.folder import Entry
from knee.launch.site import Site

HEAD, PORT = "KNEE_HEAD", "KNEE_PORT"
"""Where the ranks of a Slurm job meet: set by the keeper, which runs on the first node."""
NODE = "KNEE_NODE"
"""A host's name in the sweep, for what its ranks write down."""
REMOTE_SHELLS = ("ssh", "rsh")
"""They join their arguments to one line, which a shell on the other side takes apart."""
WITH_SETUP = 'source "$0" && exec "$@"'


def torchrun(entry: Entry, run: Path, *, python: str, timeout_s: float) -> tuple[list[str], list[str]]:
    """The words before and after those that say which node it is, and where all meet."""
    before = [python, "-m", "torch.distributed.run", f"--nnodes={entry.nodes}", f"--nproc-per-node={entry.per_node}",
              "--max-restarts=0", f"--rdzv-conf=timeout={max(1, int(timeout_s))}"]
    return before, ["-m", "knee.launch.rank", str(run)]


def on_this_machine(site: Site, entry: Entry, run: Path, *, timeout_s: float, program: Sequence[str]) -> list[str]:
    """All ranks here."""
    if program:
        return surrounded(site, [*program, str(run)], run)
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    meet = ["--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return surrounded(site, [*before, *meet, *after], run)


def on_hosts(
    site: Site, entry: Entry, run: Path, hosts: Sequence[str], *, timeout_s: float, program: Sequence[str]
) -> list[list[str]]:
    """One command a host; the first host is where they meet."""
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    port = free_port()
    found = []
    for rank, host in enumerate(hosts):
        meet = [f"--node-rank={rank}", f"--master-addr={hosts[0]}", f"--master-port={port}"]
        inner = [*program, str(run)] if program else [*before, *meet, *after]
        words = ["env", *(f"{key}={value}" for key, value in {**environment(site), NODE: host}.items()),
                 *surrounded(site, inner, run)]
        found.append([*words] if is_here(host) and site.via == "ssh {host}" else through(site.via, host, words))
    return found


def on_slurm(site: Site, entry: Entry, run: Path, *, timeout_s: float, program: Sequence[str]) -> list[str]:
    """One task a node of the allocation, each a torchrun; quoted where a shell on the node puts in its number."""
    srun = ["srun", f"--nodes={entry.nodes}", f"--ntasks={entry.nodes}", "--ntasks-per-node=1", "--cpu-bind=none",
            "--kill-on-bad-exit=1", "--label"]
    if site.container and site.container_runtime == "pyxis":
        srun += [f"--container-image={site.container}", f"--container-mounts={run.parents[1]}"]
    if program:
        return [*srun, *contained(site, [*program, str(run)], run)]
    before, after = torchrun(entry, run, python=interpreter(site), timeout_s=timeout_s)
    meet = f'--node-rank="$SLURM_NODEID" --master-addr="${HEAD}" --master-port="${PORT}"'
    line = f"exec {shlex.join(contained(site, before, run))} {meet} {shlex.join(after)}"
    return [*srun, "bash", "-c", line]


def surrounded(site: Site, words: Sequence[str], run: Path) -> list[str]:
    """In its container, after its set-up."""
    inner = contained(site, words, run)
    return ["bash", "-c", WITH_SETUP, site.setup, *inner] if site.setup else inner


def contained(site: Site, words: Sequence[str], run: Path) -> list[str]:
    """Inside the site's container, which sees the sweep's folder."""
    if not site.container or site.container_runtime == "pyxis":
        return list(words)
    return [site.container_runtime, "exec", "--nv", "--bind", str(run.parents[1]), site.container, *words]


def through(via: str, host: str, words: Sequence[str]) -> list[str]:
    """A command on another host."""
    try:
        prefix = [part.format(host=host) for part in shlex.split(via)]
    except (ValueError, KeyError, IndexError):
        raise InputError(f"via is {via!r}", hint='for example "ssh {host}"') from None
    if not prefix:
        raise InputError("via is empty", hint='for example "ssh {host}"')
    remote = Path(prefix[0]).name in REMOTE_SHELLS
    return [*prefix, shlex.join(words)] if remote else [*prefix, *words]


def environment(site: Site) -> dict[str, str]:
    """What processes of a run need besides what is there: where knee is, and the site's own variables."""
    sources = str(Path(knee.__file__).parents[1])
    given = site.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")
    paths = [sources, *filter(None, given.split(os.pathsep))]
    return {"PYTHONUNBUFFERED": "1", **site.env, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def interpreter(site: Site) -> str:
    """Of the nodes."""
    return site.python or sys.executable


def is_here(host: str) -> bool:
    """Whether a name is this machine's own."""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn())


def free_port() -> int:
    """One that nobody has now; somebody may, a moment later, and the run then says so."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
