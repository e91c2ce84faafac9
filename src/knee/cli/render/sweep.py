"""What ``knee sweep`` prints: the plan before, lines while it runs, and the table of runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from knee.cli.delivery import nobody_reads
from knee.cli.render.table import print_heading, print_rows, seen
from knee.units import show

if TYPE_CHECKING:
    from knee.launch.run_status import Status
    from knee.launch.sweep_folder import SweepRun
    from knee.results.sweep_result import SweepPlan, SweepStatus

SHOWN = 40
"""Rows of runs that are printed; those that went wrong first. JSON has all."""
REASONS = 8
AGAIN_S = 2.0
J_PER_KWH = 3.6e6
CLEAR = "\x1b[H\x1b[2J"
LEAVE_OUT = {"slurm": ", or leave it out (--exclude)", "torchrun": ", or leave it out of --hosts"}


def print_plan(plan: SweepPlan, *, whole: bool) -> None:
    """On stderr unless it is all that was asked for: how many runs, what they take, and what is not started."""
    total, sweep = plan.estimate, plan.sweep
    cost = "no price is known" if total.cost_usd is None else f"{total.cost_usd:,.2f} USD"
    lines = [
        f"{total.runs_to_start:,} runs on up to {total.most_gpus:,} GPUs, estimated: "
        f"{total.gpu_h:,.2f} GPU-hours, {total.energy_j / J_PER_KWH:,.2f} kWh, {cost}; "
        f"{show(total.wall_clock_s, 's')} one after another",
        "  estimated by simulation, plus 60 s to start each run; failures and repeats are not included",
    ]
    reasons = Counter(entry.refused for entry in sweep.entries if entry.refused)
    if reasons:
        lines.append(f"{total.runs_refused:,} runs are not started:")
        lines += [f"  - {count:,} x {seen(why)}" for why, count in reasons.most_common(REASONS)]
        if len(reasons) > REASONS:
            lines.append(f"  - and {len(reasons) - REASONS} more reasons; --dry-run --json has all")
    for line in lines:
        click.echo(line, err=not whole)
    if whole:
        rows = [["run", "GPUs", "nodes", "time", "GPU-hours", "not started because"]]
        rows += [
            [
                entry.id,
                f"{entry.gpus:,}",
                f"{entry.nodes:,}",
                show(entry.seconds, "s") if entry.seconds else "",
                f"{entry.gpu_h:.3f}" if entry.gpu_h is not None else "",
                entry.refused,
            ]
            for entry in sweep.entries[: SHOWN * 5]
        ]
        print_rows(rows, right=(1, 2, 3, 4), dim=(5,))
        if len(sweep.entries) > SHOWN * 5:
            click.echo(f"  and {len(sweep.entries) - SHOWN * 5:,} more; --json has all")


def run_line(number: int, count: int, entry: SweepRun, status: Status) -> str:
    """A line while the sweep runs: of which of how many runs, and how it stands."""
    elapsed = status.elapsed_s()
    took = f" after {show(elapsed, 's')}" if status.over and elapsed is not None and status.cause != "knee" else ""
    return f"[{number}/{count}] {entry.id}: {status.state}{took}" + (f": {seen(status.words)}" if status.words else "")


def print_status(answer: SweepStatus) -> None:
    """The table: what went wrong or goes on first, then the rest."""
    sweep, statuses, found = answer.sweep, answer.statuses, answer.totals
    rank = {"running": 0, "failed": 1, "timeout": 2, "oom": 3, "cancelled": 4, "pending": 5, "done": 6}
    entries = sorted(sweep.entries, key=lambda entry: rank[statuses[entry.id].state])
    shown = sorted(entries[:SHOWN], key=lambda entry: entry.id)
    rows = [["run", "GPUs", "status", "cause", "tries", "time", "GPU-hours", "node", "why"]]
    for entry in shown:
        status = statuses[entry.id]
        elapsed = status.elapsed_s()
        rows.append(
            [
                entry.id,
                f"{entry.gpus:,}",
                status.state,
                status.cause,
                str(status.attempts or ""),
                show(elapsed, "s") if elapsed is not None and status.state != "pending" else "",
                f"{status.gpu_h:.4f}" if status.gpu_h else "",
                status.node,
                status.words[:160],
            ]
        )
    print_rows(rows, right=(1, 4, 5, 6), dim=(8,))
    if len(entries) > SHOWN:
        click.echo(f"  and {len(entries) - SHOWN:,} more; --json has all")
    energy = "not measured" if found.energy_j is None else f"{found.energy_j / J_PER_KWH:,.3f} kWh"
    if 0 < found.energy_runs < found.runs_begun:
        energy += f" of {found.energy_runs:,} of {found.runs_begun:,} runs"
    words = ", ".join(f"{count:,} {state}" for state, count in found.counts.items() if count)
    print_heading(
        f"{len(entries):,} runs: {words}; {found.gpu_h:,.3f} of {answer.estimate.gpu_h:,.2f} estimated "
        f"GPU-hours, energy {energy}"
    )
    for node, count in found.bad_nodes.items():
        click.echo(
            f"{count} run{'s' if count > 1 else ''} ended because of {seen(node)}: look at that node"
            f"{LEAVE_OUT.get(sweep.launcher, '')}"
        )


def watch_status(read: Callable[[], SweepStatus]) -> None:
    """The table again and again, in place on a terminal; elsewhere whenever something has changed."""
    before = None
    while True:
        answer = read()
        state = {name: (status.state, status.words, status.attempts) for name, status in answer.statuses.items()}
        if sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        if sys.stdout.isatty() or state != before:
            print_status(answer)
            sys.stdout.flush()
        before = state
        if answer.over or nobody_reads():
            return
        time.sleep(AGAIN_S)
