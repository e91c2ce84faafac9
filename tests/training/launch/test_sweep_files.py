"""Files of a sweep that are damaged, or of another version: they are said, and cost no run that is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knee.training.launch.run_status import Status, read_status, write_status
from refusals import kind

from .sweeps import ask, refused, run_folder, status, sweep


def test_a_run_that_is_done_by_its_record_is_not_run_again(grid: Path, tmp_path: Path, stub: str) -> None:
    out = tmp_path / "out"
    words = (grid, "--out", out, "--program", stub, "--set", "gpus=1")
    sweep(*words)
    run = run_folder(out, "0001")
    for left in ("", '{"state": "do'):
        (run / "status.json").write_text(left, encoding="utf-8")
        (run / "attempts" / "1").mkdir(parents=True, exist_ok=True)
        found = read_status(run)
        assert (found.state, found.attempts) == ("done", 2)
        assert found.words == "its status could not be read; its record says done"
        sweep(*words)
        assert not (run / "attempts" / "2").exists()
    (run / "record.json").unlink()
    assert (read_status(run).state, read_status(run).words) == ("pending", "its status could not be read")
    sweep(*words)
    assert (status(out)["0001"]["state"], status(out)["0001"]["attempts"]) == ("done", 3)


@pytest.mark.parametrize(
    "plain",
    [
        [],
        None,
        3,
        {"state": "done", "gpu_h": "x"},
        {"state": "done", "gpu_h": None},
        {"state": "done", "words": None},
        {"state": "done", "node": ["a"]},
        {"state": "done", "started_s": "abc"},
        {"state": "done", "energy_j": "q"},
        {"state": "done", "pids": [3]},
        {"state": "done", "nodes": [1]},
        {"state": "done", "attempts": "2"},
        {"state": "done", "codes": ["x"]},
        {"state": "finished"},
        {"state": ["done"]},
        {"state": "done", "cause": "x"},
    ],
)
def test_a_status_of_another_form_does_not_end_the_command(plain: object, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(plain), encoding="utf-8")
    assert read_status(tmp_path) == Status(words="its status could not be read")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema_version": 99}, "other-version"),
        ({"options": None}, "other-document"),
        ({"options": {}}, "other-document"),
        ({"entries": None}, "other-document"),
        (
            {"entries": [{"id": "a", "name": "n", "series": "s", "gpus": "x", "nodes": 1, "per_node": 1}]},
            "other-document",
        ),
        (
            {"entries": [{"id": "../a", "name": "n", "series": "s", "gpus": 1, "nodes": 1, "per_node": 1}]},
            "other-document",
        ),
        ({"launcher": 3}, "other-document"),
    ],
)
def test_a_sweep_of_another_form_is_refused(change: dict[str, object], code: str, tmp_path: Path) -> None:
    options = {"pack": 1, "program": [], "timeout_s": 9.0, "until_knee": False, "site": {}}
    whole = {"schema_version": 1, "name": "n", "entries": [], "launcher": "local", "options": options}
    (tmp_path / "sweep.json").write_text(json.dumps(whole), encoding="utf-8")
    assert ask("status", tmp_path).exit_code == 0
    (tmp_path / "sweep.json").write_text(json.dumps(whole | change), encoding="utf-8")
    for command in ("status", "cancel", "retry"):
        assert kind(refused(command, tmp_path)) == (code, "folder")


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = Status(state="failed", cause="lost_node", node="n1", nodes=("n0", "n1"), codes=(1, None), pids=((1, 2),))
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert status.missing
