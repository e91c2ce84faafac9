"""Runs one after another from this process: on this machine, or with torchrun on hosts that were named."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from knee.base.errors import InputError
from knee.base.processes import ProcessKey, alive, output_of, works_in
from knee.base.signals import StopSignal, catch_signals
from knee.training.launch.failures import diagnose, with_diagnosis
from knee.training.launch.run_status import Status, cancelled, left_out, read_status, write_status
from knee.training.launch.site import Site
from knee.training.launch.supervisor import SupervisedRun, supervise
from knee.training.launch.sweep_folder import CANCEL, Sweep, SweepRun, is_cancel_requested, read_record, with_usage
from knee.training.launch.torchrun import interpreter_outside, is_direct, on_host, on_hosts, on_this_machine, through
from knee.training.sweeps.stop_rule import StopRule, start_order

ANSWER_S = 10.0
"""A host that takes longer to run a short command is lost."""
OnRun = Callable[[SweepRun, Status], None]
"""Called when a run starts, ends or is left out."""


def start_missing(sweep: Sweep, site: Site, *, only: Collection[str] | None, on_run: OnRun) -> int | None:
    """Start what is missing, cheap runs first; the signal that ended it. The caller holds the folder's lock.

    ``only``: ids of the runs to start, where not all that are missing are meant.
    """
    until_knee = bool(sweep.options["until_knee"])
    with catch_signals() as stop:
        adopt_running(sweep, stop)
        statuses = sweep.statuses()
        rule = StopRule(sweep)
        for entry in missing(sweep, statuses, only=only):
            if stop.signal is not None:
                return stop.signal
            run, status = sweep.run(entry), statuses[entry.id]
            if is_cancel_requested(run):
                on_run(entry, write_status(run, cancelled(status)))
            elif until_knee and (why := rule.reason_to_stop(entry, statuses)) is not None:
                on_run(entry, write_status(run, left_out(status, why)))
            else:
                what = supervised_run(sweep, site, entry, stop)
                on_run(entry, replace(status, state="running"))
                statuses[entry.id] = supervise(what)
                on_run(entry, statuses[entry.id])
        return stop.signal


def supervised_run(sweep: Sweep, site: Site, entry: SweepRun, stop: StopSignal) -> SupervisedRun:
    """Return how a run is started, on this machine or on hosts."""
    run, timeout_s, program = sweep.run(entry), float(sweep.options["timeout_s"]), sweep.options["program"]
    what = SupervisedRun(run=run, entry=entry, timeout_s=timeout_s, time_s=site.seconds, stop=stop)
    if sweep.launcher == "torchrun":
        hosts = site.hosts[: entry.nodes]
        if len(hosts) < entry.nodes:
            raise InputError(
                f"run {entry.id} needs {entry.nodes} hosts, but the sweep lists {len(hosts)}",
                hint="repeat the complete `knee sweep` command, with --hosts",
                code="too-few-hosts",
                field="hosts",
            )
        what.commands = on_hosts(site, entry, run, hosts, timeout_s=timeout_s, program=program)
        what.nodes = hosts
        what.unreachable = lambda: unreachable_hosts(site, hosts)
        what.signal_ranks = lambda number: signal_on_hosts(site, run, hosts, number)
    else:
        what.commands = [on_this_machine(site, entry, run, timeout_s=timeout_s, program=program)]
        what.nodes = (socket.gethostname(),)
    return what


def adopt_running(sweep: Sweep, stop: StopSignal) -> None:
    """Runs whose launcher is gone: those that still run are supervised to their end, of others the end is read."""
    timeout_s = float(sweep.options["timeout_s"])
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if status.state != "running" or status.job:
            continue
        left = living_processes(run, status)
        if left:
            supervise(
                SupervisedRun(run=run, entry=entry, timeout_s=timeout_s, adopted=left, nodes=status.nodes, stop=stop)
            )
            continue
        status = with_usage(status, entry, run)
        if read_record(run):
            write_status(run, with_diagnosis(status, diagnose(run, ())))
        else:
            words = "the process that started it has ended"
            write_status(run, replace(status, state="pending", cause="interrupted", pids=(), words=words))


def living_processes(run: Path, status: Status) -> tuple[ProcessKey, ...]:
    """Processes of a run that live on this host. A folder that was copied has the status of another's processes."""
    if status.host != socket.gethostname():
        return ()
    return tuple(process for process in status.pids if alive(process) and works_in(process, run))


def unreachable_hosts(site: Site, hosts: Sequence[str]) -> list[str]:
    """Return the hosts that cannot even run `true`."""
    others = [host for host in hosts if not is_direct(site, host)]
    return [host for host in others if output_of(through(site.via, host, ["true"]), timeout_s=ANSWER_S) is None]


def signal_on_hosts(site: Site, run: Path, hosts: Sequence[str], number: signal.Signals) -> None:
    """Send the ranks of a run a signal, each on its host."""
    words = [interpreter_outside(site), "-m", "knee.training.launch.terminate", str(run), number.name[3:]]
    for host in hosts:
        output_of(on_host(site, host, words, run), timeout_s=ANSWER_S)


def missing(sweep: Sweep, statuses: dict[str, Status], *, only: Collection[str] | None) -> list[SweepRun]:
    """What is to be started, in order. Requests to cancel from before are removed, and statuses made anew."""
    found = []
    for entry in start_order(sweep.entries, until_knee=bool(sweep.options["until_knee"])):
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
