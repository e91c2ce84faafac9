"""Budgets as rows of a study: made once, kept, and made again where they are damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from knee.errors import InputError, SpecError
from knee.studies import budget_rows as budgets
from knee.studies import record_store as store
from knee.studies.budget_rows import budget_rows
from knee.studies.study_file import Budgets

SOURCES = Path(__file__).parents[2] / "src"
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


@pytest.mark.slow
def test_the_key_is_of_every_file_that_a_row_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    bytes_, text = Path.read_bytes, Path.read_text
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or bytes_(path))
    monkeypatch.setattr(Path, "read_text", lambda path, **how: read.append(path) or text(path, **how))
    store.engine.cache_clear()
    before = budgets.key_of(SMALL)
    assert budgets.key_of(replace(SMALL, days=1.0)) != before
    script = (
        "import sys; from knee.studies.budget_rows import budget_rows; from knee.studies.study_file import Budgets\n"
        f"list(budget_rows('mine', {SMALL!r}))\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('knee')), sep='\\n')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        text=True,
        capture_output=True,
        check=True,
    ).stdout.split()
    used = {Path(name).relative_to(SOURCES / "knee") for name in loaded}
    assert {Path("budgets/budget_search.py"), Path("budgets/scaling_laws.py")} <= used
    left_out = used - {path.relative_to(SOURCES / "knee") for path in read if path.is_relative_to(SOURCES)}
    # what a question is lies in the key itself; the rest writes files and says what went wrong
    assert {path for path in left_out if path.parts[0] != "studies"} == {
        Path("__init__.py"),
        Path("errors.py"),
        Path("files.py"),
        Path("progress.py"),
        Path("limits.py"),
        Path("signals.py"),
    }
    assert Path("studies/budget_rows.py") not in left_out
    assert {"scaling_laws.toml", "families.toml"} <= {path.name for path in read}


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SpecError, match="shapes and plans"):
        Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, set={"model.layers": "3"})
    wrong = Budgets(series="", cluster="dgx-h100", profile="eager", gpus=(8,), days=1.0, law="chinchilla")
    with pytest.raises(InputError, match="no scaling law named"):
        list(budget_rows("mine", wrong))
