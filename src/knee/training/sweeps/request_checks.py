"""What a request for runs must satisfy before anything is planned: its numbers, its folder, its program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knee.base.errors import InputError, argument
from knee.base.files import real_path
from knee.specs.choices import Launcher
from knee.training.launch.site import Site, in_folder
from knee.training.parallelism.trainer_job import LONGEST_TIMEOUT_S


def check_run_numbers(steps: int | None, warmup: int | None, trace_steps: int, timeout_s: float) -> None:
    """Refuse numbers that no run can have."""
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("trace_steps", trace_steps, 0)):
        if value is not None and value < least:
            raise not_in_range(name, str(value), f"it must be at least {least}")
    if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise not_in_range("timeout_s", f"{timeout_s:g}", f"it must be positive and at most {LONGEST_TIMEOUT_S:,.0f}")


def not_in_range(name: str, value: str, rule: str) -> InputError:
    """The error of an argument whose value breaks a rule."""
    return InputError(f"{argument(name)} is {value}; {rule}", code="out-of-range", field=name)


def checked_folder(out: str | Path) -> Path:
    """The folder of a sweep without links; refused where no folder can have that name."""
    if not str(out).strip() or any(ord(letter) < 32 for letter in str(out)):
        why = "contains a line break" if str(out).strip() else "is empty"
        raise InputError(
            f"{argument('out')} {str(out)!r} {why}", hint="name another folder", code="not-a-folder-name", field="out"
        )
    if Path(out).exists() and not Path(out).is_dir():
        text = f"{out} cannot be created: a file with that name exists"
        raise InputError(text, hint="name another folder", code="not-a-folder", field="out")
    return real_path(out)


def check_container(site: Site, launcher: Launcher) -> None:
    """Refuse a container runtime that the launcher does not have."""
    if site.container_runtime == "pyxis" and launcher != "slurm":
        raise InputError(
            f"pyxis needs Slurm, but {argument('launcher')} is {launcher}",
            hint=f"use {argument('container_runtime')} apptainer, or {argument('launcher')} slurm",
            code="contradiction",
            field="container_runtime",
        )


def program_paths(program: Sequence[str]) -> list[str]:
    """The words of a program with absolute paths of files, because runs start in other folders than this one."""
    return [in_folder(word, Path(), bare=at > 0) if Path(word).is_file() else word for at, word in enumerate(program)]
