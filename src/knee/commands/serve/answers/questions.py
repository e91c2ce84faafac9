"""A JSON body as the keyword arguments of a function of ``import knee``, and as address, command line and Python.

Nothing in a body may name a file.
"""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

import knee
from knee.base.errors import InputError, argument, as_flags
from knee.specs.catalog import Kind, entry_names, nearest
from knee.specs.plan import KNOBS, names_of

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
            hint = nearest(name, sorted(every)) or "GET /api/openapi.json has all names"
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
            text = f"{name[:80]!r} is not an argument of {function}"
            raise InputError(text, hint=nearest(name, sorted(own)), code="unknown-argument", field=name[:80])
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
        hint = (nearest(name, known) if isinstance(name, str) else None) or "GET /api/catalog lists all names"
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


# A state of the page as its address: one flat query string, with the names of the Python API. ``view`` is step, scale,
# plan or budget; ``counts`` are the GPU counts of the Scale view (``8..2048``) beside ``gpus``, the one of the Step
# view; ``set.KEY`` is an override. ``curves`` has several clusters or plans: each is a query string of its own that
# changes the state, and they are joined by ``|``.


def address_of(state: Mapping[str, Any]) -> str:
    """``/?view=step&model=llama2-7b&gpus=256``."""
    return "/?" + query_of(state)


def query_of(state: Mapping[str, Any]) -> str:
    """The query string alone."""
    pairs: list[tuple[str, str]] = []
    for name, value in state.items():
        if name == "curves":
            pairs.append((name, "|".join(query_of(curve) for curve in value)))
        elif name == "overrides":
            pairs += [(f"set.{key}", str(one)) for key, one in value.items()]
        elif value is not None:
            pairs.append((name, _word(value)))
    return urlencode(pairs)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# A question as the command line and as Python have it.


def command_of(function: str, asked: Mapping[str, Any]) -> str:
    """``knee simulate llama2-7b --cluster dgx-h100 ...``."""
    words = ["knee", function]
    with as_flags():
        for name, value in asked.items():
            if name == "model" and function != "budget":
                words += [str(one) for one in value] if isinstance(value, list) else [str(value)]
            else:
                words += _option(name, value)
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    flag = argument(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, Mapping):
        return [word for key, one in value.items() for word in (flag, f"{key}={one}")]
    if isinstance(value, (list, tuple)):
        if name == "gpus" or (name in KNOBS and KNOBS[name].many):
            return [flag, ("," if name == "gpus" else KNOBS[name].joint).join(map(str, value))]
        return [word for one in value for word in (flag, str(one))]
    return [flag, f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)]


def python_of(function: str, asked: Mapping[str, Any]) -> str:
    """``knee.simulate("llama2-7b", cluster="dgx-h100", ...)``."""
    first = [_literal(asked["model"])] if "model" in asked and function != "budget" else []
    rest = [f"{name}={_literal(value)}" for name, value in asked.items() if name != "model" or function == "budget"]
    return f"import knee\n\nanswer = knee.{function}({', '.join(first + rest)})\n"


def _literal(value: Any) -> str:
    """Python's own form, with double quotation marks."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
