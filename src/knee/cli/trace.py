"""``knee trace``: where the time of anyone's PyTorch job went, from its traces."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import option
from knee.cli.options.sections import Sectioned
from knee.errors import InputError

if TYPE_CHECKING:
    from knee.api.traces import TraceAnalysis

DIFF = "diff"
LARGE_BYTES = 100_000_000
"""Of a trace, from which on it is said how much was read."""


@click.command("trace", cls=Sectioned)
@click.argument("paths", nargs=-1, required=True, metavar="PATH... | diff A B")
@option(
    "--skip",
    section="Which steps",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Profiler steps to leave out at the beginning. Without --skip and --steps all of the trace counts.",
)
@option("--steps", section="Which steps", type=int, metavar="N", help="Profiler steps to take after those.")
@option(
    "--comm-pattern",
    section="What communicates",
    multiple=True,
    metavar="REGEX",
    help="Kernels whose name has this in it are communication too. May be repeated.",
)
@option(
    "--comm",
    section="What communicates",
    multiple=True,
    metavar="CLASS",
    help="Kernels of this class are communication too, for example elementwise.",
)
@option(
    "--classes",
    section="What communicates",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML with classes of kernels, asked before knee's own, in the form of knee/catalog/kernel_classes.toml.",
)
@option(
    "--html",
    section="Output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page: breakdown by rank and step, collectives, stragglers, a timeline of what was exposed.",
)
@option(
    "--perfetto",
    section="Output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a small trace of the exposed intervals and what surrounds them, for ui.perfetto.dev.",
)
@option(
    "--sql",
    section="Output",
    metavar="QUERY",
    help="Ask the events yourself (DuckDB); tables: kernels, steps, collectives, ranks.",
)
@job_options.as_json("Print JSON.")
@option("--no-cache", section="Output", is_flag=True, help="Read the files even where nothing has changed.")
def command(paths: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say where the time of a PyTorch job went: compute, communication, what of it was exposed, and where.

    PATH is a trace of torch.profiler (.json or .json.gz), a folder of them, or - for the standard input; several are
    the ranks of one job. Times are exact to the nanosecond. Sums of kernel times are called loads; the others are
    unions, so that what runs at the same time counts once. A step begins on the device with the first kernel that was
    launched in it. With several ranks, the shortest of a collective's calls is its transfer, and what the others last
    beyond it is waiting.

    \b
        knee trace rank0.json.gz
        knee trace traces/ --html report.html
        knee trace traces/ --skip 1 --json > ours.json     # `knee compare ours.json simulated.json`
        knee trace traces/ --sql "select name, sum(exposed_ns) from kernels group by 1 order by 2 desc limit 5"
        knee trace diff before/ after/

    What was read, left out or looks odd is said with every answer. Exit code 5: a file was cut off or could not be
    read, and the answer is about the rest.
    """
    from knee.cli.render.table import write_anywhere

    write_anywhere()
    from knee.api.traces import check_targets
    from knee.cli.render.trace import print_analysis, print_query

    if paths[0] == DIFF:
        _diff(paths[1:], as_json, options)
        return
    targets = {name: options[name] for name in ("html", "perfetto") if options[name] is not None}
    check_targets(paths, options["classes"], targets)
    analysis = _read(paths, options)
    if options["sql"] is not None:
        print_query(analysis.sql(options["sql"]), as_json)
    elif as_json:
        click.echo(json.dumps(analysis.to_dict(), indent=1, allow_nan=False))
    else:
        print_analysis(analysis)
    if options["html"] is not None:
        written = analysis.write_html(options["html"], command=shlex.join(["knee", *sys.argv[1:]]))
        click.echo(f"wrote {written}", err=True)
    if options["perfetto"] is not None:
        small = analysis.write_perfetto(options["perfetto"])
        click.echo(f"wrote {options['perfetto']}: {small.kernels:,} of {small.of_kernels:,} kernels", err=True)
    analysis.check_whole()


def _read(paths: Sequence[str], options: dict[str, Any]) -> TraceAnalysis:
    from knee.api.traces import read_traces
    from knee.cli.render.progress import Meter

    with Meter() as meter:
        counts = {"traces read": (0, 0), "bytes read": (0, 0)}

        def progress(what: str, done: int, total: int) -> None:
            counts[what] = (done, total)
            (traces, files), (read_bytes, _) = counts.values()
            read = f", {read_bytes / 1e9:.1f} GB" if read_bytes >= LARGE_BYTES else ""
            if files > 1 or read:
                meter.say(f"read {traces:,} of {files:,} trace{'s' if files > 1 else ''}{read}")

        asked = {name: options[name] for name in ("skip", "steps", "comm_pattern", "comm", "classes")}
        return read_traces(paths, **asked, cache=not options["no_cache"], progress=progress)


def _diff(paths: Sequence[str], as_json: bool, options: dict[str, Any]) -> None:
    from knee.api.traces import two_jobs
    from knee.cli.render.trace import print_diff

    both = two_jobs(paths)
    for name in ("html", "perfetto", "sql"):
        if options[name] is not None:
            raise InputError(f"--{name} is of one job", hint=f"`knee trace {paths[0]} --{name} ...`")
    a, b = (_read([path], options) for path in both)
    found = a.diff(b)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        print_diff(found, both)
    found.check_whole()
