"""Every mechanism of the engine moves some of these answers: a change that is not meant to move one is noticed."""

from __future__ import annotations

import csv
import json

import pytest
from answers_file import JOBS, PATH, numbers_of

ROWS = list(csv.DictReader(PATH.read_text(encoding="utf-8").splitlines()))
PARTS = 8
"""Tests that share the rows, so that a failure names fewer of them."""


def test_the_file_has_every_job() -> None:
    assert len(ROWS) == JOBS


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_those_of_the_file(part: int) -> None:
    """``answers_file.py`` writes the file anew after a change that is meant."""
    for row in ROWS[part::PARTS]:
        wanted = {name: float(value) for name, value in row.items() if name != "job"}
        assert numbers_of(json.loads(row["job"])) == pytest.approx(wanted, rel=1e-9), row["job"]
