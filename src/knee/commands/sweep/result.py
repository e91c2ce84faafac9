"""A sweep before it is started, and how its runs stand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from knee.base.errors import DoesNotFit, Incomplete, InputError, argument, either
from knee.show.result import Result, flat
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import Sweep
from knee.training.sweeps.control import check_same_sweep
from knee.training.sweeps.preflight import PlannedRun
from knee.training.sweeps.totals import SweepEstimate, SweepTotals, estimate_of, gpu_h_to_start, totals_of


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepPlan(Result):
    """Every run of a sweep, checked and estimated; nothing is written or started."""

    sweep: Sweep
    planned: tuple[PlannedRun, ...]
    site: Site
    duplicates: int
    """Points of the grid that are the same run as another."""
    max_gpu_hours: float | None

    @cached_property
    def estimate(self) -> SweepEstimate:
        """What the runs that can be started are expected to take."""
        return estimate_of(self.sweep)

    def check(self) -> None:
        """Raise an error if the sweep takes more GPU-hours than allowed, or its folder contains another sweep."""
        most, total = self.max_gpu_hours, gpu_h_to_start(self.sweep)
        if most is not None and total > most:
            limit = argument("max_gpu_hours")
            text = f"the runs to start are estimated to take {total:,.2f} GPU-hours, and {limit} is {most:g}"
            hint = f"make the grid or {argument('steps')} smaller, or allow more"
            raise InputError(text, hint=hint, code="too-many-gpu-hours", field="max_gpu_hours")
        check_same_sweep(self.sweep)

    def check_startable(self) -> None:
        """Raise an error if no run of the sweep can be started."""
        if all(entry.refused for entry in self.sweep.entries):
            text = "none of the runs can be started: " + self.sweep.entries[0].refused
            hint = either("rows() has the reason for each run", "--dry-run lists the reason for each run")
            raise DoesNotFit(text, hint=hint, code="no-run-can-start")

    def _data(self) -> dict[str, Any]:
        return asdict(self.estimate) | {"runs": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """The runs, one per row, with the reason if a run cannot be started."""
        return [asdict(entry) for entry in self.sweep.entries]


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepStatus(Result):
    """The state of the runs of a sweep."""

    sweep: Sweep
    statuses: Mapping[str, Status]
    """Id of a run -> its status."""
    requeued: int = 0
    """Runs that ``retry_sweep`` has made pending again."""
    signal: int | None = None
    """The signal that ended the sweep before all its runs had ended."""

    @property
    def over(self) -> bool:
        """Whether all runs have ended."""
        return all(status.over for status in self.statuses.values())

    @cached_property
    def estimate(self) -> SweepEstimate:
        """What the runs were expected to take."""
        return estimate_of(self.sweep)

    @cached_property
    def totals(self) -> SweepTotals:
        """What the runs have taken so far."""
        return totals_of(self.sweep, self.statuses)

    @property
    def failures(self) -> tuple[Status, ...]:
        """States of runs that did not finish although they were started or planned; not of runs skipped at the knee."""
        return tuple(
            status
            for entry in self.sweep.entries
            if (status := self.statuses[entry.id]).over
            and status.state != "done"
            and status.cause != "knee"
            and not entry.refused
        )

    def check_done(self) -> None:
        """Raise ``Incomplete`` if runs failed: their number, the cause of the first, and how to restart them."""
        if not self.failures:
            return
        states, folder = sorted({status.state for status in self.failures}), str(self.sweep.folder)
        raise Incomplete(
            f"{len(self.failures):,} of {len(self.statuses):,} runs failed: {self.failures[0].words}",
            hint=either(
                f"rows() lists all runs; knee.retry_sweep({folder!r}, states={states}) restarts them",
                f"the table lists all runs; `knee sweep retry {shlex.quote(folder)} --status "
                f"{','.join(states)}` starts them "
                "again",
            ),
        )

    def _data(self) -> dict[str, Any]:
        runs = [
            asdict(entry) | {"status": self.statuses[entry.id], "folder": self.sweep.run(entry)}
            for entry in self.sweep.entries
        ]
        return {
            "sweep": self.sweep.name,
            "folder": self.sweep.folder,
            "launcher": self.sweep.launcher,
            "totals": self.totals,
            "estimate": self.estimate,
            "runs": runs,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The runs, one per row."""
        return [flat(run) for run in self.to_dict()["runs"]]
