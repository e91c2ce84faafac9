"""Collectives measured by one rank among the others: rank 0 keeps the readings, every rank measures."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict

from knee.errors import InputError, KneeError, argument
from knee.probe.collective_grid import CollectiveSeries
from knee.probe.collective_timing import FULL, QUICK, finished, measure_all
from knee.probe.listener import SILENT, ProbeListener, ProbeStopped
from knee.probe.machine_facts import choose_device, describe, need_torch, open_nvml
from knee.probe.torchrun_ranks import Ranks, TorchrunLaunch, read_launch
from knee.record.probe_points import CollectivePoint, Record, key_of
from knee.record.readings import Machine, ReadingsFile, read_readings

Known = dict[str, float | None]
"""What was measured before -> seconds, or None where it failed."""


def ready_rank(backend: str | None) -> tuple[TorchrunLaunch, str]:
    """This process' place, and what the backend moves: the memory of GPUs for NCCL, the host's for gloo."""
    need_torch("`knee probe collectives`")
    import torch

    launch, gpus = read_launch(), torch.cuda.device_count()
    if backend == "nccl" and not gpus:
        raise InputError(
            f"{argument('backend')} nccl: torch {torch.__version__} finds no GPU",
            hint=f"`knee doctor` shows the devices of this machine; {argument('backend')} gloo measures the CPU",
            code="no-gpu",
            field="backend",
        )
    device = choose_device("cpu" if backend == "gloo" else None)
    if device == "cuda" and launch.per_node > gpus:
        raise InputError(
            f"{launch.per_node} processes on this node would share {gpus} GPUs",
            hint=f"give torchrun --nproc-per-node {gpus}, or measure the CPU with {argument('backend')} gloo",
            code="shared-gpus",
        )
    return launch, device


def measure_collectives(
    launch: TorchrunLaunch,
    device: str,
    series: Sequence[CollectiveSeries],
    open_file: Callable[[Machine], ReadingsFile],
    *,
    quick: bool,
    listener: ProbeListener,
) -> None:
    """Measure with the other ranks. What is wrong with the file is raised on every rank."""
    ranks = Ranks(launch, device)
    file, known = _open(ranks, open_file)
    if file is None:  # another rank writes, and tells
        listener = SILENT
    elif known:
        listener.resumed(file.path, len(known), None)

    def add(point: CollectivePoint, record: Record) -> None:
        if file is not None:
            file.add(key_of(point), asdict(point) | record)

    if todo := sum(not finished(one, known) for one in series):
        listener.started(todo, "series")
    try:
        effort = (QUICK if quick else FULL)[device]
        complete = measure_all(ranks, series, known, effort, add, lambda one: listener.advanced(one.points[-1]))
    finally:
        listener.ended()
    ranks.close()
    if not complete:
        number = ranks.stop.number or signal.SIGINT
        raise ProbeStopped(file.path if file else None, kept=len(file.done) if file else 0, signal=number)


def _open(ranks: Ranks, open_file: Callable[[Machine], ReadingsFile]) -> tuple[ReadingsFile | None, Known]:
    """Open the file on rank 0, and tell all ranks what is in it or why it cannot be used."""
    file, failure, known = None, None, {}
    if ranks.launch.rank == 0:
        try:
            nvml = open_nvml()[0] if ranks.kind == "cuda" else None
            file = open_file(describe("collectives", ranks.kind, nvml=nvml, devices=ranks.launch.per_node))
            known = {r["key"]: r.get("time_s") for r in read_readings(file.path).records}
        except KneeError as error:
            failure = error
    failure, known = ranks.share((failure, known))
    if failure is not None:
        ranks.close()
        raise failure
    return file, known
