"""A run that was killed and resumed reaches the loss of one that was not; bad folders get one clear sentence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knee.base.errors import ExitCode
from knee.specs.model import Experts, Model
from knee.specs.plan import Plan
from knee.training.checkpoints.folder import check_resumable, checkpoints_in, find_checkpoint, read_state
from knee.training.launch.start_ranks import write_job
from knee.training.parallelism.trainer_job import TrainJob, learning_rate
from refusals import caught, kind
from waiting import LIMIT_S, until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

EXPERTS = Experts(count=4, top_k=2, ffn=16, scores="sigmoid", router_bias=True)
MODEL = Model(name="small", layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, vocab=64, qkv_bias=True, experts=EXPERTS)
STEPS = 6


def a_job(out: Path, **changes: Any) -> TrainJob:
    settings: dict[str, Any] = {"steps": STEPS, "checkpoint_every": 2, "lr_schedule": "wsd", "lr_warmup": 2}
    settings |= {"valid_every": 3, "valid_batches": 2, "deterministic": True, **changes}
    shape: dict[str, Any] = {"gpus": 1, "global_batch": 4, "seq_len": 16, "warmup": 1, "timeout_s": LIMIT_S}
    return TrainJob(model=MODEL, plan=Plan(micro_batch=4), out=str(out), **shape, **settings)


def record_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "record.json").read_text(encoding="utf-8"))
    return record


def run(job: TrainJob) -> tuple[int, dict[str, Any]]:
    import torch

    from knee.training.run.rank_state import Place
    from knee.training.run.worker import work

    os.environ.pop("KNEE_LAUNCHED", None)
    try:
        return work(job, Place()), record_of(Path(job.out))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that came to its end."""
    out = tmp_path_factory.mktemp("whole")
    assert run(a_job(out))[0] == 0
    return out


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_two_checkpoints_are_kept_and_say_what_they_are_of(whole: Path) -> None:
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["step-00000004", "step-00000006"]
    state = read_state(find_checkpoint(whole))
    assert (state["step"], state["job"]["model"]["name"]) == (STEPS, "small")
    record = record_of(whole)
    assert record["checkpoint"]["step"] == STEPS
    assert [entry["step"] for entry in record["valid_losses"]] == [3, 6]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["loss"] for line in steps] == record["losses"]
    assert [line["learning_rate"] for line in steps] == [learning_rate(a_job(whole), step) for step in range(STEPS)]


def test_a_resumed_run_has_the_same_losses_bit_by_bit(whole: Path, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints" / "step-00000006")
    (copy / "checkpoints" / ".partial-step-00000006").mkdir()  # it was killed while it saved this one
    code, record = run(a_job(copy, resume="auto"))
    assert (code, record["first_step"]) == (0, 4)
    assert record["losses"] == record_of(whole)["losses"][4:]
    assert record["grad_norms"] == record_of(whole)["grad_norms"][4:]
    assert record["valid_losses"] == record_of(whole)["valid_losses"][1:]
    assert [path.name for path in (copy / "checkpoints").iterdir()].count(".partial-step-00000006") == 0
    lines = (copy / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines if "learning_rate" in line] == [1, 2, 3, 4, 5, 6]


def test_a_run_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    job = write_job(tmp_path, a_job(tmp_path, steps=5000, checkpoint_every=1, valid_every=0, lr_schedule="constant"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "knee.training.run.worker", str(job)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(checkpoints_in(tmp_path / "checkpoints")) == 2, of=process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    saved = read_state(find_checkpoint(tmp_path))["step"]
    rest = {"valid_every": 0, "lr_schedule": "constant", "steps": saved + 2}
    code, record = run(a_job(tmp_path, resume=str(tmp_path), **rest))
    assert (code, record["first_step"]) == (0, saved)
    _, reference = run(a_job(tmp_path / "other", checkpoint_every=0, **rest))
    assert record["losses"] == reference["losses"][saved:]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("__0_0.distcp", flipped),
        ("__0_0.distcp", lambda path: path.write_bytes(path.read_bytes()[:-100])),
        ("__0_0.distcp", Path.unlink),
        (".metadata", flipped),
        ("state.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_checkpoint_is_named(copy: Path, name: str, harm: Callable[[Path], Any]) -> None:
    checkpoint = copy / "checkpoints" / "step-00000006"
    harm(checkpoint / name)
    code, record = run(a_job(copy, steps=8, resume=str(checkpoint)))
    assert code == ExitCode.FAILED
    assert f"{checkpoint / name} is damaged" in record["error"]


def test_a_full_disk_loses_the_checkpoint_and_the_last_one_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from knee.training.checkpoints import save_and_resume as save

    def full(path: Path) -> None:
        if "step-00000002" not in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(save, "write_checksum", full)
    code, record = run(a_job(tmp_path, valid_every=0))
    said = capsys.readouterr().err
    assert code == ExitCode.FAILED
    assert "checkpoint of step 6" in record["error"]
    assert "No space left on device" in record["error"]
    assert record["steps_done"] == STEPS
    assert "the newest complete one is of step 2, and training goes on" in said
    assert [path.name for path in checkpoints_in(tmp_path / "checkpoints")] == ["step-00000002"]


def test_a_disk_that_is_too_small_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from knee.training.checkpoints import save_and_resume as save

    monkeypatch.setattr(save.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    code, record = run(a_job(tmp_path))
    assert (code, record["steps_done"]) == (ExitCode.FAILED, 0)
    assert "free space there" in record["error"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("already-done", "steps")),
        ({"steps": 8, "global_batch": 8}, ("contradiction", "global_batch")),
        ({"steps": 8, "seed": 1}, ("contradiction", "seed")),
        ({"steps": 8, "model": replace(MODEL, hidden=64)}, ("other-model", "resume")),
    ],
)
def test_what_cannot_go_on_is_refused(whole: Path, changes: dict[str, Any], expected: tuple[str, str]) -> None:
    checkpoint = find_checkpoint(whole)
    job = replace(a_job(whole), **changes)
    assert kind(caught(lambda: check_resumable(checkpoint, read_state(checkpoint), job))) == expected


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    assert kind(caught(lambda: find_checkpoint(tmp_path))) == ("no-checkpoint", "resume")
    assert kind(caught(lambda: find_checkpoint(tmp_path / "no"))) == ("no-file", "resume")


def test_schedules(tmp_path: Path) -> None:
    """Values by hand: ten steps after a warm-up of two, at most 1, at least 0.1."""
    shape = {"steps": 12, "lr": 1.0, "lr_warmup": 2, "lr_min_frac": 0.1, "lr_decay_frac": 0.5}
    jobs = {
        name: a_job(tmp_path, **(shape | {"lr_schedule": name})) for name in ("constant", "linear", "cosine", "wsd")
    }
    for job in jobs.values():
        assert [learning_rate(job, step) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    expected = {"constant": (1.0, 1.0), "linear": (0.55, 0.19), "cosine": (0.55, 0.1220246), "wsd": (1.0, 0.28)}
    for name, values in expected.items():
        assert [learning_rate(jobs[name], step) for step in (7, 11)] == pytest.approx(values), name
