"""``knee trace``: where the time of anyone's PyTorch job went, from its traces."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned
from knee.cli.plan_options import option
from knee.errors import Incomplete, InputError
from knee.units import show

if TYPE_CHECKING:
    from knee.trace.analyse import Analysis, RankAnalysis
    from knee.trace.diff import Change, Diff

DIFF = "diff"
SHOWN = 12
"""Rows of a table on the terminal; --json has all."""
NAME_WIDTH = 90
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
    help="Kernels of this class are communication on every stream, for example symmetric_memory.",
)
@option(
    "--classes",
    "classes_file",
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
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON.")
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
    from knee.cli.table import write_anywhere

    write_anywhere()
    if paths[0] == DIFF:
        _diff(paths[1:], as_json, options)
        return
    _check_targets(paths, options)
    analysis = _analyse(paths, options)
    if options["sql"] is not None:
        _sql(analysis, options["sql"], as_json)
    elif as_json:
        from knee.trace.answer import as_json as plain

        click.echo(json.dumps(plain(analysis), indent=1, allow_nan=False))
    else:
        _print(analysis)
    if options["html"] is not None:
        from knee.files import write_text
        from knee.report.trace import trace_page

        write_text(options["html"], trace_page(analysis, command=shlex.join(["knee", *sys.argv[1:]])))
        click.echo(f"wrote {options['html']}", err=True)
    if options["perfetto"] is not None:
        from knee.trace.perfetto import write_small

        small = write_small(analysis, options["perfetto"])
        click.echo(f"wrote {options['perfetto']}: {small.kernels:,} of {small.of_kernels:,} kernels", err=True)
    _end([analysis])


def _check_targets(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    """What is written must not replace what is read."""
    from knee.trace.files import find_files

    inputs = [*find_files(paths).files, *([options["classes_file"]] if options["classes_file"] is not None else [])]
    targets = {name: options[name] for name in ("html", "perfetto") if options[name] is not None}
    for name, target in targets.items():
        if any(_is_same(target, one) for one in inputs):
            raise InputError(f"--{name} {target} would replace a file that is read", hint="name another file")
    if len(targets) > 1 and _is_same(*targets.values()):
        raise InputError("--html and --perfetto name one file", hint="name two")


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.resolve() == b.resolve() or (a.is_file() and b.is_file() and a.samefile(b))
    except (OSError, RuntimeError):  # what cannot be looked at is refused where it is read or written
        return False


def _analyse(paths: tuple[str, ...], options: dict[str, Any]) -> Analysis:
    from knee.cli.progress import Meter
    from knee.trace.analyse import analyse
    from knee.trace.classes import classes_of

    classes = classes_of(patterns=options["comm_pattern"], file=options["classes_file"], comm=options["comm"])
    with Meter() as meter:

        def progress(done: int, all_: int, read_bytes: int) -> None:
            read = f", {read_bytes / 1e9:.1f} GB" if read_bytes >= LARGE_BYTES else ""
            if all_ > 1 or read:
                meter.say(f"read {done:,} of {all_:,} trace{'s' if all_ > 1 else ''}{read}")

        return analyse(
            paths,
            skip=options["skip"],
            steps=options["steps"],
            classes=classes,
            cache=not options["no_cache"],
            progress=progress,
        )


def _end(analyses: list[Analysis]) -> None:
    failed = [one for analysis in analyses for one in analysis.left_out if one.is_trace]
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise Incomplete(
            f"not every trace could be read: {failed[0].why}{more}",
            hint="the answer is about the others; was the job ended while it wrote the trace?",
        )
    cut = [rank for analysis in analyses for rank in analysis.ranks if rank.audit.cut]
    if cut:
        raise Incomplete(
            f"{cut[0].path} is not whole: {cut[0].audit.cut}",
            hint="the answer is about what could be read; was the job ended while it wrote the trace?",
        )


def _sql(analysis: Analysis, query: str, as_json: bool) -> None:
    from knee.cli.table import print_rows
    from knee.trace.sql import json_value
    from knee.trace.sql import query as ask

    names, rows = ask(analysis, query)
    if as_json:
        plain = [dict(zip(names, map(json_value, row), strict=True)) for row in rows]
        click.echo(json.dumps(plain, indent=1, default=str, allow_nan=False))
        return
    numbers = [i for i in range(len(names)) if rows and all(isinstance(row[i], (int, float)) for row in rows)]
    print_rows([names, *([_cell(value) for value in row] for row in rows)], right=numbers)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _print(analysis: Analysis) -> None:
    from knee.cli.table import print_heading, print_rows

    ranks, first = analysis.ranks, analysis.ranks[0].trace.columns
    world = f" of {first.world_size:,}" if first.world_size else ""
    which = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    steps = f"{analysis.steps} step{'s' if analysis.steps != 1 else ''}" if analysis.steps else "no profiler steps"
    print_heading(f"{which}{world} on {first.device_name or 'an unnamed device'}, {steps}")
    print_rows(_times_rows(analysis), right=(1, 2))
    if len(ranks) == 1 and len(ranks[0].steps) > 1:
        print_heading("by step")
        print_rows(_step_rows(ranks[0]), right=(0, 1, 2, 3, 4, 5))
    if len(ranks) > 1:
        print_heading("by rank")
        print_rows(_rank_rows(analysis), right=tuple(range(9)))
    print_heading("communication" + ("" if len(ranks) == 1 else f" of rank {ranks[0].rank}"))
    print_rows(_collective_rows(ranks[0]), right=(2, 3, 4, 5, 6, 7, 8))
    print_heading("kernels by class" + ("" if len(ranks) == 1 else f" of rank {ranks[0].rank}"))
    print_rows(_class_rows(ranks[0]), right=(2, 3, 4))
    _print_audit(analysis)


def _times_rows(analysis: Analysis) -> list[list[str]]:
    t = analysis.times
    over = max(t.window_s, 1e-12)
    rows = [
        ["window", show(t.window_s, "s"), ""],
        ["compute", show(t.compute_s, "s"), f"{t.compute_s / over:.1%}"],
        ["exposed communication", show(t.exposed_comm_s, "s"), f"{t.exposed_comm_s / over:.1%}"],
        ["exposed copies and fills", show(t.exposed_copies_s, "s"), f"{t.exposed_copies_s / over:.1%}"],
        ["idle", show(t.idle_s, "s"), f"{t.idle_s / over:.1%}"],
        ["communication", show(t.comm_s, "s"), f"{t.comm_s / over:.1%}"],
        [
            "overlapped communication",
            show(t.overlapped_comm_s, "s"),
            f"{t.overlapped_comm_s / t.comm_s:.1%} of it" if t.comm_s else "",
        ],
        ["compute load", show(t.compute_load_s, "s"), ""],
        ["communication load", show(t.comm_load_s, "s"), ""],
        ["copies, fills (load)", f"{show(t.copy_load_s, 's')}, {show(t.fill_load_s, 's')}", ""],
    ]
    if t.bubble_s:
        rows.append(["bubble (in the exposed)", show(t.bubble_s, "s"), f"{t.bubble_s / over:.1%}"])
    if len(analysis.ranks) > 1:
        rows = [[f"{row[0]}{', mean over ranks' if i == 0 else ''}", *row[1:]] for i, row in enumerate(rows)]
    return rows


def _step_rows(rank: RankAnalysis) -> list[list[str]]:
    head = ["step", "window", "compute", "communication", "exposed", "idle"]
    return [
        head,
        *(
            [
                str(part.step) if part.step is not None else "before",
                show(part.times.window_s, "s"),
                show(part.times.compute_s, "s"),
                show(part.times.comm_s, "s"),
                show(part.times.exposed_comm_s, "s"),
                show(part.times.idle_s, "s"),
            ]
            for part in rank.steps
        ),
    ]


def _rank_rows(analysis: Analysis) -> list[list[str]]:
    head = ["rank", "window", "compute", "communication", "exposed", "idle", "transfer", "waiting", "waited for"]
    rows = [head]
    for rank, waits in zip(analysis.ranks, analysis.across.ranks, strict=True):
        t = rank.times
        told = [show(waits.transfer_s, "s"), show(waits.waiting_s, "s"), show(waits.waited_for_s, "s")]
        rows.append(
            [
                str(rank.rank),
                show(t.window_s, "s"),
                show(t.compute_s, "s"),
                show(t.comm_s, "s"),
                show(t.exposed_comm_s, "s"),
                show(t.idle_s, "s"),
                *(told if waits.matched else ["unknown"] * 3),
            ]
        )
    return rows


def _collective_rows(rank: RankAnalysis) -> list[list[str]]:
    if not rank.collectives:
        return [["none"]]
    rows = [["collective", "group", "ranks", "message", "calls", "load", "exposed", "median", "bus bandwidth"]]
    rows += [
        [
            load.collective,
            load.group,
            str(load.group_size or "?"),
            show(load.message_bytes, "bytes") if load.message_bytes else "?",
            f"{load.calls:,}",
            show(load.load_s, "s"),
            show(load.exposed_s, "s"),
            show(load.median_s, "s"),
            f"{load.bus_bytes_per_s / 1e9:.2f} GB/s" if load.bus_bytes_per_s else "?",
        ]
        for load in rank.collectives[:SHOWN]
    ]
    rest = rank.collectives[SHOWN:]
    if rest:
        rows.append(
            [
                f"{len(rest)} more",
                "",
                "",
                "",
                f"{sum(load.calls for load in rest):,}",
                show(sum(load.load_s for load in rest), "s"),
                show(sum(load.exposed_s for load in rest), "s"),
                "",
                "",
            ]
        )
    return rows


def _class_rows(rank: RankAnalysis) -> list[list[str]]:
    from knee.trace.loads import class_loads

    loads = class_loads(list(rank.kernels))
    total = sum(load.load_s for load in loads) or 1.0
    longest: dict[tuple[str, bool], str] = {}
    for kernel in rank.kernels:
        longest.setdefault((kernel.kernel_class, kernel.communication), kernel.name)
    return [
        ["class", "", "calls", "load", "share", "longest"],
        *(
            [
                load.name,
                "communication" if load.communication else "",
                f"{load.calls:,}",
                show(load.load_s, "s"),
                f"{load.load_s / total:.1%}",
                longest[load.kernel_class, load.communication][:NAME_WIDTH],
            ]
            for load in loads
        ),
    ]


def _print_audit(analysis: Analysis) -> None:
    from knee.cli.table import print_heading, seen
    from knee.trace.files import left_out_sentences

    audits = [rank.audit for rank in analysis.ranks]
    lost = sum(a.without_duration + a.clock_anomalies for a in audits)
    said = [
        f"{sum(a.events for a in audits):,} events read, {sum(a.kernels for a in audits):,} kernels, "
        f"{sum(a.copies for a in audits):,} copies and fills; {lost:,} left out or odd; "
        f"{sum(a.without_launch for a in audits):,} kernels without a launch; "
        f"{sum(a.same_stream_overlaps for a in audits):,} overlap on their stream"
    ]
    missing = analysis.across.missing
    if missing:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        said.append(
            f"no trace was given of rank{'s' if len(missing) > 1 else ''} {named} of the groups "
            f"({len(missing):,} missing): waiting "
            f"{'is not known' if len(analysis.ranks) == 1 else 'is known between the others alone'}"
        )
    straggler = analysis.across.straggler
    if straggler is not None:
        said.append(
            f"the others waited most for rank {straggler.rank}: {show(straggler.waited_for_s, 's')} on "
            f"average, last in {straggler.last_arrivals} of {straggler.matched} collectives"
        )
    for rank in analysis.ranks:
        prefix = f"rank {rank.rank}: " if len(analysis.ranks) > 1 else ""
        said += [prefix + sentence for sentence in rank.audit.sentences()]
    said += [*analysis.across.notes, *left_out_sentences(analysis.left_out)]
    print_heading("audit")
    for sentence in said:
        click.echo(f"  - {seen(sentence)}")


def _diff(paths: tuple[str, ...], as_json: bool, options: dict[str, Any]) -> None:
    from knee.trace.diff import diff

    if len(paths) != 2:
        raise InputError(
            f"two are held against each other, and {len(paths)} were given",
            hint="`knee trace diff A B`: a file or a folder each",
        )
    for name in ("html", "perfetto", "sql"):
        if options[name] is not None:
            raise InputError(f"--{name} is of one job", hint=f"`knee trace {paths[0]} --{name} ...`")
    a, b = (_analyse((path,), options) for path in paths)
    found = diff(a, b)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1, allow_nan=False))
    else:
        _print_diff(found, paths)
    _end([a, b])


def _print_diff(found: Diff, paths: tuple[str, ...]) -> None:
    from knee.cli.table import print_heading, print_rows, seen

    click.echo(seen(found.finding))
    head = ["A", "B", "change", ""]
    names = {
        "step_s": "step",
        "compute_s": "compute",
        "exposed_comm_s": "exposed communication",
        "exposed_copies_s": "exposed copies and fills",
        "idle_s": "idle",
        "comm_s": "communication",
        "overlapped_comm_s": "overlapped communication",
    }
    print_heading("a step")
    print_rows(
        [["", *head], *([name, *_change(found.times[key])] for key, name in names.items() if key in found.times)],
        right=(1, 2, 3, 4),
    )
    if found.collectives:
        print_heading("communication")
        print_rows(
            [
                ["collective", "group", "message", *head],
                *(
                    [
                        one.collective,
                        one.group,
                        show(one.message_bytes, "bytes") if one.message_bytes else "?",
                        *_change(one.load_s),
                    ]
                    for one in found.collectives[:SHOWN]
                ),
            ],
            right=(2, 3, 4, 5, 6),
        )
    for title, kernels in (("kernels by class", found.classes), ("kernels that changed most", found.kernels)):
        print_heading(title)
        print_rows(
            [
                ["", *head, ""],
                *(
                    [one.name[:NAME_WIDTH], *_change(one.load_s), one.status if one.status != "changed" else ""]
                    for one in kernels[:SHOWN]
                ),
            ],
            right=(1, 2, 3, 4),
        )
    click.echo(f"A is {paths[0]}, B is {paths[1]}; all of it per step, mean over ranks")
    for note in found.notes:
        click.echo(f"  - {note}")


def _change(one: Change) -> list[str]:
    share = one.relative_frac
    sign = "+" if one.change > 0 else "-" if one.change < 0 else ""
    return [
        show(one.a, "s"),
        show(one.b, "s"),
        sign + show(abs(one.change), "s"),
        "" if share is None else f"{share:+.1%}",
    ]
