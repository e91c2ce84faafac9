"""Start the runs that were chosen: one after another, or several at once where there is room."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

from knee.base.errors import InputError, argument
from knee.base.signals import StopSignal, catch_signals
from knee.specs.arguments import not_in_range
from knee.specs.choices import Launcher
from knee.specs.job import Job
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.supervisor import supervise
from knee.training.launch.sweep_folder import Sweep, SweepRun
from knee.training.sweeps import run_local as local
from knee.training.sweeps import slurm
from knee.training.sweeps.checks import LocalDevices
from knee.training.sweeps.job_for_trainer import PROCESSOR

OnRun = Callable[[SweepRun, Status], None]
Say = Callable[[str], None]
DEVICES = "CUDA_VISIBLE_DEVICES"


def start_runs(sweep: Sweep, site: Site, ids: Collection[str], *, at_once: int, on_run: OnRun, say: Say) -> int | None:
    """See these runs through; the signal that ended it. The caller holds the folder's lock."""
    if sweep.launcher == "slurm":
        slurm.submit_missing(sweep, site, wait=True, say=say, only=ids)
        return None
    if at_once == 1 or len(ids) == 1:
        return local.start_missing(sweep, site, only=ids, on_run=on_run)
    return _side_by_side(sweep, site, ids, at_once, on_run)


def _side_by_side(sweep: Sweep, site: Site, ids: Collection[str], at_once: int, on_run: OnRun) -> int | None:
    """Each run on its own GPUs or hosts. Signals reach the main thread, and the runs see them there."""
    with catch_signals() as stop:
        local.adopt_running(sweep, stop)
        statuses = sweep.statuses()
        entries = local.missing(sweep, statuses, only=ids)
        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(at_once):
            free.put(slot)

        def placed(entry: SweepRun) -> Status | None:
            slot = free.get()
            try:
                return _one(sweep, site, entry, slot, statuses, stop, on_run)
            finally:
                free.put(slot)

        with ThreadPoolExecutor(at_once) as pool:
            ended = pool.map(placed, entries)
            for entry, status in zip(entries, ended, strict=True):
                if status is not None:
                    on_run(entry, status)
        return stop.signal


def _one(
    sweep: Sweep,
    site: Site,
    entry: SweepRun,
    slot: int,
    statuses: dict[str, Status],
    stop: StopSignal,
    on_run: OnRun,
) -> Status | None:
    if stop.signal is not None:
        return None
    hosts = site.hosts[slot * entry.nodes : (slot + 1) * entry.nodes]
    what = local.supervised_run(sweep, replace(site, hosts=hosts) if site.hosts else site, entry, stop)
    if not site.hosts:
        devices = range(slot * entry.gpus, (slot + 1) * entry.gpus)
        what.environment = {**what.environment, DEVICES: ",".join(map(str, devices))}
    on_run(entry, replace(statuses[entry.id], state="running"))
    return supervise(what)


def check_room(job: Job, launcher: Launcher, site: Site, at_once: int) -> None:
    """Refuse more runs at once than there is room for; Slurm's queue holds what does not fit."""
    if at_once < 1:
        raise not_in_range("at_once", str(at_once), "it must be at least 1")
    if at_once == 1 or launcher == "slurm":
        return
    if launcher == "torchrun":
        nodes = -(-job.gpus // (site.gpus_per_node or job.cluster.node.gpus))
        room, where = len(site.hosts) // nodes, f"{len(site.hosts)} hosts have"
    elif job.cluster.gpu.vendor == PROCESSOR:
        room, where = 1, "one processor has"
    else:
        gpus = len(LocalDevices.here().gpus)
        room, where = gpus // job.gpus, f"{gpus} GPUs have"
    if at_once > room:
        raise InputError(
            f"{argument('at_once')} is {at_once}, but {where} room for {max(1, room)} at a time",
            hint=f"use {argument('at_once')} {max(1, room)}",
            code="out-of-range",
            field="at_once",
        )
