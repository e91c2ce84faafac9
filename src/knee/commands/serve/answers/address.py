"""A state of the page as its address: one flat query string, with the names of the Python API.

``view`` is step, scale, plan or budget; ``counts`` are the GPU counts of the Scale view (``8..2048``) beside ``gpus``,
the one of the Step view; ``set.KEY`` is an override. ``curves`` has several clusters or plans: each is a query string
of its own that changes the state, and they are joined by ``|``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode


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
