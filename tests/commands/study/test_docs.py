"""The page about study files names all that they may have."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from knee.commands.study.claims import (
    Agreement,
    Claim,
    Count,
    Number,
    Peak,
    RunComparison,
    SmallestBest,
    Steeper,
    Trend,
)
from knee.commands.study.failure_rows import LongRun, ReplicaExchange, Wall
from knee.commands.study.quantities import Quantity
from knee.commands.study.study_file import Bandwidths, Budgets, Draw, Published, Study, StudyGrid

TEXT = (Path(__file__).parents[3] / "docs/studies.md").read_text(encoding="utf-8")
KINDS = (
    Study,
    StudyGrid,
    Bandwidths,
    Budgets,
    LongRun,
    ReplicaExchange,
    Wall,
    Draw,
    Published,
    Quantity,
    Claim,
    Number,
    Trend,
    RunComparison,
    Peak,
    Count,
    SmallestBest,
    Steeper,
    Agreement,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_is_named(kind: type) -> None:
    known = {f.name for f in fields(kind)} - {"name"}
    assert {name for name in known if name not in TEXT} == set()
