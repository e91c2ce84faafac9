"""One rule for files that cannot be read: the same code, whichever part of knee opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from knee.base.errors import KneeError
from knee.base.files import check_readable
from knee.commands.compare.side_by_side import read_record
from knee.commands.report.record_files import gather
from knee.measure.kineto import blocks as trace_blocks
from knee.measure.kineto.trace_files import find_files
from knee.measure.machine.readings import read_readings
from knee.measure.traces.kernel_classes import classes_of
from knee.specs.catalog import read_toml
from knee.specs.load import load_model
from knee.training.datasets.documents import blocks
from knee.training.datasets.shard_index import read_index, sha256_of
from knee.training.launch.site import load_site
from knee.training.launch.sweep_folder import read_sweep
from knee.training.run.worker import read_job
from refusals import caught

FILES: dict[str, Callable[[Path], object]] = {
    "toml": read_toml,
    "site": lambda path: load_site(path, {}),
    "setup": lambda path: load_site(None, {"setup": str(path)}),
    "readings": read_readings,
    "job": read_job,
    "text": lambda path: list(blocks(path)),
    "checksum": sha256_of,
    "trace": lambda path: list(trace_blocks.blocks(path)),
    "classes": lambda path: classes_of(file=path),
    "early": lambda path: check_readable(path, "file"),
}
FILES_OR_FOLDERS: dict[str, Callable[[Path], object]] = {
    "model": lambda path: load_model(str(path)),
    "traces": lambda path: find_files([path]),
    "record": read_record,
    "records": lambda path: gather([path]),
}
FOLDERS: dict[str, Callable[[Path], object]] = {"shards": read_index, "sweep": read_sweep}


@pytest.mark.parametrize("name", [*FILES, *FILES_OR_FOLDERS, *FOLDERS])
def test_a_file_that_is_missing(name: str, tmp_path: Path) -> None:
    ask = (FILES | FILES_OR_FOLDERS | FOLDERS)[name]
    (tmp_path / "file").touch()
    for path in (tmp_path / "none.toml", tmp_path / "file" / "none.toml"):
        assert caught(lambda path=path: ask(path)).code == "no-file"


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    error = caught(lambda: FILES[name](folder))
    assert error.code == "not-a-file"
    assert str(folder) in error.message


@pytest.mark.parametrize("name", [*FILES, *FILES_OR_FOLDERS, *FOLDERS])
def test_a_file_that_the_system_does_not_give(name: str, tmp_path: Path) -> None:
    """A link to itself, which no right opens: the tests may run as root."""
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    error: KneeError = caught(lambda: (FILES | FILES_OR_FOLDERS | FOLDERS)[name](tmp_path / "loop.toml"))
    assert error.code == "unreadable"
