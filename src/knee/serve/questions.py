"""A JSON body as the keyword arguments of a function of ``import knee``; nothing in it may name a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knee.errors import InputError
from knee.specs.catalog import did_you_mean, entry_names

KINDS = ("model", "cluster", "profile")
LONGEST_TEXT = 200
"""Characters of any text of a question."""
MOST_CURVES = 6
"""Clusters or plans side by side."""
MOST_OVERRIDES = 32


def arguments_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with names that the catalogue has; what is null was not given."""
    given = {name: value for name, value in body.items() if value is not None}
    for kind in KINDS:
        names = given.get(kind)
        for name in names if isinstance(names, list) else [names]:
            if name is not None:
                check_name(kind, name)
    for name, value in given.items():
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise InputError(f"{name} is longer than {LONGEST_TEXT} characters", code="too-large", field=name)
    if "overrides" in given:
        given["overrides"] = checked_overrides(given["overrides"])
    return given


def check_name(kind: str, name: object) -> None:
    """Refuse what is not an entry of the catalogue: a server opens no path that a page names."""
    known = entry_names(kind)  # type: ignore[arg-type]
    if not isinstance(name, str) or name not in known:
        close = did_you_mean(name, known) if isinstance(name, str) else None
        hint = f"did you mean {close}?" if close else "GET /api/catalog lists all names"
        raise InputError(f"{kind} {str(name)[:80]!r} is not in the catalogue", hint=hint, code="unknown-name", field=kind)


def checked_overrides(overrides: object) -> dict[str, str]:
    """Changed values by their key; numbers and texts only."""
    if not isinstance(overrides, dict) or len(overrides) > MOST_OVERRIDES:
        text = f"overrides must be an object of at most {MOST_OVERRIDES} values"
        raise InputError(text, hint='for example {"fabric.nic_bytes_per_s": "200 Gbit/s"}', code="wrong-type", field="overrides")
    for key, value in overrides.items():
        if not isinstance(value, (str, int, float)) or len(str(value)) > LONGEST_TEXT or len(key) > LONGEST_TEXT:
            raise InputError(f"overrides {key[:80]!r} must be a short text or a number", code="wrong-type", field="overrides")
    return {key: str(value) for key, value in overrides.items()}
