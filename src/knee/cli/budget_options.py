"""What `knee budget` reads from its options, and what it refuses of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from knee.errors import DoesNotFit, InputError
from knee.figures.scale import ENDINGS
from knee.search.training_bill import parse_tokens
from knee.specs.catalog import Source
from knee.specs.constants import constant_source


def count_of(name: str, text: str | None) -> float | None:
    """Tokens or parameters: ``15T``, ``300B``, ``1.4e12``."""
    if text is None:
        return None
    try:
        return parse_tokens(text)
    except InputError:
        raise InputError(
            f"{name} {text!r} is no number from 1 to 1e18", hint="for example 8B, 350M, 1.5T or 1.4e12"
        ) from None


def amount_of(name: str, text: str | None) -> float | None:
    """Dollars or MWh: a number, or one with k, M, B or T behind it; whether it can be a limit is asked later."""
    if text is None:
        return None
    with suppress(ValueError):
        return float(text)
    try:
        return parse_tokens(text)
    except InputError:
        raise InputError(
            f"{name} {text!r} is no number",
            hint="for example 500k, 2M, 2e6 or 1,000,000; k, M, B and T are thousands to trillions",
        ) from None


def batch_max_of(text: str | None, seq_len: int) -> float | None:
    """Tokens a step, at least a sequence of them."""
    most = count_of("--batch-max", text)
    if most is not None and most < seq_len:
        raise DoesNotFit(
            f"--batch-max is {text}, and a sequence has {seq_len:,} tokens: there is no run",
            hint="raise --batch-max, or give a shorter --seq-len",
        )
    return most


def pue_source(given: float | None) -> Source:
    """Where the site's PUE comes from."""
    return Source(value=given, kind="user", text="--pue") if given is not None else constant_source("site", "pue")


def refuse_beside_check(ctx: click.Context) -> None:
    """It asks about published runs, and nothing of a budget of one's own."""
    given = [param.opts[0] for param in ctx.command.params
             if param.name not in ("check", "as_json") and param.name is not None
             and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE]  # fmt: skip
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
