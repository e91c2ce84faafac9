"""The limits of a search: which plans it considers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from knee.commands.options.plan_options import option
from knee.commands.options.sections import Word
from knee.specs.plan import RECOMPUTES, SHARDINGS
from knee.specs.schedules import SCHEDULES

_limit = partial(option, section="Limits")
_some = partial(_limit, multiple=True)
OPTIONS = (
    _limit("--max-tp", type=int, metavar="N", help="Maximum tensor-parallel degree."),
    _limit("--max-pp", type=int, metavar="N", help="Maximum number of pipeline stages."),
    _limit("--max-cp", type=int, metavar="N", help="Maximum context-parallel degree."),
    _limit("--max-ep", type=int, metavar="N", help="Maximum expert-parallel degree."),
    _some("--sharding", type=Word(SHARDINGS), help="Consider only this sharding. May be repeated."),
    _some("--schedule", type=Word(SCHEDULES), help="Consider only this pipeline schedule. May be repeated."),
    _some("--recompute", type=Word(RECOMPUTES), help="Consider only this recomputation policy. May be repeated."),
    _some("--micro-batch", type=int, metavar="M", help="Consider only this microbatch size. May be repeated."),
    _limit(
        "--only",
        metavar="CONDITION",
        help='Consider only plans that satisfy this condition, for example "pp == 1 and tp <= 8" '
        "or \"sharding != 'zero1'\".",
    ),
)


def space_limits(function: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, under their heading."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function
