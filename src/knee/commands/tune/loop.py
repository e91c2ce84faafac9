"""The loop: choose a plan, run it for some steps, learn, and stop when little is left to gain.

All state is in the folder: what was asked, and the runs. A loop that was interrupted, killed or preempted is entered
again with the same question, reads the runs, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from knee.commands.tune.next_run import Standing, next_plans, standing
from knee.commands.tune.posterior import Beliefs, Outcome
from knee.commands.tune.tuning_folder import MadeRun, add_runs, made_runs, put_back
from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import Sweep
from knee.training.sweeps.preflight import PlannedRun
from knee.training.sweeps.totals import totals_of

CRASHED = 3
"""Plans that crash, and not for memory, while none has run: something else than the plan is wrong."""
Why = Literal["within", "budget", "runs", "all", "none", "interrupted", ""]
"""Why it stopped: little is left to gain, the GPU-hours or runs are spent, every plan was tried, plans only fail, a
signal; empty while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When the loop ends."""

    within_frac: float
    max_gpu_h: float | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Candidates that are compared with each other: the plans, or the settings of one plan."""

    name: str
    keys: tuple[str, ...]
    """Of each candidate, the same in every call."""
    beliefs: Beliefs
    make: Callable[[Sequence[int], int], list[PlannedRun]]
    """Rows and the number of the first run -> runs that can be started."""
    known: tuple[Outcome, ...] = ()
    """What runs of another stage tell about these candidates."""

    @property
    def rows(self) -> Mapping[str, int]:
        """Key -> row; the first one, where several plans are the same smaller run."""
        return {key: row for row, key in reversed(list(enumerate(self.keys)))}

    def told_by(self, run: MadeRun) -> list[Outcome]:
        """What a run tells about every plan that it is the run of."""
        if run.outcome is None:
            return []
        return [replace(run.outcome, plan=row) for row, key in enumerate(self.keys) if key == run.plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a stage has come."""

    sweep: Sweep
    made: tuple[MadeRun, ...]
    outcomes: tuple[Outcome, ...]
    standing: Standing
    gpu_h: float
    why: Why = ""
    signal: int | None = None


Start = Callable[[Sweep, Sequence[str]], int | None]
"""Starts runs by their ids and sees them through; the signal that ended it."""
Told = Callable[[Progressed], None]


def progressed(sweep: Sweep, stage: Stage, limits: Limits, statuses: Mapping[str, Status] | None = None) -> Progressed:
    """How a stage stands by the runs of the folder; nothing is started or written."""
    now = sweep.statuses() if statuses is None else statuses
    made = made_runs(sweep, stage.rows, now)
    outcomes = (*stage.known, *(outcome for run in made for outcome in stage.told_by(run)))
    found = standing(stage.beliefs, outcomes)
    spent = totals_of(sweep, now).gpu_h
    return Progressed(
        sweep=sweep,
        made=tuple(made),
        outcomes=outcomes,
        standing=found,
        gpu_h=spent,
        why=_reason(found, stage, limits, outcomes, len(sweep.entries), spent),
    )


def _reason(found: Standing, stage: Stage, limits: Limits, outcomes: Sequence[Outcome], runs: int, spent: float) -> Why:
    if found.next is None:
        return "all" if found.best is not None else "none"
    if found.best is None and sum(o.end == "failed" for o in outcomes) >= CRASHED:
        return "none"
    if found.enough(limits.within_frac):
        return "within"
    if limits.max_runs is not None and runs >= limits.max_runs:
        return "runs"
    cost = float(stage.beliefs.candidates.gpu_h[found.next])
    return "budget" if limits.max_gpu_h is not None and spent + cost > limits.max_gpu_h else ""


def run_stage(
    sweep: Sweep, stage: Stage, limits: Limits, *, start: Start, at_once: int = 1, told: Told = lambda _: None
) -> Progressed:
    """Run plans until the stage is over. The caller holds the folder's lock."""
    while True:
        now = progressed(sweep, stage, limits)
        told(now)
        put_back(sweep, now.made)
        waiting = [run.id for run in now.made if run.plan in stage.rows and run.outcome is None]
        if not waiting and now.why:
            return now
        if not waiting:
            count = at_once if limits.max_runs is None else min(at_once, limits.max_runs - len(sweep.entries))
            rows = next_plans(stage.beliefs, now.outcomes, (), max(1, count))
            planned = stage.make(rows, len(sweep.entries) + 1)
            sweep = add_runs(sweep, planned)
            waiting = [one.entry.id for one in planned]
        signal = start(sweep, waiting)
        statuses = sweep.statuses()
        if signal is not None or any(statuses[run].cause == "cancelled" for run in waiting):
            return replace(progressed(sweep, stage, limits), why="interrupted", signal=signal)
