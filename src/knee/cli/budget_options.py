"""What `knee budget` reads from its options, and what it refuses of them."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from knee.errors import InputError
from knee.figures.vega import ENDINGS


def refuse_beside_check(ctx: click.Context) -> None:
    """It asks about published runs, and nothing of a budget of one's own."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name not in ("check", "as_json")
        and param.name is not None
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise InputError(
            f"--check stands alone, and {', '.join(given)} {'is' if len(given) == 1 else 'are'} given",
            hint="leave out --check, or use only --json beside it",
        )


def check_files(plot: str | None, html: str | None) -> None:
    """Refuse what cannot be written, before the search."""
    if plot and not plot.endswith(ENDINGS):
        raise InputError(
            f"--plot {plot!r}: the ending says what is drawn, and is none of {', '.join(ENDINGS)}",
            hint="for example --plot budget.svg",
        )
    for name, file in (("--plot", plot), ("--html", html)):
        if file is None:
            continue
        if not file.strip():
            raise InputError(f"{name} is empty", hint=f"for example {name} budget.html")
        path = Path(file)
        why = (
            "it is a folder"
            if path.is_dir()
            else f"there is no folder {path.parent}"
            if not path.parent.is_dir()
            else None
            if os.access(path if path.exists() else path.parent, os.W_OK)
            else "permission denied"
        )
        if why is not None:
            raise InputError(f"{file} cannot be written: {why}", hint=f"give {name} another path")
