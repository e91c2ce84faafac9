"""The chosen plan for those who will run it: a job file of knee's, or a command of another trainer."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from knee.base.errors import InputError

if TYPE_CHECKING:
    from knee.specs.job import Job

TARGETS = {
    "knee": "job_file.job_file",
    "torchtitan": "torchtitan.torchtitan_command",
    "megatron": "megatron.megatron_command",
}
"""Program -> the function of this package that writes its file."""


def export(job: Job, to: str) -> str:
    """Return the text of a file: TOML for ``knee simulate`` and ``knee train``, or a shell script.

    A plan that the other program cannot run is refused, with the nearest that it can.
    """
    if to not in TARGETS:
        hint = f"use one of {', '.join(TARGETS)}"
        raise InputError(f"knee cannot export plans to {to!r}", hint=hint, code="unknown-choice", field="to")
    module, _, name = TARGETS[to].partition(".")
    return cast(str, getattr(import_module(f"knee.training.export.{module}"), name)(job))
