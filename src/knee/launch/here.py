"""Runs one after another from this process: on this machine, or with torchrun on hosts that were named."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from knee.errors import InputError
from knee.launch.commands import environment, on_hosts, on_this_machine, through
from knee.launch.enough import Knees, in_order
from knee.launch.failures import verdict
from knee.launch.folder import CANCEL, Entry, Sweep, read_record, wants_cancel
from knee.launch.keeper import Keeping, keep
from knee.launch.processes import alive
from knee.launch.site import Site
from knee.launch.status import Cause, Status, read_status, write_status

ANSWER_S = 10.0
"""A host that takes longer to run `true` is lost."""
Tell = Callable[[Entry, Status], None]


def go_on(sweep: Sweep, site: Site, *, timeout_s: float, program: Sequence[str] = (), until_knee: bool = False,
          tell: Tell = lambda _entry, _status: None) -> bool:
    """Start what is missing, cheap runs first; False where it was interrupted. The caller holds the folder's lock."""
    settle(sweep, timeout_s)
    statuses = sweep.statuses()
    knees = Knees(sweep)
    for entry in missing(sweep, statuses, until_knee=until_knee):
        run, status = sweep.run(entry), statuses[entry.id]
        if wants_cancel(run):
            tell(entry, write_status(run, not_started(status, "cancelled", "cancelled by `knee sweep cancel`")))
            continue
        if until_knee and (why := knees.beyond(entry, statuses)) is not None:
            tell(entry, write_status(run, not_started(status, "knee", f"not started: {why}")))
            continue
        what = Keeping(run=run, entry=entry, timeout_s=timeout_s, time_s=site.seconds,
                       environment=environment(site))  # fmt: skip
        if sweep.launcher == "torchrun":
            hosts = site.hosts[: entry.nodes]
            what.commands = on_hosts(site, entry, run, hosts, timeout_s=timeout_s, program=program)
            what.nodes, what.lost = hosts, lambda hosts=hosts: unanswering(site, hosts)  # type: ignore[misc]
        else:
            what.commands = [on_this_machine(site, entry, run, timeout_s=timeout_s, program=program)]
            what.nodes = (socket.gethostname(),)
        tell(entry, replace(status, state="running"))
        ended = statuses[entry.id] = keep(what)
        tell(entry, ended)
        if ended.cause == "interrupted":
            return False
    return True


def check(sweep_launcher: str, site: Site) -> None:
    """Refuse before anything is planned what could not be started."""
    if sweep_launcher == "torchrun":
        if not site.hosts:
            raise InputError("--hosts is missing: torchrun needs the names or addresses of the machines",
                             hint="--hosts node1,node2, or --launcher local for this machine")
        prefix = through(site.via, site.hosts[0], ["true"])
        if shutil.which(prefix[0]) is None:
            raise InputError(f"--via {site.via!r}: there is no {prefix[0]} here",
                             hint='give what runs a command on another machine, for example --via "ssh {host}"')


def settle(sweep: Sweep, timeout_s: float) -> None:
    """Runs that somebody started who is gone: those that go on are seen to their end, of others the end is read."""
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if status.state != "running" or status.job:
            continue
        left = tuple(filter(alive, status.pids)) if status.host == socket.gethostname() else ()
        if left:
            keep(Keeping(run=run, entry=entry, timeout_s=timeout_s, adopted=left, nodes=status.nodes))
            continue
        if read_record(run):
            found = verdict(run, ())
            write_status(run, replace(status, state=found.state, cause=found.cause, words=found.words, node=found.node,
                                      rank=found.rank, ended_s=_written_s(run), pids=()))
        else:
            write_status(run, replace(status, state="pending", cause="interrupted", pids=(),
                                      words="what had started it was ended"))


def unanswering(site: Site, hosts: Sequence[str]) -> list[str]:
    """Hosts on which not even `true` can be run."""
    found = []
    for host in hosts:
        try:
            words = through(site.via, host, ["true"])
            code = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S,
                                  check=False).returncode
        except (OSError, subprocess.TimeoutExpired):
            code = -1
        if code:
            found.append(host)
    return found


def missing(sweep: Sweep, statuses: dict[str, Status], *, until_knee: bool) -> list[Entry]:
    """What is to be started, in order, without the marks of earlier cancellations; their statuses are made anew."""
    found = []
    for entry in in_order(sweep.entries, until_knee=until_knee):
        status, run = statuses[entry.id], sweep.run(entry)
        if entry.refused or not status.missing:
            continue
        (run / CANCEL).unlink(missing_ok=True)
        if status.over:
            statuses[entry.id] = write_status(run, replace(status, state="pending", cause="", words=""))
        found.append(entry)
    return found


def not_started(status: Status, cause: Cause, words: str) -> Status:
    """Of a run that was left out."""
    return replace(status, state="cancelled", cause=cause, words=words)


def _written_s(run: Path) -> float | None:
    try:
        return (run / "record.json").stat().st_mtime
    except OSError:
        return None
