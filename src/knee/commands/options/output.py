"""How commands end: the answer on stdout as JSON or as text, and what else to know on stderr."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from knee.base.errors import InputError

if TYPE_CHECKING:
    from knee.commands.budget.result import Budget
    from knee.commands.plan.result import PlanSearch
    from knee.commands.tune.result import Tuned
    from knee.show.result import Result

say = partial(click.echo, err=True)
"""Print a sentence on stderr."""


def print_result(answer: Result, as_json: bool, print_text: Callable[[Any], None], **options: Any) -> None:
    """Print an answer as JSON if ``as_json``, else with ``print_text``; ``options`` are those of ``json.dumps``."""
    if as_json:
        click.echo(json.dumps(answer.to_dict(), **({"indent": 2, "allow_nan": False} | options)))
    else:
        print_text(answer)


def check_targets(**files: str | None) -> None:
    """Refuse, before any work, files for ``--plot`` and ``--html`` that cannot be written."""
    from knee.base.files import check_writable
    from knee.show.figures.vega import check_picture

    for name, file in files.items():
        if file is not None and not file.strip():
            hint = f"for example --{name} answer.html"
            raise InputError(f"--{name} is empty", hint=hint, code="missing-argument", field=name)
        if file is not None and name == "plot":
            check_picture(file, hint="for example --plot answer.svg")
        elif file is not None:
            check_writable(file, name)


def write_page(answer: Budget | PlanSearch | Tuned, html: str | None) -> None:
    """Write the page of an answer where ``--html`` asks for it."""
    if html is not None:
        answer.write_page(html, command=shlex.join(["knee", *sys.argv[1:]]))
        say(f"wrote {html}")
