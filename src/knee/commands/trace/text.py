"""What ``knee trace`` says on the screen: times, communication, kernels and the audit of one job, or of two."""

from __future__ import annotations

import json
from typing import Any

import click

from knee.base.units import show
from knee.commands.trace.api import QueryResult, TraceAnalysis, TraceDiff
from knee.measure.kineto.trace_files import left_out_sentences
from knee.measure.traces.analyse import RankAnalysis
from knee.measure.traces.device_time import class_loads
from knee.measure.traces.diff import Change
from knee.show.terminal.table import print_heading, print_rows, print_table, seen
from knee.specs.metrics import METRICS, VIEWS

SHOWN = 12
"""Rows of a table on the terminal; --json has all."""
NAME_WIDTH = 90


def print_query(answer: QueryResult, as_json: bool) -> None:
    """What a query answers, as a table or as JSON."""
    if as_json:
        click.echo(json.dumps(answer.rows(), indent=1, default=str, allow_nan=False))
        return
    rows = answer.values
    numbers = [i for i in range(len(answer.columns)) if rows and all(isinstance(row[i], (int, float)) for row in rows)]
    print_rows([list(answer.columns), *([_cell(value) for value in row] for row in rows)], right=numbers)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def print_analysis(analysis: TraceAnalysis) -> None:
    """One job."""
    ranks, first = analysis.ranks, analysis.ranks[0].trace.columns
    world = f" of {first.world_size:,}" if first.world_size else ""
    which = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    steps = f"{analysis.steps} step{'s' if analysis.steps != 1 else ''}" if analysis.steps else "no profiler steps"
    print_heading(f"{which}{world} on {first.device_name or 'an unnamed device'}, {steps}")
    print_rows(_times_rows(analysis), right=(1, 2))
    if len(ranks) == 1 and len(ranks[0].steps) > 1:
        _print_steps(ranks[0])
    if len(ranks) > 1:
        _print_ranks(analysis)
    of = "" if len(ranks) == 1 else f" of rank {ranks[0].rank}"
    _print_collectives(f"communication{of}", ranks[0])
    _print_classes(f"kernels by class{of}", ranks[0])
    _print_audit(analysis)


def _times_rows(analysis: TraceAnalysis) -> list[list[str]]:
    t = analysis.times
    over = max(t.window_s, 1e-12)

    def row(name: str, share: str | None = None, more: str = "") -> list[str]:
        value, metric = getattr(t, name), METRICS[name]
        return [f"{metric.label}{more}", metric.text(value), f"{value / over:.1%}" if share is None else share]

    rows = [
        ["analysed time", show(t.window_s, "s"), ""],
        *(row(name) for name in ("compute_s", "exposed_comm_s", "exposed_copies_s", "idle_s", "comm_s")),
        row("overlapped_comm_s", f"{t.overlapped_comm_s / t.comm_s:.1%} of communication" if t.comm_s else ""),
        row("compute_load_s", "", " (sum of kernel times)"),
        row("comm_load_s", "", " (sum of kernel times)"),
        ["load of copies, of fills", f"{show(t.copy_load_s, 's')}, {show(t.fill_load_s, 's')}", ""],
    ]
    if t.bubble_s:
        rows.append(row("bubble_s", more=f" (part of {METRICS['exposed_comm_s'].label})"))
    if len(analysis.ranks) > 1:
        rows = [[f"{row[0]}{', mean over ranks' if i == 0 else ''}", *row[1:]] for i, row in enumerate(rows)]
    return rows


def _print_steps(rank: RankAnalysis) -> None:
    names = ("compute_s", "comm_s", "exposed_comm_s", "idle_s")
    rows = [
        [
            str(part.step) if part.step is not None else "before the first step",
            show(part.times.window_s, "s"),
            *(METRICS[name].text(getattr(part.times, name)) for name in names),
        ]
        for part in rank.steps
    ]
    print_table("by step", ["step", "time", *(METRICS[name].label for name in names)], rows, right=range(6))


def _print_ranks(analysis: TraceAnalysis) -> None:
    head = ["rank", "time", "compute", "communication", "exposed", "idle", "transfer", "waits", "others wait for it"]
    rows = []
    for rank, waits in zip(analysis.ranks, analysis.across.ranks, strict=True):
        t, between = rank.times, (waits.transfer_s, waits.waiting_s, waits.waited_for_s)
        own = [show(time_s, "s") for time_s in (t.window_s, t.compute_s, t.comm_s, t.exposed_comm_s, t.idle_s)]
        rows.append([str(rank.rank), *own, *(show(one, "s") if waits.matched else "unknown" for one in between)])
    print_table("by rank", head, rows, right=range(9))


def _print_collectives(title: str, rank: RankAnalysis) -> None:
    if not rank.collectives:
        print_heading(title)
        print_rows([["none"]])
        return
    times = ["total time", "exposed time", "median time"]
    head = ["collective", "group", "ranks", "message size", "calls", *times, "bus bandwidth"]
    rows = [
        [
            load.collective,
            load.group,
            str(load.group_size or "?"),
            show(load.message_bytes, "bytes") if load.message_bytes else "?",
            f"{load.calls:,}",
            *(show(time_s, "s") for time_s in (load.load_s, load.exposed_s, load.median_s)),
            f"{load.bus_bytes_per_s / 1e9:.2f} GB/s" if load.bus_bytes_per_s else "?",
        ]
        for load in rank.collectives[:SHOWN]
    ]
    if rest := rank.collectives[SHOWN:]:
        sums = (sum(load.load_s for load in rest), sum(load.exposed_s for load in rest))
        calls = f"{sum(load.calls for load in rest):,}"
        rows.append([f"{len(rest)} more", "", "", "", calls, *(show(time_s, "s") for time_s in sums)])
    print_table(title, head, rows, right=(2, 3, 4, 5, 6, 7, 8))


def _print_classes(title: str, rank: RankAnalysis) -> None:
    loads = class_loads(list(rank.kernels))
    total = sum(load.load_s for load in loads) or 1.0
    longest: dict[tuple[str, bool], str] = {}
    for kernel in rank.kernels:
        longest.setdefault((kernel.kernel_class, kernel.communication), kernel.name)
    rows = [
        [
            load.name,
            "communication" if load.communication else "",
            f"{load.calls:,}",
            show(load.load_s, "s"),
            f"{load.load_s / total:.1%}",
            longest[load.kernel_class, load.communication][:NAME_WIDTH],
        ]
        for load in loads
    ]
    print_table(title, ["class", "", "calls", "total time", "share", "longest kernel"], rows, right=(2, 3, 4))


def _print_audit(analysis: TraceAnalysis) -> None:
    audits = [rank.audit for rank in analysis.ranks]
    lost = sum(a.without_duration + a.clock_anomalies for a in audits)
    said = [
        f"{sum(a.events for a in audits):,} events read, {sum(a.kernels for a in audits):,} kernels, "
        f"{sum(a.copies for a in audits):,} copies and fills; {lost:,} events skipped or irregular; "
        f"{sum(a.without_launch for a in audits):,} kernels without a launch record; "
        f"{sum(a.same_stream_overlaps for a in audits):,} kernels that overlap on their own stream"
    ]
    missing = analysis.across.missing
    if missing:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        said.append(
            f"traces of {len(missing):,} rank{'s' if len(missing) > 1 else ''} of the process groups are missing "
            f"({named}), so waiting "
            f"{'time is unknown' if len(analysis.ranks) == 1 else 'time is known only among the given ranks'}"
        )
    straggler = analysis.across.straggler
    if straggler is not None:
        said.append(
            f"the other ranks waited longest for rank {straggler.rank}: {show(straggler.waited_for_s, 's')} on "
            "average; this rank "
            f"arrived last in {straggler.last_arrivals} of {straggler.matched} collectives"
        )
    for rank in analysis.ranks:
        prefix = f"rank {rank.rank}: " if len(analysis.ranks) > 1 else ""
        said += [prefix + sentence for sentence in rank.audit.sentences()]
    said += [*analysis.across.notes, *left_out_sentences(analysis.left_out)]
    print_heading("audit (what was read, what was left out, what looks unusual)")
    for sentence in said:
        click.echo(f"  - {seen(sentence)}")


def print_diff(found: TraceDiff, paths: tuple[str, str]) -> None:
    """Two jobs against each other."""
    click.echo(seen(found.finding))
    head = ["A", "B", "change", "change (%)"]
    names = [name for name in VIEWS["change of a trace"] if name in found.times]
    rows = [[METRICS[name].label, *_change(found.times[name])] for name in names]
    print_table("time per step", ["", *head], rows, right=(1, 2, 3, 4))
    if found.collectives:
        rows = [
            [
                one.collective,
                one.group,
                show(one.message_bytes, "bytes") if one.message_bytes else "?",
                *_change(one.load_s),
            ]
            for one in found.collectives[:SHOWN]
        ]
        print_table("communication", ["collective", "group", "message", *head], rows, right=(2, 3, 4, 5, 6))
    for title, kernels in (("kernels by class", found.classes), ("kernels that changed most", found.kernels)):
        rows = [
            [one.name[:NAME_WIDTH], *_change(one.load_s), one.status if one.status != "changed" else ""]
            for one in kernels[:SHOWN]
        ]
        print_table(title, ["", *head, ""], rows, right=(1, 2, 3, 4))
    click.echo(f"A is {paths[0]}, B is {paths[1]}; all values are per step and means over ranks")
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
