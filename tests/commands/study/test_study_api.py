"""``knee.study`` called twice in one program."""

from __future__ import annotations

from pathlib import Path

import knee


def test_files_that_change_between_two_calls_are_read_again(tmp_path: Path) -> None:
    grid, model = tmp_path / "mine.toml", tmp_path / "small.toml"
    grid.write_text(
        f'model = "{model}"\ncluster = "cpu"\nprofile = "eager"\ngpus = [1]\nlocal_batch = 1\nseq_len = 64\n',
        encoding="utf-8",
    )
    rates = []
    for layers in (2, 4):
        model.write_text(f'base = "llama-tiny"\nlayers = {layers}\n', encoding="utf-8")
        [ran] = knee.study(str(grid)).ran
        rates.append(ran.rows[0]["tokens_per_s_per_gpu"])
    assert rates[0] > 1.2 * rates[1]
    grid.write_text(grid.read_text(encoding="utf-8").replace("gpus = [1]", "gpus = [1, 2]"), encoding="utf-8")
    [ran] = knee.study(str(grid)).ran
    assert len(ran.rows) == 2
