"""What the probes share: options, the readings' files, progress, and the cluster file made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from knee.errors import InputError
from knee.record.probe_points import Point, Record, key_of
from knee.record.readings import Machine, Probe, Readings, ReadingsFile, read_readings, write_readings

if TYPE_CHECKING:
    from knee.hardware_fit.cluster_file import MachineFile

OUT = "mine.toml"


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every probe."""
    for option in reversed(
        (
            click.option(
                "--out",
                type=click.Path(dir_okay=False, path_type=Path),
                default=OUT,
                show_default=True,
                help="The cluster file; readings go beside it.",
            ),
            click.option(
                "--base",
                metavar="NAME",
                help="Catalogue cluster that says what was not measured; by default the one with this GPU.",
            ),
            click.option("--quick", is_flag=True, help="A fraction of the points: a first look in about a minute."),
            click.option("--fresh", is_flag=True, help="Measure anew instead of going on with earlier readings."),
            click.option(
                "--replay",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Take the readings from a file instead of this machine.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        )
    ):
        function = option(function)
    return function


def device_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of probes that measure one device."""
    device = click.option(
        "--device", type=click.Choice(["cuda", "cpu"]), help="What to measure; the GPU where there is one."
    )
    return device(click.option("--anyway", is_flag=True, help="Measure although someone else uses the GPU.")(function))


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One call of a probe."""

    probe: Probe
    out: Path
    base: str | None
    quick: bool
    fresh: bool
    replay: Path | None
    as_json: bool

    def __post_init__(self) -> None:
        if self.out.suffix != ".toml":
            raise InputError(f"--out is {str(self.out)!r}; it should end in .toml, after a name")
        if self.quick and self.replay is not None:
            raise InputError("--quick measures less, and --replay measures nothing", hint="leave one of them out")
        if self.base is not None:  # before minutes of measuring
            from knee.specs.load import catalog_entries, load_cluster

            if self.base not in catalog_entries("cluster") and self.base.endswith(".toml"):
                raise InputError(
                    f"--base is {self.base!r}; it should be the name of a catalogue cluster",
                    hint="`knee catalog` lists them",
                )
            load_cluster(self.base)

    @property
    def path(self) -> Path:
        """Where the readings go: mine.toml -> mine.kernels.jsonl."""
        from knee.hardware_fit.cluster_file import readings_path

        return readings_path(self.out, self.probe)

    def replayed(self) -> Readings:
        """The recording that stands in for this machine."""
        assert self.replay is not None
        if self.path.exists() and self.path.samefile(self.replay):
            raise InputError(
                f"--replay is {self.replay}, which is the file that --out {self.out} writes", hint="give another --out"
            )
        recorded = read_readings(self.replay)
        if recorded.machine.probe != self.probe:
            raise InputError(
                f"{self.replay} has readings of `knee probe {recorded.machine.probe}`, not of `knee probe {self.probe}`"
            )
        return recorded

    def file(self, machine: Machine) -> ReadingsFile:
        """The readings' file, with what it has already."""
        self.check_place(machine)
        return ReadingsFile(self.path, machine, fresh=self.fresh)

    def check_place(self, machine: Machine) -> None:
        """Refuse, before anything is measured, what could not be used: a GPU without a base, readings that a recording
        would write over, other probes' readings of another machine."""
        from knee.hardware_fit.cluster_file import base_of, others_beside

        base_of(machine, self.base)

        if self.replay is not None and self.path.exists() and not self.fresh:
            here, played = read_readings(self.path), read_readings(self.replay)
            if here.machine != played.machine or any(record not in played.records for record in here.records):
                raise InputError(
                    f"{self.path} has other readings, which a replay would write over",
                    hint="give another --out, or --fresh",
                )
        for path, other in others_beside(self.out, self.probe):
            # a job of collectives runs on many hosts, of which one writes
            loose = "collectives" in (self.probe, other.probe)
            names = ("device", "kind", *(() if loose else ("host", "sms", "memory_bytes")))
            for name in names:
                here, there = getattr(machine, name), getattr(other, name)
                if here != there:
                    raise InputError(
                        f"{path} has readings with {name} {there}, and here it is {here}",
                        hint="give another --out: a file is of one machine",
                    )


def run(session: Session, machine: Machine, points: Sequence[Point], measure: Callable[[Any], Record]) -> None:
    """Measure the points; ends the command where it was interrupted."""
    from knee.probe.measure_points import collect

    file = session.file(machine)
    todo = sum(key_of(p) not in file.done for p in points)
    if todo < len(points):
        click.echo(f"{session.path} has {len(points) - todo} of {len(points)} readings already", err=True)
    with ProbeProgress(todo) as progress:
        went = collect(file, points, measure, progress.tell)
    if went.left:
        click.echo(
            f"stopped: {went.measured + went.kept} readings are kept in {session.path}, {went.left} are left; "
            "the same command goes on",
            err=True,
        )
        raise click.Abort
    _say_failed(read_readings(session.path))


def _say_failed(readings: Readings) -> None:
    if readings.failed:
        errors = dict.fromkeys(r["error"] for r in readings.failed)
        click.echo(f"{len(readings.failed)} points could not be measured: {'; '.join(list(errors)[:3])}", err=True)


def replay(session: Session) -> None:
    """Run on a recording in place of this machine."""
    recorded = session.replayed()
    found = {record["key"]: record for record in recorded.records}
    if not found:
        raise InputError(f"{session.replay} has no readings yet")
    session.check_place(recorded.machine)
    write_readings(session.path, Readings(recorded.machine, tuple(found.values())))
    click.echo(f"{len(found)} readings from {session.replay}", err=True)
    _say_failed(recorded)


class ProbeProgress:
    """A line on stderr per tenth, or a live bar on a terminal."""

    def __init__(self, total: int, what: str = "points") -> None:
        self.total, self.done, self.what = total, 0, what
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> ProbeProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("measuring", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def tell(self, point: Point, record: Record) -> None:  # noqa: ARG002 - the form that collect calls
        """One point is done."""
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=key_of(point)[:60])
        elif self.done * 10 // self.total > (self.done - 1) * 10 // self.total:
            click.echo(f"{self.done} of {self.total} {self.what}", err=True)


def print_machine(readings: Readings) -> None:
    """Where the readings come from."""
    from knee.cli.render.table import print_heading, print_rows

    m = readings.machine
    print_heading(f"{m.device}, {m.date}")
    limit = f", limit {m.power_limit_w:g} W" if m.power_limit_w else ""
    cores = f"{m.sms} {'SMs' if m.kind == 'cuda' else 'cores'}"
    print_rows(
        [
            ["software", m.software],
            ["host", m.host],
            ["device", f"{cores}{limit}"],
            ["readings", f"{len(readings.records) - len(readings.failed)}, {len(readings.failed)} failed"],
        ]
    )


def print_values(written: MachineFile) -> None:
    """What was measured beside what the catalogue says of the base."""
    from knee.cli.render.table import print_heading, print_rows
    from knee.specs.load import load_cluster

    before = load_cluster(written.base).spec
    rows = [[path, str(value.value), _shown(before, path), value.kind] for path, value in written.values.items()]
    print_heading(f"{written.path} (from {', '.join(written.probes)}; the rest is {written.base})")
    print_rows([["field", "here", written.base, "kind"], *rows], right=(1, 2))
    for probe, why in written.left_out.items():
        click.echo(f"{probe} is left out of {written.path}: {why}", err=True)
    click.echo(f"try: knee simulate llama2-7b --cluster {quote(str(written.path))} --gpus 8 --local-batch 2", err=True)


def _shown(cluster: Any, path: str) -> str:
    from knee import units

    for part in path.split("."):
        cluster = cluster.get(part) if isinstance(cluster, dict) else getattr(cluster, part, None)
    unit = units.dimension(path.rpartition(".")[2])
    if cluster is None:
        return "unknown"
    return units.show(cluster, unit, 4) if unit not in (None, "frac") else f"{cluster:g}"


def file_json(written: MachineFile) -> dict[str, Any]:
    """The cluster file in an answer's JSON."""
    return {
        "cluster_file": str(written.path),
        "base": written.base,
        "left_out": written.left_out,
        "values": {path: asdict(value) for path, value in written.values.items()},
    }
