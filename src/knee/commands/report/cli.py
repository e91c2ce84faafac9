"""``knee report``: a page of one's own records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from knee.commands.report.api import RecordsReport
from knee.show.figures.labels import format_value, heading
from knee.show.terminal.table import print_rows
from knee.specs.metrics import VIEWS

# One's own records on the screen.

COLUMNS = ("series", "kind", "gpus", *VIEWS["list of records"])


def print_records(answer: RecordsReport) -> None:
    """A table of the records' main figures."""
    cells = [[_cell(name, row.get(name)) for name in COLUMNS] for row in answer.records]
    print_rows([[heading(name) for name in COLUMNS], *cells], right=range(2, len(COLUMNS)))


def _cell(name: str, value: Any) -> str:
    return "unknown" if value is None else format_value(name, value)


DEFAULT = "report.html"


@click.command("report")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path), metavar="RECORDS...")
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    default=DEFAULT,
    show_default=True,
    type=click.Path(path_type=Path),
    help="HTML file to write; it needs no network.",
)
@click.option("--title", metavar="TEXT", default="Training runs", show_default=True, help="Title of the page.")
@click.option(
    "--by",
    metavar="COLUMN",
    help="Column that distinguishes the curves, such as profile; default: the column that differs.",
)
@click.option(
    "--simulate",
    "predict",
    is_flag=True,
    help="Also simulate every measured record that has no simulated counterpart.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the rows as JSON. The page is then written only if -o is given."
)
@click.pass_context
def command(
    ctx: click.Context, records: tuple[Path, ...], out: Path, title: str, by: str | None, predict: bool, as_json: bool
) -> None:
    """Write one HTML page about your records, with measured and simulated runs side by side and a table for every
    chart.

    RECORDS are files or folders: the output of `knee simulate --json`, the folder of a `knee train` run or its
    record.json, or the records of a study. A file may contain several records, as a list or one after another. Files
    that are not records are named and skipped. If a measured and a simulated record describe the same job, the page
    shows the error of the simulation.

    \b
        knee report runs/ --simulate -o runs.html
        knee report measured.json simulated.json --by profile
    """
    from knee.commands.report.api import read_records

    answer = read_records(records, by=by, simulate=predict)
    for note in answer.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    else:
        print_records(answer)
    given = ctx.get_parameter_source("out") is not click.core.ParameterSource.DEFAULT
    if given or not as_json:
        answer.write_page(out, title=title, command=_command(records, out, by, predict))
        click.echo(f"wrote {out}", err=True)
    answer.check_whole()


def _command(records: Sequence[Path], out: Path, by: str | None, predict: bool) -> str:
    words = ["knee", "report", *map(str, records)]
    words += ["--by", by] if by else []
    words += ["--simulate"] if predict else []
    return shlex.join([*words, "-o", str(out)])
