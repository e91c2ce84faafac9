"""``knee trace``: where the time of anyone's PyTorch job went, from its traces."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from knee.base.errors import InputError
from knee.commands.options.output import print_result, say
from knee.commands.options.sections import FILE, Sectioned, as_json, option, options

if TYPE_CHECKING:
    from knee.commands.trace.api import TraceAnalysis

DIFF = "diff"
LARGE_BYTES = 100_000_000
"""Of a trace, from which on it is said how much was read."""


@click.command("trace", cls=Sectioned)
@click.argument("paths", nargs=-1, required=True, metavar="PATH... | diff A B")
@options(
    "Steps",
    {
        ("--skip N", int, 0): "Number of profiler steps to skip at the beginning. Without --skip and --steps the "
        "whole trace is analysed.",
        ("--steps N", int): "Number of profiler steps to analyse after the skipped ones; default: all.",
    },
)
@options(
    "Communication kernels",
    {
        ("--comm-pattern REGEX", (str,)): "Also count kernels whose name matches this pattern as communication. May "
        "be repeated.",
        ("--comm CLASS", (str,)): "Also count kernels of this class as communication, for example elementwise.",
        ("--classes FILE", FILE): "TOML file with your own kernel classes, which are tried before knee's. The format "
        "is that of knee/catalog/kernel_classes.toml.",
    },
)
@options(
    "Output",
    {
        ("--html FILE", FILE): "Write an HTML page: breakdown by rank and step, collectives, stragglers, and a "
        "timeline of exposed communication.",
        ("--perfetto FILE", FILE): "Write a small trace for ui.perfetto.dev that contains the exposed intervals and "
        "the kernels around them.",
        ("--sql QUERY", str): "Run an SQL query on the events (with DuckDB); the tables are kernels, steps, "
        "collectives and ranks.",
    },
)
@as_json("Print JSON.")
@option("--no-cache", bool, "Ignore the cache and read the files again.", section="Output")
def command(paths: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show where the time of a PyTorch job went: compute, communication, and how much communication was exposed.

    PATH is a trace of torch.profiler (.json or .json.gz), a folder of traces, or - for standard input. Several traces
    are taken as the ranks of one job. Times are exact to the nanosecond. A load is a plain sum of kernel times. All
    other times count simultaneous kernels once. A step starts at the first kernel that was launched in it. With
    several ranks, the shortest call of each collective is taken as its transfer time, and the extra time of the other
    ranks as waiting.

    \b
        knee trace rank0.json.gz
        knee trace traces/ --html report.html
        knee trace traces/ --skip 1 --json > ours.json     # `knee compare ours.json simulated.json`
        knee trace traces/ --sql "select name, sum(exposed_ns) from kernels group by 1 order by 2 desc limit 5"
        knee trace diff before/ after/

    Every answer lists what was read, what was left out, and what looks unusual. If a file is truncated or unreadable,
    knee analyses the rest and exits with code 5.
    """
    from knee.show.terminal.table import write_anywhere

    write_anywhere()
    from knee.commands.trace.api import check_targets
    from knee.commands.trace.text import print_analysis, print_query

    if paths[0] == DIFF:
        _diff(paths[1:], as_json, options)
        return
    targets = {name: options[name] for name in ("html", "perfetto") if options[name] is not None}
    check_targets(paths, options["classes"], targets)
    analysis = _read(paths, options)
    if options["sql"] is not None:
        print_query(analysis.sql(options["sql"]), as_json)
    else:
        print_result(analysis, as_json, print_analysis, indent=1)
    if options["html"] is not None:
        written = analysis.write_html(options["html"], command=shlex.join(["knee", *sys.argv[1:]]))
        say(f"wrote {written}")
    if options["perfetto"] is not None:
        small = analysis.write_perfetto(options["perfetto"])
        say(f"wrote {options['perfetto']}: {small.kernels:,} of {small.of_kernels:,} kernels")
    analysis.check_whole()


def _read(paths: Sequence[str], options: dict[str, Any]) -> TraceAnalysis:
    from knee.commands.trace.api import read_traces
    from knee.show.terminal.progress_bar import Meter

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
    from knee.commands.trace.api import two_jobs
    from knee.commands.trace.text import print_diff

    both = two_jobs(paths)
    for name in ("html", "perfetto", "sql"):
        if options[name] is not None:
            raise InputError(f"--{name} is of one job", hint=f"`knee trace {paths[0]} --{name} ...`")
    a, b = (_read([path], options) for path in both)
    found = a.diff(b)
    print_result(found, as_json, lambda found: print_diff(found, both), indent=1)
    found.check_whole()
