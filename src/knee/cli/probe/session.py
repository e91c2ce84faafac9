"""What the probes share: options, the readings' files, progress, and the cluster file made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from knee.errors import InputError
from knee.record.readings import Machine, Point, Probe, Readings, ReadingsFile, Record, key_of, read_readings

OUT = "mine.toml"


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every probe."""
    for option in reversed((
        click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=OUT, show_default=True,
                     help="The cluster file; readings go beside it."),
        click.option("--base", metavar="NAME",
                     help="Catalogue cluster that says what was not measured; by default the one with this GPU."),
        click.option("--quick", is_flag=True, help="A fifth of the points: a first look in about a minute."),
        click.option("--fresh", is_flag=True, help="Measure anew instead of going on with earlier readings."),
        click.option("--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="Take the readings from a file instead of this machine."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )):
        function = option(function)
    return function


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
            raise InputError(f"--out is {str(self.out)!r}; it should end in .toml")

    @property
    def path(self) -> Path:
        """Where the readings go."""
        return readings_path(self.out, self.probe)

    def replayed(self) -> Readings:
        """The recording that stands in for this machine."""
        assert self.replay is not None
        recorded = read_readings(self.replay)
        if recorded.machine.probe != self.probe:
            raise InputError(f"{self.replay} has readings of `knee probe {recorded.machine.probe}`, "
                             f"not of `knee probe {self.probe}`")
        return recorded

    def file(self, machine: Machine) -> ReadingsFile:
        """The readings' file, with what it has already."""
        return ReadingsFile(self.path, machine, fresh=self.fresh or self.replay is not None)


def readings_path(out: Path, probe: Probe) -> Path:
    """mine.toml -> mine.kernels.jsonl."""
    return out.with_name(f"{out.stem}.{probe}.jsonl")


def played(recorded: Readings, points: Sequence[Point]) -> tuple[list[Point], Callable[[Point], Record]]:
    """The points of a recording, in the grid's order, and a measurement that looks them up."""
    found = {r["key"]: r for r in recorded.records}
    return [p for p in points if key_of(p) in found], lambda point: found[key_of(point)]


class Progress:
    """A line on stderr per tenth, or a live bar on a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bar = total, 0, None

    def __enter__(self) -> Progress:
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
            click.echo(f"{self.done} of {self.total} points", err=True)
