"""Budgets as rows of a study: made once, kept, and made again where they are damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from knee.base.errors import InputError, SpecError
from knee.commands.study import budget_rows as budgets
from knee.commands.study.budget_rows import budget_rows
from knee.commands.study.study_file import Budgets

SOURCES = Path(__file__).parents[3] / "src"
SMALL = Budgets(series="H100", cluster="dgx-h100", profile="eager", gpus=(8,), days=0.5)


def test_rows_are_kept_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = budget_rows("mine", SMALL, tmp_path)
    assert row["study"] == "mine"
    assert row["loss"] <= row["really_loss"]
    assert row["params"] > 5e7
    made: list[int] = []
    monkeypatch.setattr(budgets, "_row", lambda _, gpus, __: made.append(gpus) or {"kind": "simulated", "gpus": gpus})
    assert list(budget_rows("mine", SMALL, tmp_path)) == [row]
    assert not made
    (path,) = tmp_path.iterdir()
    for harmed in ("", "[]", "{", path.read_text(encoding="utf-8")[:-20], "null"):
        path.write_text(harmed, encoding="utf-8")
        made.clear()
        assert list(budget_rows("mine", SMALL, tmp_path)) == [{"study": "mine", "kind": "simulated", "gpus": 8}]
        assert made == [8]


def test_the_key_is_of_the_question_and_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = budgets.key_of(SMALL)
    assert budgets.key_of(replace(SMALL, days=1.0)) != before
    monkeypatch.setattr(budgets, "engine", lambda: "another")
    assert budgets.key_of(SMALL) != before


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SpecError, match="shapes and plans"):
        Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, set={"model.layers": "3"})
    wrong = Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, law="chinchilla")
    with pytest.raises(InputError, match="no scaling law named"):
        list(budget_rows("mine", wrong))
