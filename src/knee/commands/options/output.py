"""How commands end: the answer on stdout as JSON or as text, and what else to know on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from knee.show.result import Result

say = partial(click.echo, err=True)
"""Print a sentence on stderr."""


def print_result(answer: Result, as_json: bool, print_text: Callable[[Any], None], **options: Any) -> None:
    """Print an answer as JSON if ``as_json``, else with ``print_text``; ``options`` are those of ``json.dumps``."""
    if as_json:
        click.echo(json.dumps(answer.to_dict(), **({"indent": 2, "allow_nan": False} | options)))
    else:
        print_text(answer)
