"""The folder of a tuning: that of a sweep whose runs are added one by one, and what was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument
from knee.base.files import digest, write_text
from knee.commands.tune.posterior import Outcome, measured_shares
from knee.training.launch.environment import link_knee, write_env
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.sweep_folder import SWEEP, Sweep, read_record, read_sweep
from knee.training.run.run_record import read_object
from knee.training.sweeps.control import requeue, update_runs, write_runs
from knee.training.sweeps.preflight import PlannedRun

TUNE = "tune.json"
SCHEMA = 1
ELSEWHERE = -1
"""Row of a run that is no candidate of this stage."""
TRIES = 3
"""Attempts after which a run whose node is lost each time counts as failed."""
CRASHES = 2
"""Attempts after which a run that crashed, and not for memory, counts as failed: a rank may have been killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """A run of the folder, as far as it has come."""

    id: str
    name: str
    """Of its plan, in words."""
    plan: str
    """Key of the candidate."""
    status: Status
    outcome: Outcome | None
    """None while it waits or runs, or is to be tried again."""


def plan_key(question: Mapping[str, Any]) -> str:
    """The same for the same run; neither its place nor its stage is part of it."""
    return digest(dict(question))[:12]


def open_folder(sweep: Sweep, asked: Mapping[str, Any], site: Site) -> Sweep:
    """Make the folder, or go on with what it has; refused where it is another job's. The caller holds its lock."""
    link_knee(sweep.folder)
    write_env(sweep.folder, site.env)
    if not (sweep.folder / SWEEP).exists():
        write_text(sweep.folder / TUNE, json.dumps({"schema_version": SCHEMA, **asked}, indent=1, default=str) + "\n")
        sweep.write()
        return sweep
    before = read_tuning(sweep.folder)
    now = json.loads(json.dumps(dict(asked), default=str))
    changed = [name for name in now["job"] if before.get("job", {}).get(name) != now["job"][name]]
    if changed:
        raise InputError(
            f"{sweep.folder} is the folder of another job: {' and '.join(changed[:4])} "
            f"{'differs' if len(changed) == 1 else 'differ'}",
            hint=f"give another {argument('out')}, or repeat the command that made the folder",
            code="another-sweep",
            field="out",
        )
    write_text(sweep.folder / TUNE, json.dumps({"schema_version": SCHEMA, **asked}, indent=1, default=str) + "\n")
    found = replace(sweep, entries=read_sweep(sweep.folder).entries)
    update_runs(found)
    found.write()
    return found


def read_tuning(folder: Path) -> dict[str, Any]:
    """What was asked; refused where the folder is not of a tuning."""
    found = read_object(folder / TUNE)
    if not found:
        text = f"{folder} has no {TUNE} that can be read: it is not the folder of `knee tune`"
        raise InputError(text, hint="`knee tune JOB --out DIR` creates one", code="no-file", field="folder")
    return found


def add_runs(sweep: Sweep, planned: Sequence[PlannedRun]) -> Sweep:
    """The sweep with further runs, whose folders are written first."""
    write_runs(sweep, planned)
    found = replace(sweep, entries=(*sweep.entries, *(one.entry for one in planned)))
    found.write()
    return found


def made_runs(sweep: Sweep, rows: Mapping[str, int], statuses: Mapping[str, Status]) -> list[MadeRun]:
    """All runs of the folder with what they tell about candidates; ``rows``: key of a candidate -> its row."""
    found = []
    for entry in sweep.entries:
        status = statuses[entry.id]
        outcome = outcome_of(rows.get(entry.series, ELSEWHERE), status, read_record(sweep.run(entry)))
        found.append(MadeRun(id=entry.id, name=entry.name, plan=entry.series, status=status, outcome=outcome))
    return found


def outcome_of(row: int, status: Status, record: Mapping[str, Any]) -> Outcome | None:
    """What a run tells; None while it has not ended, or ended for a reason that is not its plan's."""
    if status.state == "done":
        rate, memory = record.get("tokens_per_s_per_gpu"), record.get("memory_bytes")
        if not isinstance(rate, (int, float)) or not 0 < rate < inf:
            return Outcome(plan=row, end="failed")
        read = float(memory) if isinstance(memory, (int, float)) and 0 < memory < inf else None
        exposed = measured_shares(record)
        return Outcome(plan=row, end="ok", tokens_per_s_per_gpu=float(rate), memory_bytes=read, exposed_frac=exposed)
    if status.state == "oom":
        return Outcome(plan=row, end="oom")
    if status.cause == "spec":  # it was refused, and would be again
        return Outcome(plan=row, end="failed")
    if not status.over or (status.missing and status.attempts < TRIES):
        return None
    if status.state in ("failed", "timeout") and status.attempts < CRASHES:
        return None
    return Outcome(plan=row, end="failed")


def put_back(sweep: Sweep, made: Sequence[MadeRun]) -> None:
    """Make runs pending again that crashed once: a person or another program may have killed a rank."""
    again = [run.id for run in made if run.outcome is None and run.status.over and not run.status.missing]
    if again:
        requeue(sweep, ("failed", "timeout"), again)
