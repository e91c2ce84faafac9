"""Inside a Slurm job: ``python -m knee.training.launch.slurm_job RUN -- srun ... torchrun ...`` supervises one run.

It finds out where the ranks meet, and asks Slurm about nodes and jobs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from knee.base.errors import InputError, KneeError
from knee.base.processes import free_port, output_of
from knee.base.signals import catch_signals
from knee.training.launch.run_status import cancelled, read_status, write_status
from knee.training.launch.supervisor import SupervisedRun, supervise
from knee.training.launch.sweep_folder import is_cancel_requested, read_sweep
from knee.training.launch.torchrun import HEAD, PORT

ASK_S = 30.0
DOWN = ("down", "drain", "fail", "unknown", "unk", "no_respond", "reboot", "power")


def supervised_run(run: Path, command: Sequence[str]) -> SupervisedRun | None:
    """What is to be supervised; None where the run has ended, was cancelled, or is another job's."""
    sweep = read_sweep(run.parents[1])
    entry = next((entry for entry in sweep.entries if entry.id == run.name), None)
    if entry is None:
        raise InputError(f"the sweep in {run.parents[1]} has no run {run.name}", code="unknown-run", field="run")
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")  # as squeue shows it
    status = read_status(run)
    cancel = is_cancel_requested(run)
    if cancel and not status.over:
        write_status(run, cancelled(status))
        return None
    if cancel or (status.over and not status.missing):
        return None
    elsewhere = status.state == "running" and status.job not in ("", job)
    if elsewhere and slurm_output("squeue", "--noheader", f"--jobs={status.job}", "--format=%i").strip():
        return None
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    nodes = tuple(slurm_output("scontrol", "show", "hostnames", listed).split()) if listed else ()
    found = SupervisedRun(
        run=run,
        entry=entry,
        commands=[command],
        timeout_s=float(sweep.options["timeout_s"]),
        job=job,
        nodes=nodes[: entry.nodes],
        environment={HEAD: address_of(nodes[0]) if nodes else "127.0.0.1", PORT: str(free_port())},
    )
    found.signal_ranks = lambda number: slurm_output(
        "scancel", f"--signal={number.name[3:]}", os.environ.get("SLURM_JOB_ID", "")
    )
    found.unreachable = lambda: unreachable_nodes(found.nodes)
    return found


def address_of(node: str) -> str:
    """Where Slurm reaches a node: its name, unless the site's configuration says otherwise."""
    words = slurm_output("scontrol", "--oneliner", "show", "node", node).split()
    return next((word.partition("=")[2] for word in words if word.startswith("NodeAddr=")), node)


def unreachable_nodes(nodes: Sequence[str]) -> list[str]:
    """Return the nodes that Slurm considers lost, or that do not respond to it now."""
    text = (
        slurm_output("sinfo", "--noheader", "--Node", "--format=%N %T", f"--nodes={','.join(nodes)}") if nodes else ""
    )
    pairs = (line.split() for line in text.splitlines())
    return sorted(
        {pair[0] for pair in pairs if len(pair) == 2 and (pair[1].endswith("*") or pair[1].lower().startswith(DOWN))}
    )


def slurm_output(*words: str) -> str:
    """Return what one of Slurm's commands prints; empty where it fails."""
    return query_slurm(*words) or ""


def query_slurm(*words: str) -> str | None:
    """Return what one of Slurm's commands prints; None where it fails."""
    return output_of(words, timeout_s=ASK_S)


def main(arguments: list[str] | None = None) -> int:
    """Supervise a run of a Slurm job; returns 0 where the run is done."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) < 3 or arguments[1] != "--":
        print("usage: python -m knee.training.launch.slurm_job RUN -- COMMAND...", file=sys.stderr)
        return 2
    try:
        with catch_signals() as stop:
            what = supervised_run(Path(arguments[0]), arguments[2:])
            if what is None:
                return 0
            what.stop = stop
            return 0 if supervise(what).state == "done" else 1
    except KneeError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
