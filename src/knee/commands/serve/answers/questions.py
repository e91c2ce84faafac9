"""A JSON body as the keyword arguments of a function of ``import knee``; nothing in it may name a file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import knee
from knee.base.errors import InputError
from knee.specs.catalog import Kind, did_you_mean, entry_names
from knee.specs.knobs import names_of
from knee.specs.plan import KNOBS

KINDS: tuple[Kind, ...] = ("model", "cluster", "profile")
LONGEST_TEXT = 200
"""Characters of any text of a question."""
MOST_CURVES = 6
"""Clusters or plans side by side."""
MOST_OVERRIDES = 32


OF_PAGE = ("view", "compare", "counts", "curves", "number", "kind")
"""What a state has beside the arguments of functions."""
CHOSEN = names_of(KNOBS, "listed")
"""Fields of a plan that a search takes as lists of what it may choose; a state has one of each."""


@cache
def parameters(function: str) -> frozenset[str]:
    """Names that a function of ``import knee`` takes, those of the plan included; without what only Python can give."""
    found = inspect.signature(getattr(knee, function)).parameters
    plan = set(KNOBS) if "plan" in found else set()
    return frozenset((set(found) - {"plan", "progress", "on_better"}) | plan)


@cache
def _of_states() -> frozenset[str]:
    return frozenset().union(*map(parameters, ("simulate", "scale", "plan", "budget")))


def asked_of(body: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The arguments of one function out of a state, which has those of all views; an unknown name is refused."""
    own, every = parameters(function), _of_states()
    for name in body:
        if name not in every and name not in OF_PAGE:
            close = did_you_mean(name, sorted(every))
            hint = f"did you mean {close}?" if close else "GET /api/openapi.json has all names"
            text = f"{name[:80]!r} is not part of a question"
            raise InputError(text, hint=hint, code="unknown-argument", field=name[:80])
    dropped = {name for name in CHOSEN if function == "plan" and not isinstance(body.get(name), list)}
    return arguments_of({name: value for name, value in body.items() if name in own - dropped}, function)


def arguments_of(body: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The arguments, with names that the catalogue has; what is null was not given."""
    given = {name: value for name, value in body.items() if value is not None}
    own = parameters(function)
    for name in given:
        if name not in own:
            close = did_you_mean(name, sorted(own))
            text = f"{name[:80]!r} is not an argument of {function}"
            raise InputError(
                text, hint=f"did you mean {close}?" if close else None, code="unknown-argument", field=name[:80]
            )
    if "model" in own and "model" not in given and function != "budget":
        raise InputError("model is missing", hint='for example "llama2-7b"', code="missing-argument", field="model")
    for kind in KINDS:
        named = given.get(kind, [])
        for one in named if isinstance(named, list) else [named]:
            check_name(kind, one)
    for name, value in given.items():
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise InputError(f"{name} is longer than {LONGEST_TEXT} characters", code="too-large", field=name)
    if "overrides" in given:
        given["overrides"] = checked_overrides(given["overrides"])
    return given


def check_name(kind: Kind, name: object) -> None:
    """Refuse what is not an entry of the catalogue: a server opens no path that a page names."""
    known = entry_names(kind)
    if not isinstance(name, str) or name not in known:
        close = did_you_mean(name, known) if isinstance(name, str) else None
        hint = f"did you mean {close}?" if close else "GET /api/catalog lists all names"
        text = f"{kind} {str(name)[:80]!r} is not in the catalogue"
        raise InputError(text, hint=hint, code="unknown-name", field=kind)


def checked_overrides(overrides: object) -> dict[str, str]:
    """Changed values by their key; numbers and texts only."""
    if not isinstance(overrides, dict) or len(overrides) > MOST_OVERRIDES:
        text = f"overrides must be an object of at most {MOST_OVERRIDES} values"
        hint = 'for example {"fabric.nic_bytes_per_s": "200 Gbit/s"}'
        raise InputError(text, hint=hint, code="wrong-type", field="overrides")
    for key, value in overrides.items():
        if not isinstance(value, (str, int, float)) or len(str(value)) > LONGEST_TEXT or len(key) > LONGEST_TEXT:
            text = f"overrides {key[:80]!r} must be a short text or a number"
            raise InputError(text, code="wrong-type", field="overrides")
    return {key: str(value) for key, value in overrides.items()}
