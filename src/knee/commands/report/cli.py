"""``knee report``: a page of one's own records."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from knee.commands.options.output import print_result, say
from knee.commands.options.sections import PATH, as_json, option
from knee.commands.report.api import RecordsReport
from knee.show.figures.labels import format_value, heading
from knee.show.terminal.table import print_rows
from knee.specs.metrics import VIEWS

COLUMNS = ("series", "kind", "gpus", *VIEWS["list of records"])


def print_records(answer: RecordsReport) -> None:
    """A table of the records' main figures."""
    cells = [
        ["unknown" if row.get(name) is None else format_value(name, row[name]) for name in COLUMNS]
        for row in answer.records
    ]
    print_rows([[heading(name) for name in COLUMNS], *cells], right=range(2, len(COLUMNS)))


@click.command("report")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path), metavar="RECORDS...")
@option("-o --out FILE", PATH, "HTML file to write; it needs no network.", default="report.html")
@option("--title TEXT", str, "Title of the page.", default="Training runs")
@option("--by COLUMN", str, "Column that distinguishes the curves, such as profile; default: the column that differs.")
@option("--simulate predict", bool, "Also simulate every measured record that has no simulated counterpart.")
@as_json("Print the rows as JSON. The page is then written only if -o is given.")
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
        say(f"note: {note}")
    print_result(answer, as_json, print_records)
    given = ctx.get_parameter_source("out") is not click.core.ParameterSource.DEFAULT
    if given or not as_json:
        chosen = [*(["--by", by] if by else []), *(["--simulate"] if predict else [])]
        again = shlex.join(["knee", "report", *map(str, records), *chosen, "-o", str(out)])
        answer.write_page(out, title=title, command=again)
        say(f"wrote {out}")
    answer.check_whole()
