"""Budgets as rows of a study: made once, kept, and made again where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from knee.errors import InputError, SpecError
from knee.study import budgets
from knee.study.budgets import budget_rows
from knee.study.files import Budgets

SMALL = Budgets(series="H100", cluster="dgx-h100", profile="eager", gpus=(8,), days=0.5)


def test_rows_are_kept_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = budget_rows("mine", SMALL, tmp_path)
    assert row["study"] == "mine"
    assert row["loss"] <= row["really_loss"]
    assert row["params"] > 5e7
    made: list[int] = []
    monkeypatch.setattr(budgets, "_row", lambda _, gpus: made.append(gpus) or {"kind": "simulated", "gpus": gpus})
    assert list(budget_rows("mine", SMALL, tmp_path)) == [row]
    assert not made
    (path,) = tmp_path.iterdir()
    for harmed in ("", "[]", "{", path.read_text(encoding="utf-8")[:-20], "null"):
        path.write_text(harmed, encoding="utf-8")
        made.clear()
        assert list(budget_rows("mine", SMALL, tmp_path)) == [{"study": "mine", "kind": "simulated", "gpus": 8}]
        assert made == [8]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SpecError, match="shapes and plans"):
        Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, set={"model.layers": "3"})
    wrong = Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, law="chinchilla")
    with pytest.raises(InputError, match="no scaling law named"):
        list(budget_rows("mine", wrong))
