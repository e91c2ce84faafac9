"""``knee report``: a page of one's own records."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.errors import InputError

if TYPE_CHECKING:
    from knee.studies.quantities import Row

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
    help="The page: one HTML file that needs no network.",
)
@click.option("--title", metavar="TEXT", default="Training runs", show_default=True, help="Of the page.")
@click.option("--by", metavar="COLUMN", help="Column that names the curves, such as profile; by default what differs.")
@click.option(
    "--simulate",
    "predict",
    is_flag=True,
    help="Add knee's prediction of every measured record that has none beside it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON and write no page, unless -o is given.")
@click.pass_context
def command(
    ctx: click.Context, records: tuple[Path, ...], out: Path, title: str, by: str | None, predict: bool, as_json: bool
) -> None:
    """Make one page of your own records: measured beside simulated, with every value behind its chart.

    RECORDS are files or folders: what `knee simulate --json` printed, the folder of a `knee train` run or its
    record.json, the records of a study; several in one file as a list or one after another. What is no record is named
    and passed over. Where a measured and a simulated record are of the same job, the page says how far off knee was.

    \b
        knee report runs/ --simulate -o runs.html
        knee report measured.json simulated.json --by profile
    """
    from knee.report.own_records import gather, predicted, rows_of

    if not records:
        raise InputError("no records are given", hint="`knee report runs/` takes all records of a folder")
    gathered = gather(records)
    found = list(gathered.found)
    notes = [f"{name}: {why}" for name, why in gathered.skipped]
    if predict:
        made, refused = predicted(found)
        found += made
        notes += [f"{name} is not predicted: {why}" for name, why in refused]
    for note in notes:
        click.echo(f"note: {note}", err=True)
    rows = rows_of(found, by)
    given = ctx.get_parameter_source("out") is not click.core.ParameterSource.DEFAULT
    if as_json:
        click.echo(json.dumps({"rows": rows, "notes": notes}, indent=2, allow_nan=False))
    else:
        _print(rows)
    if as_json and not given:
        return
    from knee.files import write_text
    from knee.report.records_page import runs_page

    page = runs_page(rows, title=title, command=_command(records, out, by, predict), notes=notes)
    # a name in a record may hold half of a character, which no file can
    write_text(out, page.encode("utf-8", "replace").decode("utf-8"))
    click.echo(f"wrote {out}", err=True)


def _command(records: Sequence[Path], out: Path, by: str | None, predict: bool) -> str:
    words = ["knee", "report", *map(str, records)]
    words += ["--by", by] if by else []
    words += ["--simulate"] if predict else []
    return shlex.join([*words, "-o", str(out)])


def _print(rows: Sequence[Row]) -> None:
    from knee.cli.render.table import print_rows
    from knee.figures.labels import heading, shown

    columns = (
        "series",
        "kind",
        "gpus",
        "tokens_per_s_per_gpu",
        "step_s",
        "mfu_frac",
        "exposed_frac",
        "memory_bytes",
        "power_w_per_gpu",
        "tokens_per_j",
    )

    def cell(name: str, value: Any) -> str:
        return "unknown" if value is None else shown(name, value)

    cells = [[cell(name, row.get(name)) for name in columns] for row in rows]
    print_rows([[heading(name) for name in columns], *cells], right=range(2, len(columns)))
