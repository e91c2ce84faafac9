"""What ``knee sweep`` prints: the plan before, lines while it runs, and the table of runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from knee.base.units import show
from knee.show.terminal.delivery import nobody_reads
from knee.show.terminal.table import print_heading, print_rows, seen

if TYPE_CHECKING:
    from knee.commands.sweep.result import SweepPlan, SweepStatus
    from knee.training.launch.run_status import Status
    from knee.training.launch.sweep_folder import SweepRun
    from knee.training.sweeps.totals import SweepEstimate

SHOWN = 40
"""Rows of runs that are printed; those that went wrong first. JSON has all."""
REASONS = 8
AGAIN_S = 2.0
J_PER_KWH = 3.6e6
CLEAR = "\x1b[H\x1b[2J"
LEAVE_OUT = {"slurm": ", or exclude it (--exclude)", "torchrun": ", or remove it from --hosts"}


def print_plan(plan: SweepPlan, *, whole: bool) -> None:
    """On stderr unless it is all that was asked for: how many runs, what they take, and what is not started."""
    total, sweep = plan.estimate, plan.sweep
    cost = "price unknown" if total.cost_usd is None else f"{total.cost_usd:,.2f} USD"
    lines = [
        f"{_runs(total.runs_to_start)} to start on up to {total.most_gpus:,} GPUs; estimate: "
        f"{total.gpu_h:,.2f} GPU-hours, {total.energy_j / J_PER_KWH:,.2f} kWh, {cost}; "
        f"{show(total.wall_clock_s, 's')} if all runs start one after another",
        "  the estimate comes from the simulator, plus 60 s to start each run; " + _failed(total),
    ]
    reasons = Counter(entry.refused for entry in sweep.entries if entry.refused)
    if reasons:
        lines.append(f"{_runs(total.runs_refused)} cannot be started:")
        lines += [f"  - {count:,} x {seen(why)}" for why, count in reasons.most_common(REASONS)]
        if len(reasons) > REASONS:
            lines.append(f"  - and {len(reasons) - REASONS} more reasons; --dry-run --json lists all")
    for line in lines:
        click.echo(line, err=not whole)
    if whole:
        rows = [["run", "GPUs", "nodes", "estimated time", "GPU-hours", "reason not to start"]]
        for entry in sweep.entries[: SHOWN * 5]:
            time = show(entry.seconds, "s") if entry.seconds else ""
            gpu_h = f"{entry.gpu_h:.3f}" if entry.gpu_h is not None else ""
            rows.append([entry.id, f"{entry.gpus:,}", f"{entry.nodes:,}", time, gpu_h, entry.refused])
        print_rows(rows, right=(1, 2, 3, 4), dim=(5,))
        if len(sweep.entries) > SHOWN * 5:
            click.echo(f"  and {len(sweep.entries) - SHOWN * 5:,} more; --json lists all")


def _failed(total: SweepEstimate) -> str:
    if total.goodput_frac is None or total.failed_gpu_h is None:
        return "failures and restarts are not included"
    cost = "" if total.failed_cost_usd is None else f", {total.failed_cost_usd:,.2f} USD"
    return f"with failures and restarts {total.failed_gpu_h:,.2f} GPU-hours{cost} (goodput {total.goodput_frac:.2%})"


def _runs(count: int) -> str:
    return f"{count:,} run{'' if count == 1 else 's'}"


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
    rows = [["run", "GPUs", "status", "cause", "attempts", "time", "GPU-hours", "node", "message"]]
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
        click.echo(f"  and {len(entries) - SHOWN:,} more; --json lists all")
    energy = "not measured" if found.energy_j is None else f"{found.energy_j / J_PER_KWH:,.3f} kWh"
    if 0 < found.energy_runs < found.runs_begun:
        energy += f" (measured in {found.energy_runs:,} of {found.runs_begun:,} runs)"
    words = ", ".join(f"{count:,} {state}" for state, count in found.counts.items() if count)
    print_heading(
        f"{_runs(len(entries))}: {words}; GPU-hours: {found.gpu_h:,.3f} used, {answer.estimate.gpu_h:,.2f} estimated; "
        f"energy: {energy}"
    )
    for node, count in found.bad_nodes.items():
        click.echo(
            f"{count} run{'s' if count > 1 else ''} failed because of {seen(node)}: check that node"
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
