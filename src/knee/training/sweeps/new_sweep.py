"""The folder of a sweep before its runs are started: a new one is filled, an existing one must hold the same sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from knee.base.errors import InputError, argument
from knee.base.files import make_folder, write_text
from knee.training.export.job_file import job_file
from knee.training.launch.environment import link_knee, write_env
from knee.training.launch.run_status import Status, read_status, write_status
from knee.training.launch.site import Site
from knee.training.launch.start_ranks import write_job
from knee.training.launch.sweep_folder import JOB_FILE, SWEEP, Sweep, read_object, read_sweep
from knee.training.run.run_record import JOB
from knee.training.sweeps.preflight import PlannedRun
from knee.training.sweeps.slurm_queue import refuse_while_queued

ASKED = "asked.json"


def prepare_folder(sweep: Sweep, planned: Iterable[PlannedRun], site: Site) -> None:
    """Write all that runs need. The caller holds the folder's lock."""
    before = check_same_sweep(sweep)
    if before is not None and before.launcher == "slurm" != sweep.launcher:
        refuse_while_queued(before)
    link_knee(sweep.folder)
    write_env(sweep.folder, site.env)
    if before is None:
        write_runs(sweep, planned)
        sweep.write()
    else:
        update_runs(sweep)
        replace(sweep, made=before.made).write()


def check_same_sweep(sweep: Sweep) -> Sweep | None:
    """The sweep that the folder has already, None where it has none; refused where it is another one."""
    if not (sweep.folder / SWEEP).exists():
        return None
    before = read_sweep(sweep.folder)
    mine, theirs = [entry.id for entry in sweep.entries], [entry.id for entry in before.entries]
    if mine != theirs:
        differ = len(set(mine) ^ set(theirs))
        raise InputError(
            f"{sweep.folder} already contains another sweep, {before.name} with {len(theirs):,} runs; "
            f"{differ:,} runs are not in both sweeps",
            hint=f"give another {argument('out')}, or the same grid and {argument('steps')} as for that sweep",
            code="another-sweep",
            field="out",
        )
    return before


def write_runs(sweep: Sweep, planned: Iterable[PlannedRun]) -> None:
    """The runs' folders; the sweep's own file is written after them, so that where it is, all are whole."""
    for one in planned:
        run = sweep.run(one.entry)
        if not run.is_dir():
            make_folder(run)
        write_text(run / ASKED, json.dumps(one.requested.question, indent=1, default=str) + "\n")
        if one.requested.job is not None:
            write_text(run / JOB_FILE, job_file(one.requested.job))
        if one.train is not None:
            write_job(run, replace(one.train, out=str(run)))
        if one.entry.refused:
            write_status(run, Status(state="failed", cause="spec", words=one.entry.refused))


def update_runs(sweep: Sweep) -> None:
    """Write what may change from call to call: where the folder is, the timeout, and which runs are refused."""
    for entry in sweep.entries:
        run = sweep.run(entry)
        status = read_status(run)
        if not entry.refused and status.cause == "spec" and not status.attempts:
            write_status(run, Status())
        elif entry.refused and status.missing:
            write_status(run, replace(status, state="failed", cause="spec", words=entry.refused))
        job = read_object(run / JOB)
        now = {"out": str(run), "timeout_s": sweep.options["timeout_s"]}
        if job and any(job.get(key) != value for key, value in now.items()):
            write_text(run / JOB, json.dumps({**job, **now}, indent=1) + "\n")
