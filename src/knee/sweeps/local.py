"""Runs one after another from this process: on this machine, or with torchrun on hosts that were named."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from knee.errors import InputError
from knee.launch.failures import verdict
from knee.launch.processes import Known, alive, works_in
from knee.launch.run_status import CANCELLED, Cause, Status, read_status, write_status
from knee.launch.site import Site
from knee.launch.supervisor import StopSignal, SupervisedRun, hearing, supervise
from knee.launch.sweep_folder import CANCEL, Sweep, SweepRun, read_record, wants_cancel
from knee.launch.torchrun import interpreter_outside, is_direct, on_host, on_hosts, on_this_machine, through
from knee.launch.usage import accounted
from knee.sweeps.stop_rule import Knees, in_order

ANSWER_S = 10.0
"""A host that takes longer to run a short command is lost."""
Tell = Callable[[SweepRun, Status], None]


def go_on(
    sweep: Sweep,
    site: Site,
    *,
    timeout_s: float,
    program: Sequence[str] = (),
    until_knee: bool = False,
    only: Collection[str] | None = None,
    tell: Tell = lambda _entry, _status: None,
) -> int | None:
    """Start what is missing, cheap runs first; the signal that ended it. The caller holds the folder's lock.

    ``only``: ids of the runs to start, where not all that are missing are meant.
    """
    with hearing() as told:
        settle(sweep, timeout_s, told)
        statuses = sweep.statuses()
        knees = Knees(sweep)
        for entry in missing(sweep, statuses, until_knee=until_knee, only=only):
            if told.signal is not None:
                return told.signal
            run, status = sweep.run(entry), statuses[entry.id]
            if wants_cancel(run):
                tell(entry, write_status(run, not_started(status, "cancelled", CANCELLED)))
            elif until_knee and (why := knees.beyond(entry, statuses)) is not None:
                tell(entry, write_status(run, not_started(status, "knee", f"not started: {why}")))
            else:
                what = _supervised_run(sweep, site, entry, timeout_s, program)
                what.told = told
                tell(entry, replace(status, state="running"))
                statuses[entry.id] = supervise(what)
                tell(entry, statuses[entry.id])
        return told.signal


def _supervised_run(
    sweep: Sweep, site: Site, entry: SweepRun, timeout_s: float, program: Sequence[str]
) -> SupervisedRun:
    """How a run is started here, or on hosts."""
    run = sweep.run(entry)
    what = SupervisedRun(run=run, entry=entry, timeout_s=timeout_s, time_s=site.seconds)
    if sweep.launcher == "torchrun":
        hosts = site.hosts[: entry.nodes]
        if len(hosts) < entry.nodes:
            raise InputError(
                f"run {entry.id} needs {entry.nodes} hosts, but the sweep lists {len(hosts)}",
                hint="give the whole `knee sweep` command again, with --hosts",
                code="too-few-hosts",
                field="hosts",
            )
        what.commands = on_hosts(site, entry, run, hosts, timeout_s=timeout_s, program=program)
        what.nodes = hosts
        what.lost = lambda: unanswering(site, hosts)
        what.ask = lambda number: end_on_hosts(site, run, hosts, number)
    else:
        what.commands = [on_this_machine(site, entry, run, timeout_s=timeout_s, program=program)]
        what.nodes = (socket.gethostname(),)
    return what


def check(sweep_launcher: str, site: Site) -> None:
    """Refuse before anything is planned what could not be started."""
    if sweep_launcher == "torchrun":
        if not site.hosts:
            raise InputError(
                "--hosts is missing: torchrun needs the names or addresses of the machines",
                hint="--hosts node1,node2, or --launcher local for this machine",
            )
        prefix = through(site.via, site.hosts[0], ["true"])
        if shutil.which(prefix[0]) is None:
            raise InputError(
                f"--via {site.via!r}: there is no {prefix[0]} here",
                hint='give what runs a command on another machine, for example --via "ssh {host}"',
            )


def settle(sweep: Sweep, timeout_s: float, told: StopSignal) -> None:
    """Runs that somebody started who is gone: those that go on are seen to their end, of others the end is read."""
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if status.state != "running" or status.job:
            continue
        left = living(run, status)
        if left:
            supervise(
                SupervisedRun(run=run, entry=entry, timeout_s=timeout_s, adopted=left, nodes=status.nodes, told=told)
            )
            continue
        status = accounted(status, entry, run)
        if read_record(run):
            found = verdict(run, ())
            write_status(
                run,
                replace(
                    status,
                    state=found.state,
                    cause=found.cause,
                    words=found.words,
                    node=found.node,
                    rank=found.rank,
                    pids=(),
                ),
            )
        else:
            write_status(
                run,
                replace(status, state="pending", cause="interrupted", pids=(), words="what had started it was ended"),
            )


def living(run: Path, status: Status) -> tuple[Known, ...]:
    """Processes of a run that live on this host. A folder that was copied has the status of another's processes."""
    if status.host != socket.gethostname():
        return ()
    return tuple(process for process in status.pids if alive(process) and works_in(process, run))


def unanswering(site: Site, hosts: Sequence[str]) -> list[str]:
    """Hosts on which not even `true` can be run."""
    return [host for host in hosts if not is_direct(site, host) and _code(through(site.via, host, ["true"])) != 0]


def end_on_hosts(site: Site, run: Path, hosts: Sequence[str], number: signal.Signals) -> None:
    """Send the ranks of a run a signal, each on its host."""
    for host in hosts:
        _code(
            on_host(
                site, host, [interpreter_outside(site), "-m", "knee.launch.terminate", str(run), number.name[3:]], run
            )
        )


def _code(words: Sequence[str]) -> int:
    """What a command ends with; -1 where it takes too long or cannot be started."""
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1


def missing(
    sweep: Sweep, statuses: dict[str, Status], *, until_knee: bool, only: Collection[str] | None = None
) -> list[SweepRun]:
    """What is to be started, in order, without the marks of earlier cancellations; their statuses are made anew."""
    found = []
    for entry in in_order(sweep.entries, until_knee=until_knee):
        status, run = statuses[entry.id], sweep.run(entry)
        if entry.refused or not status.missing or (only is not None and entry.id not in only):
            continue
        (run / CANCEL).unlink(missing_ok=True)
        if status.over:
            statuses[entry.id] = write_status(
                run, replace(status, state="pending", cause="", words="", put_back_s=time.time())
            )
        found.append(entry)
    return found


def not_started(status: Status, cause: Cause, words: str) -> Status:
    """Of a run that was left out."""
    return replace(status, state="cancelled", cause=cause, words=words)
