"""Changes of every grid of a study: another model, other counts of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knee.base.errors import InputError, argument
from knee.specs.catalog import did_you_mean

CHANGES = ("model", "cluster", "profile", "gpus", "local_batch", "global_batch", "seq_len")
NAMES = ("model", "cluster", "profile")
"""Of them, those that are names."""

GridChanges = Mapping[str, object] | Sequence[tuple[str, str]]
"""A key of the grid to its values: ``{"gpus": [8, 16]}``, or pairs with values by commas, as behind ``--set``."""


def changes_of(given: GridChanges) -> dict[str, tuple[Any, ...]]:
    """What is changed of every grid: a key to its values."""
    changes: dict[str, tuple[Any, ...]] = {}
    for key, value in given.items() if isinstance(given, Mapping) else given:
        if key not in CHANGES:
            close = did_you_mean(key, CHANGES)
            raise InputError(
                f"{argument('overrides')} {key}: the keys of a grid are {', '.join(CHANGES)}",
                hint=f"did you mean {close}?" if close else "change other values in a study file",
                code="not-an-override",
                field=key,
            )
        values = _values(value)
        changes[key] = tuple(values if key in NAMES else (_number(key, text) for text in values))
    if {"local_batch", "global_batch"} <= changes.keys():
        option = argument("overrides")
        raise InputError(
            f"{option} local_batch and {option} global_batch are both given",
            hint="give one of them",
            code="contradiction",
            field="local_batch",
        )
    return changes


def _values(value: object) -> list[str]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [str(one) for one in value] if isinstance(value, Iterable) else [str(value)]


def _number(key: str, text: str) -> float | int:
    option = f"{argument('overrides')} {key}={text}"
    try:
        value = float(text) if key == "local_batch" else int(text)
    except ValueError:
        raise InputError(f"{option}: it must be a number", code="not-a-number", field=key) from None
    if not 0 < value < float("inf"):
        raise InputError(f"{option}: it must be a finite number above 0", code="out-of-range", field=key)
    return value
