"""``knee probe collectives``: the links between this job's ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from knee import units
from knee.cli import nearest
from knee.cli.probe.session import ProbeProgress, Session, options, replay
from knee.errors import InputError, KneeError
from knee.probe.collective_grid import COLLECTIVES, LARGEST_BYTES, SMALLEST_BYTES, CollectiveSeries, plan_series
from knee.record.probe_points import CollectivePoint, Record, key_of
from knee.record.readings import Readings, ReadingsFile, read_readings
from knee.signals import BY_SIGNAL

if TYPE_CHECKING:
    from knee.hardware_fit.links import Contention, LinkFit
    from knee.probe.torchrun_ranks import Ranks, TorchrunLaunch


@click.command("collectives")
@options
@click.option("--backend", type=click.Choice(["nccl", "gloo"]), help="NCCL where there is a GPU, else gloo on the CPU.")
@click.option(
    "--collectives", "wanted", metavar="A,B", default=",".join(COLLECTIVES), show_default=True, help="Which to measure."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="8 GiB",
    show_default=True,
    help="Largest message; memory and time may end a series earlier.",
)
def command(**given: Any) -> None:
    """Measure collectives over this job's ranks, and fit latency per hop and bandwidth.

    Start it on every rank, as a training run is started:

    \b
        torchrun --nproc-per-node 8 -m knee.cli probe collectives --out mine.toml

    Sizes and bandwidths count as nccl-tests do. Groups are all ranks, a node's, and strided ones as TP, DP, CP and PP
    make them; all groups of a kind run at once. An all-gather beside products tells what each costs the other. Times
    are the lowest decile of the slowest rank's. Takes a minute or two; --replay needs neither torchrun nor torch.
    """
    try:
        backend, wanted, most_bytes = given.pop("backend"), _wanted(given.pop("wanted")), _size(given.pop("max_size"))
        session = Session(probe="collectives", **given)
        launch, device = (None, "cpu") if session.replay is not None else _launch(backend)
    except KneeError as error:
        if _first():  # every rank finds the same mistake; one says it
            raise
        raise SystemExit(error.exit_code) from None
    if launch is None:
        replay(session)
    elif not _measure(session, launch, device, wanted, most_bytes):
        return
    _report(session)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _wanted(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().replace("-", "_") for name in text.split(",") if name.strip())
    for name in names:
        if name not in COLLECTIVES:
            raise InputError(
                f"--collectives: there is no {name!r}",
                hint=nearest(name, COLLECTIVES) or f"there are {', '.join(COLLECTIVES)}",
            )
    if not names:
        raise InputError("--collectives names none", hint=f"there are {', '.join(COLLECTIVES)}")
    return names


def _size(text: str) -> int:
    try:
        size = units.parse(text, "bytes")
    except ValueError as error:
        raise InputError(f"--max-size {error}") from None
    if not SMALLEST_BYTES <= size <= LARGEST_BYTES:
        raise InputError(f"--max-size is {text}; it should be from 1 KiB to 8 GiB")
    return int(size)


def _launch(backend: str | None) -> tuple[TorchrunLaunch, str]:
    """This process' place, and what the backend moves: the memory of GPUs for NCCL, the host's for gloo."""
    from knee.probe.machine_facts import choose_device, need_torch
    from knee.probe.torchrun_ranks import read_launch

    need_torch("`knee probe collectives`")
    import torch

    launch, gpus = read_launch(), torch.cuda.device_count()
    if backend == "nccl" and not gpus:
        raise InputError(
            f"--backend nccl: torch {torch.__version__} finds no GPU",
            hint="`knee doctor` says what is there; --backend gloo measures the processor",
        )
    device = choose_device("cpu" if backend == "gloo" else None)
    if device == "cuda" and launch.per_node > gpus:
        raise InputError(
            f"{launch.per_node} processes on this node would share {gpus} GPUs",
            hint=f"give torchrun --nproc-per-node {gpus}, or measure the CPU with --backend gloo",
        )
    return launch, device


def _measure(session: Session, launch: TorchrunLaunch, device: str, wanted: Sequence[str], most_bytes: int) -> bool:
    """Measure with the other ranks; True on the one that writes and reports."""
    from knee.probe.collective_timing import FULL, QUICK, measure_all
    from knee.probe.torchrun_ranks import Ranks

    series = plan_series(
        launch.world, launch.per_node, device, quick=session.quick, wanted=wanted, most_bytes=most_bytes
    )
    ranks = Ranks(launch, device)
    journal = _open(session, ranks, series)
    with journal.progress or nullcontext():
        went_through = measure_all(
            ranks, series, journal.known, (QUICK if session.quick else FULL)[device], journal.add, journal.tell
        )
    ranks.close()
    if went_through:
        return launch.rank == 0
    if journal.file is not None:
        click.echo(
            f"stopped: {len(journal.file.done)} readings are kept in {session.path}; the same command goes on", err=True
        )
    raise SystemExit(BY_SIGNAL + (ranks.stop.number or signal.SIGINT))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Journal:
    """Where readings go: a file and a bar on rank 0, nowhere on the others."""

    file: ReadingsFile | None
    progress: ProbeProgress | None
    known: dict[str, float | None]
    """What was measured before -> seconds, or None where it failed; the same on all ranks."""

    def add(self, point: CollectivePoint, record: Record) -> None:
        """Keep a reading."""
        if self.file is not None:
            self.file.add(key_of(point), asdict(point) | record)

    def tell(self, series: CollectiveSeries) -> None:
        """A series is over."""
        if self.progress is not None:
            self.progress.tell(series.points[-1], {})


def _open(session: Session, ranks: Ranks, series: Sequence[CollectiveSeries]) -> _Journal:
    """Open the file on rank 0, and tell all what is in it or that it cannot be used."""
    from knee.probe.collective_timing import finished
    from knee.probe.machine_facts import describe, open_nvml

    file, failure, known = None, None, {}
    if ranks.launch.rank == 0:
        try:
            nvml = open_nvml()[0] if ranks.kind == "cuda" else None
            machine = describe("collectives", ranks.kind, nvml=nvml, devices=ranks.launch.per_node)
            file = session.file(machine)
            known = {r["key"]: r.get("time_s") for r in read_readings(session.path).records}
        except KneeError as error:
            failure = error
    code, known = ranks.share((failure.exit_code if failure else 0, known))
    if code:
        ranks.close()
        if failure is not None:
            raise failure
        raise SystemExit(code)
    todo = sum(not finished(one, known) for one in series)
    if file is not None and known:
        click.echo(f"{session.path} has {len(known)} readings already", err=True)
    return _Journal(
        file=file, progress=ProbeProgress(todo, "series") if file is not None and todo else None, known=known
    )


def _report(session: Session) -> None:
    from knee.hardware_fit.cluster_file import write_machine_file
    from knee.hardware_fit.links import contention, fit_links

    readings = read_readings(session.path)
    fits, beside = fit_links(readings), contention(readings)
    written = write_machine_file(session.out, session.base)
    if session.as_json:
        from knee.cli.probe.session import file_json

        click.echo(
            json.dumps(
                {
                    "readings": str(session.path),
                    "machine": asdict(readings.machine),
                    "points": [_row(*pair) for pair in _alone(readings)],
                    "failed": readings.failed,
                    "fits": [asdict(fit) for fit in fits],
                    "contention": [asdict(one) for one in beside],
                    **file_json(written),
                },
                indent=2,
            )
        )
        return
    from knee.cli.probe.session import print_machine, print_values

    print_machine(readings)
    _print_points(readings)
    _print_fits(fits)
    _print_contention(beside)
    print_values(written)


def _alone(readings: Readings) -> list[tuple[CollectivePoint, Record]]:
    from knee.hardware_fit.links import series_of

    return [pair for points in series_of(readings).values() for pair in points]


def _row(point: CollectivePoint, record: Record) -> dict[str, Any]:
    """A reading with its bandwidths."""
    from knee.hardware_fit.links import bus_factor

    algbw = point.size_bytes / record["time_s"]
    return (
        asdict(point)
        | record
        | {"algbw_bytes_per_s": algbw, "busbw_bytes_per_s": algbw * bus_factor(point.collective, point.group)}
    )


def _ranks(point: Any) -> str:
    """A group in words: ``tp: 2 x 4 ranks, stride 1``."""
    times = f"{point.groups} x " if point.groups > 1 else ""
    stride = f", stride {point.stride}" if point.stride > 1 else ""
    nodes = f", {point.nodes} nodes" if point.nodes > 1 else ""
    return f"{point.axis}: {times}{point.group} ranks{stride}{nodes}"


def _print_points(readings: Readings) -> None:
    from knee.cli.render.table import print_heading, print_rows

    rows = [["collective", "group", "size", "time", "algbw", "busbw", "spread"]]
    for point, record in _alone(readings):
        row = _row(point, record)
        rates = [units.show(row[name], "bytes_per_s") for name in ("algbw_bytes_per_s", "busbw_bytes_per_s")]
        rows.append(
            [
                point.collective,
                _ranks(point),
                units.show(point.size_bytes, "bytes", 1),
                units.show(record["time_s"], "s"),
                *rates,
                f"±{record['spread_frac']:.0%}",
            ]
        )
    print_heading("collectives (sizes and bandwidths as nccl-tests count them)")
    print_rows(rows, right=(2, 3, 4, 5, 6))
    for record in readings.failed:
        click.echo(
            f"{record['collective']}, {record['axis']}, {units.show(record['size_bytes'], 'bytes', 1)}: "
            f"{record['error']}",
            err=True,
        )


def _print_fits(fits: Sequence[LinkFit]) -> None:
    from knee.cli.render.table import print_heading, print_rows

    if not fits:
        click.echo("no series has the four sizes that a fit needs", err=True)
        return
    rows = [["collective", "group", "latency", "per hop", "bus bandwidth", "error", "p90", "held out", "worst"]]
    rows += [
        [
            fit.collective,
            _ranks(fit),
            units.show(fit.latency_s, "s"),
            units.show(fit.hop_s, "s"),
            units.show(fit.bus_bytes_per_s, "bytes_per_s"),
            f"{fit.residuals.median_frac:.1%}",
            f"{fit.residuals.p90_frac:.1%}",
            f"{fit.held_out.median_frac:.1%}",
            f"{fit.held_out.worst_frac:.1%}",
        ]
        for fit in fits
    ]
    print_heading(
        "fit: time = latency + bytes on the slowest link / bus bandwidth "
        "(held out: each inner size predicted without it)"
    )
    print_rows(rows, right=tuple(range(2, 9)))


def _print_contention(beside: Sequence[Contention]) -> None:
    from knee.cli.render.table import print_heading, print_rows

    if not beside:
        return
    rows = [["all-gather", "group", "compute slowdown κ", "comm slowdown γ", "spread"]]
    rows += [
        [
            units.show(one.size_bytes, "bytes", 1),
            f"{one.axis}: {one.group} ranks",
            f"{one.compute_slowdown_frac:.0%}",
            f"{one.comm_slowdown:.2f}x",
            f"±{one.spread_frac:.0%}",
        ]
        for one in beside
    ]
    print_heading("beside products (products take 1 + κ times as long, the all-gather γ times)")
    print_rows(rows, right=(2, 3, 4))
    last = beside[-1]
    click.echo(
        f"a simulation takes them as --set compute_slowdown_frac={last.compute_slowdown_frac:.3g} "
        f"--set comm_slowdown={last.comm_slowdown:.3g}",
        err=True,
    )
