"""Studies over other studies, and where the files lie that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from knee.base.errors import InputError
from knee.commands.study.study_file import load_study


def test_a_study_over_one_of_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "fig6"\ntitle = "Ours"\n', encoding="utf-8")
    mine, fig6 = load_study(str(path)), load_study("fig6")
    assert (mine.name, mine.title) == ("mine", "Ours")
    assert mine.grid == fig6.grid


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    below = 'model = "llama2-7b"\ncluster = ["mine.toml", "dgx-h100"]\nprofile = "paper"\ngpus = 8\nlocal_batch = 1\n'
    (tmp_path / "below" / "grid.toml").write_text("\ufeff" + below, encoding="utf-8")
    (tmp_path / "study.toml").write_text('base = "below/grid.toml"\ngpus = [8, 16]\n', encoding="utf-8")
    (grid,) = load_study(str(tmp_path / "study.toml")).grid
    assert grid.cluster == (str(tmp_path / "below" / "mine.toml"), "dgx-h100")
    assert grid.gpus == (8, 16)


def test_a_study_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('base = "study.toml"\n', encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_study(str(path))
    assert (refused.value.code, refused.value.field) == ("contradiction", "base")
