"""The chosen plan for those who will run it: a job file of knee's, or a command of another trainer."""

from __future__ import annotations

from knee.base.errors import InputError
from knee.specs.defaults import TARGETS
from knee.specs.job import Job
from knee.training.export.job_file import job_file
from knee.training.export.megatron import megatron_command
from knee.training.export.torchtitan import torchtitan_command


def export(job: Job, to: str) -> str:
    """The text of a file: TOML for ``knee simulate`` and ``knee train``, or a shell script.

    A plan that the other program cannot run is refused, with the nearest that it can.
    """
    writers = {"knee": job_file, "torchtitan": torchtitan_command, "megatron": megatron_command}
    if to not in writers:
        hint = f"use one of {', '.join(TARGETS)}"
        raise InputError(f"knee cannot export plans to {to!r}", hint=hint, code="unknown-choice", field="to")
    return writers[to](job)
