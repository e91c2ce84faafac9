"""``knee study``: the paper's experiments, and questions beyond it, on the simulator or for real."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Word
from knee.errors import InputError

if TYPE_CHECKING:
    from knee.study.quantities import Row
    from knee.study.questions import Point
    from knee.study.run import Ran

DEFAULT_OUT = "out"
LAUNCHERS = ("simulate", "local")
CHANGES = ("model", "cluster", "profile", "gpus", "local_batch", "global_batch", "seq_len")


class Studies(click.Group):
    """A group whose misspelt commands get the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does."""
        from knee.cli import nearest

        if args[0] not in self.commands and not args[0].startswith("-"):
            known = list(self.commands)
            raise InputError(
                f"there is no `knee study {args[0]}`",
                hint=nearest(args[0], known) or f"`knee study run {args[0]}` runs a study; `knee study list` has all",
            )
        return super().resolve_command(ctx, args)


def _out(command: Any) -> Any:
    option = click.option(
        "--out",
        metavar="DIR",
        default=DEFAULT_OUT,
        show_default=True,
        type=click.Path(path_type=Path),
        help="Folder for the page, figures, tables and records.",
    )
    return option(command)


@click.group("study", cls=Studies, invoke_without_command=True)
@_out
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
@click.pass_context
def study(ctx: click.Context, out: Path, as_json: bool) -> None:
    """Reproduce every figure and claim of the paper, and ask beyond it.

    Alone it runs all studies on the simulator: DIR/index.html is one page that needs no network. Records are kept in
    DIR/records and used again while nothing they depend on changes, so that a study that was interrupted goes on where
    it stopped.
    """
    if ctx.invoked_subcommand is None:
        _run((), out=out, as_json=as_json)
    elif str(out) != DEFAULT_OUT or as_json:
        raise InputError(
            "--out and --json belong behind the command",
            hint=f"for example `knee study {ctx.invoked_subcommand} --json`",
        )


command = study


@study.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_studies(as_json: bool) -> None:
    """All studies: where in the paper, what about, how many runs and claims."""
    from knee.cli.table import print_rows
    from knee.study.files import load_study, study_names
    from knee.study.questions import points_of

    found = [load_study(name) for name in study_names()]
    if as_json:
        data = [
            {
                "name": s.name,
                "kind": s.kind,
                "place": s.place,
                "title": s.title,
                "points": len(points_of(s)),
                "claims": [c.id for c in s.claim],
            }
            for s in found
        ]
        click.echo(json.dumps(data, indent=2))
        return
    rows = [["study", "where", "about", "runs", "claims"]]
    rows += [
        [s.name, s.place or "beyond the paper", s.title, str(len(points_of(s)) or ""), str(len(s.claim) or "")]
        for s in found
    ]
    print_rows(rows, right=(3, 4))


@study.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the study and every point of its grid.")
def show_study(name: str, as_json: bool) -> None:
    """What a study asks, runs, assumes and is judged by."""
    from knee.cli.table import print_heading, print_rows
    from knee.study.files import load_study
    from knee.study.questions import points_of

    found = load_study(name)
    points = points_of(found)
    if as_json:
        data = asdict(found) | {"points": [{"series": p.series, **asdict(p.question)} for p in points]}
        click.echo(json.dumps(data, indent=2, default=str))
        return
    print_heading(f"{found.name}: {found.title}")
    print_rows(
        [
            ["where", found.place or "beyond the paper"],
            ["question", found.question],
            *([["paper", found.paper]] if found.paper else []),
            ["charts", "; ".join(draw.title for draw in found.draw)],
            ["run it", f"knee study run {shlex.quote(name)}"],
        ]
    )
    if points:
        print_heading(f"{len(points)} runs")
        rows = [["series", "model", "cluster", "profile", "GPUs", "batch", "tokens", "plan"]]
        rows += [
            [
                p.series,
                p.question.model,
                p.question.cluster,
                p.question.profile,
                f"{p.question.gpus:,}",
                f"{p.question.global_batch:,}",
                f"{p.question.seq_len:,}",
                _plan(p),
            ]
            for p in points
        ]
        print_rows(rows, right=(4, 5, 6))
    if found.claim:
        print_heading(f"{len(found.claim)} claims")
        print_rows(
            [
                ["id", "says", "paper", "reproduced if", "fitted on it"],
                *([c.id, c.says, c.paper, c.bar, c.fitted or "nothing"] for c in found.claim),
            ]
        )
    if found.assumptions:
        print_heading("assumptions:")
        for sentence in found.assumptions:
            click.echo(f"  - {sentence}")


def _plan(point: Point) -> str:
    """A plan as the grid names it, or how it is picked."""
    question = point.question
    if len(question.plans) > 1:
        return f"{question.pick} of {len(question.plans)} that fits"
    words = [f"{name} {value}" for name, value in question.plans[0] if name != "placement"]
    words += [f"{name} {value}" for name, value in question.sets]
    return ", ".join(words) or "FSDP"


@study.command("run")
@click.argument("names", nargs=-1, metavar="[STUDY]...")
@_out
@click.option(
    "--launcher",
    type=Word(LAUNCHERS),
    default="simulate",
    show_default=True,
    help="local: train for real the points that this machine can run; the others are simulated.",
)
@click.option(
    "--records",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Measured records (a run's folder, its record.json, or a folder of such); they stand in for the "
    "simulated points they are of. May be repeated.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUES",
    help="Change the grid: model, cluster, profile, gpus, local_batch, global_batch or seq_len, values by "
    "commas. Claims are then not tested. May be repeated.",
)
@click.option("--steps", type=int, metavar="N", help="Steps of each real run, if other than `knee train`'s own.")
@click.option("--no-page", is_flag=True, help="Records, tables and verdicts only: no figures, no page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
def run(names: tuple[str, ...], out: Path, **options: Any) -> None:
    """Run some studies, or all: knee study run fig6 fig7.

    \b
        knee study run fig3
        knee study run fig3 --records runs/                 # measured where there are records
        knee study run fig6 --launcher local --set model=llama-tiny --set cluster=cpu --set profile=eager \\
            --set gpus=4 --set seq_len=64
    """
    _run(names, out=out, **options)


def _run(
    names: Sequence[str],
    *,
    out: Path,
    as_json: bool,
    launcher: str = "simulate",
    records: Sequence[Path] = (),
    sets: Sequence[str] = (),
    steps: int | None = None,
    no_page: bool = False,
) -> None:
    from knee.files import make_folder
    from knee.study.files import study_names
    from knee.study.run import points_to_run, results, strangers
    from knee.study.store import Store

    if steps is not None and (launcher != "local" or steps < 1):
        raise InputError(f"--steps {steps}: real runs have at least one step", hint="it goes with --launcher local")
    if not no_page:  # not after everything has been run
        from knee.figures.vega import load

        load("altair"), load("vl_convert")
    names = list(dict.fromkeys(names)) or study_names()
    changes = changes_of(sets)
    measured: list[tuple[Point | None, Mapping[str, Any]]] = []
    measured += [(None, record) for path in records for record in _records(path)]
    points = points_to_run(names, changes)
    make_folder(out)
    store = Store(out / "records", _warn)
    found = list(_recorded(points, store))
    if launcher == "local":
        measured += _trained(points, out / "runs", steps)
    for record in strangers(found, [record for point, record in measured if point is None]):
        _warn(f"a measured record of {record['model']} on {record['gpus']:,} GPUs is of none of the points")
    ran = results(names, found, measured, changes, kept=out / ".kept")
    impossible = sum(len(one.impossible) for one in ran)
    click.echo(
        f"{len(found):,} points: {store.made:,} simulated, {store.reused:,} kept from before"
        + (f", {impossible:,} cannot be" if impossible else "")
        + (f", {len(measured):,} measured" if measured else ""),
        err=True,
    )
    _write(ran, out, names, as_json=as_json, no_page=no_page, given=_given(names, out, launcher, records, sets))


def _recorded(points: Sequence[Point], store: Any) -> Iterator[Row]:
    """Point by point, with a bar for each study."""
    from itertools import groupby

    from knee.cli.progress import progress
    from knee.study.run import recorded

    for name, group in groupby(points, key=lambda point: point.study):
        some = list(group)
        yield from progress(recorded(some, store.record), f"{name:12}", len(some))


def _trained(points: Sequence[Point], folder: Path, steps: int | None) -> list[tuple[Point, Mapping[str, Any]]]:
    """Real runs of the points that this machine can train; how many it cannot is said, and why."""
    from collections import Counter

    from knee.cli.progress import progress
    from knee.launch.machine import LocalDevices
    from knee.probe.machine import need_torch
    from knee.study.real import refused as refused_by
    from knee.study.real import trained

    need_torch("knee study run --launcher local")
    machine = LocalDevices.here()
    refused = {point: refused_by(machine, point) for point in points}
    able = [point for point in points if refused[point] is None]
    for why, count in Counter(why for why in refused.values() if why).items():
        click.echo(f"{count:,} points are simulated only: {why}", err=True)
    if not able:
        raise InputError(
            "none of these points can be trained here",
            hint="make them smaller, for example --set cluster=cpu --set model=llama-tiny "
            "--set profile=eager --set gpus=4 --set seq_len=64",
        )
    runs = progress(trained(able, folder, steps=steps, warn=_warn), "training", len(able))
    return [(point, record) for point, record in runs if record is not None]


def _write(ran: Sequence[Ran], out: Path, names: Sequence[str], *, as_json: bool, no_page: bool, given: str) -> None:
    """Tables and the answer first, because they need nothing that may be missing; then figures and the page."""
    from knee.cli.study_answer import as_data, print_answer
    from knee.files import csv_text, write_text
    from knee.study.claims import Tally
    from knee.study.store import fidelity_kept
    from knee.study.tables import write_tables

    fidelity = fidelity_kept(out / ".kept")
    verdicts = [verdict for one in ran for verdict in one.verdicts]
    write_tables(ran, out)
    if verdicts:
        write_text(out / "claims.csv", csv_text([asdict(v) for v in verdicts]))
    write_text(out / "fidelity.csv", csv_text([asdict(s) for s in fidelity.sources]))
    if as_json:
        click.echo(json.dumps(as_data(ran, fidelity), indent=2, allow_nan=False))
    else:
        print_answer(ran, fidelity, whole=len(names) > 1)
    if not no_page:
        from knee.report.study import write_page

        click.echo(f"wrote {write_page(ran, fidelity, out, command=given)}", err=True)
    click.echo(f"claims: {Tally.of(verdicts)}", err=as_json)


def changes_of(sets: Sequence[str]) -> dict[str, Any]:
    """What ``--set`` changes of every grid; a list where it has commas."""
    from knee.cli import nearest
    from knee.cli.overrides import parse_sets

    changes: dict[str, Any] = {}
    for key, text in parse_sets(list(sets)):
        if key not in CHANGES:
            raise InputError(
                f"--set {key}: a grid has {', '.join(CHANGES)}",
                hint=nearest(key, CHANGES) or "other values are changed in a study file",
            )
        values = [part.strip() for part in text.split(",")]
        changes[key] = tuple(values if key in ("model", "cluster", "profile") else (_number(key, v) for v in values))
    if {"local_batch", "global_batch"} <= changes.keys():
        raise InputError("--set local_batch and --set global_batch are both given", hint="give one of them")
    return changes


def _number(key: str, text: str) -> float | int:
    try:
        value = float(text) if key == "local_batch" else int(text)
    except ValueError:
        raise InputError(f"--set {key}={text}: it should be a number") from None
    if not 0 < value < float("inf"):
        raise InputError(f"--set {key}={text}: it should be more than 0, and finite")
    return value


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    """Measured records of a file, a run's folder, or the folders below one."""
    from knee.fidelity.side_by_side import read_record
    from knee.fidelity.user_runs import records_in
    from knee.study.rows import step_row

    for file in records_in([path]):
        record = read_record(file)
        if record.get("kind", "measured") != "measured":
            raise InputError(
                f"{file} is a {record['kind']} record, not a measured one", hint="simulated points need not be given"
            )
        try:
            step_row(record, study="", series="")
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise InputError(
                f"{file} does not say which model, plan and sizes it was measured with",
                hint="`knee train` leaves records that do",
            ) from None
        yield record


def _given(names: Sequence[str], out: Path, launcher: str, records: Sequence[Path], sets: Sequence[str]) -> str:
    """The command that makes the same page."""
    from knee.study.files import study_names

    words = ["knee", "study"]
    rest = [f"--set {shlex.quote(s)}" for s in sets] + [f"--records {shlex.quote(str(path))}" for path in records]
    rest += [] if launcher == "simulate" else [f"--launcher {launcher}"]
    some = [] if list(names) == study_names() else list(names)
    words += ["run", *some] if some or rest else []
    rest += [] if str(out) == DEFAULT_OUT else [f"--out {shlex.quote(str(out))}"]
    return " ".join([*words, *rest])


def _warn(message: str) -> None:
    click.echo(f"warning: {message}", err=True)
