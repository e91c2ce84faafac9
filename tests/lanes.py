"""Lanes: `make check` (fast tests), `make test` (all but the rare), `make nightly` (all, and more of each)."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

NIGHTLY = bool(os.environ.get("KNEE_NIGHTLY"))
"""Set by ``make nightly``."""

nightly = pytest.mark.skipif(not NIGHTLY, reason="make nightly runs it")
"""Marks a test that a change rarely breaks, and whose behaviour quicker tests cover in part."""

Value = TypeVar("Value")


def with_nightly(everyday: list[Value], rare: list[Value]) -> list[Value]:
    """Return the cases of a list that this lane runs."""
    return everyday + rare * NIGHTLY


def of_lane(cases: dict[str, Value], rare: set[str]) -> dict[str, Value]:
    """Return the cases of a table that this lane runs: all of them nightly, those that are not ``rare`` otherwise."""
    assert rare <= cases.keys(), rare - cases.keys()
    return {name: case for name, case in cases.items() if NIGHTLY or name not in rare}
