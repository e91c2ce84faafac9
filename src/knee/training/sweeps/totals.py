"""What a sweep is estimated to take, and what its runs have taken so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from knee.training.launch.run_status import STATES, Cause, State, Status
from knee.training.launch.sweep_folder import Sweep

NODE_FAULTS: tuple[Cause, ...] = ("lost_node", "bad_node", "hang")
"""Causes for which a node is to blame; with other causes, the node is only where the run was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEstimate:
    """What the runs that can be started are expected to take, by simulation."""

    sweep: str
    runs_to_start: int
    runs_refused: int
    most_gpus: int
    gpu_h: float
    wall_clock_s: float
    """One run after another."""
    energy_j: float
    cost_usd: float | None
    """None where the price of a run is not known."""
    goodput_frac: float | None = None
    """GPU-hours without failures over those with them; None where a run would hardly ever end."""
    failed_gpu_h: float | None = None
    """GPU-hours with failures."""
    failed_cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTotals:
    """What all runs have taken so far."""

    counts: Mapping[State, int]
    gpu_h: float
    energy_j: float | None
    """None where no run measured its energy."""
    energy_runs: int
    """Runs that measured their energy."""
    runs_begun: int
    bad_nodes: Mapping[str, int]
    """Nodes at fault, and the runs that ended because of each; the worst node first."""


def estimate_of(sweep: Sweep) -> SweepEstimate:
    """The sum over the runs that can be started."""
    able = [entry for entry in sweep.entries if not entry.refused]
    costs = [entry.cost_usd for entry in able]
    gpu_h = sum(entry.gpu_h or 0.0 for entry in able)
    cost = sum(cost for cost in costs if cost is not None) if None not in costs else None
    # an entry that was estimated by an earlier version has no time with failures
    factors = [entry.failed_s / entry.seconds if entry.failed_s and entry.seconds else None for entry in able]
    failed_h, failed_usd = (
        None
        if None in factors or None in column
        else sum((a or 0.0) * (f or 0.0) for a, f in zip(column, factors, strict=True))
        for column in ([entry.gpu_h for entry in able], costs)
    )
    return SweepEstimate(
        sweep=sweep.name,
        runs_to_start=len(able),
        runs_refused=len(sweep.entries) - len(able),
        most_gpus=max((entry.gpus for entry in able), default=0),
        gpu_h=gpu_h,
        wall_clock_s=sum(entry.seconds or 0.0 for entry in able),
        energy_j=sum(entry.energy_j or 0.0 for entry in able),
        cost_usd=cost,
        goodput_frac=gpu_h / failed_h if failed_h else None,
        failed_gpu_h=failed_h,
        failed_cost_usd=failed_usd,
    )


def gpu_h_to_start(sweep: Sweep) -> float:
    """The estimate for runs that are still to be started; runs that the folder has finished are not counted."""
    statuses = sweep.statuses()
    left = [
        entry
        for entry in sweep.entries
        if not entry.refused
        and ((status := statuses[entry.id]).missing or (status.cause == "spec" and not status.attempts))
    ]
    return sum(entry.gpu_h or 0.0 for entry in left)


def totals_of(sweep: Sweep, statuses: Mapping[str, Status]) -> SweepTotals:
    """The sum over all attempts, with those that run now."""
    counts = Counter(status.state for status in statuses.values())
    energies = [status.energy_j for status in statuses.values() if status.energy_j is not None]
    spent = sum(status.gpu_h for status in statuses.values())
    for entry in sweep.entries:
        status = statuses[entry.id]
        if status.state == "running" and (elapsed := status.elapsed_s()) is not None:
            spent += entry.gpus * elapsed / 3600
    bad = Counter(status.node for status in statuses.values() if status.node and status.cause in NODE_FAULTS)
    return SweepTotals(
        counts={state: counts[state] for state in STATES},
        gpu_h=spent,
        energy_j=sum(energies) if energies else None,
        energy_runs=len(energies),
        runs_begun=sum(status.attempts > 0 for status in statuses.values()),
        bad_nodes=dict(bad.most_common()),
    )
