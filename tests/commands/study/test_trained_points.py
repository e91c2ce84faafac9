"""Real runs of a study's points: what this machine refuses, what is used again, what is left out. No training here: a
stub takes the place of ``knee.train``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import InputError
from knee.commands.study import trained_points as real
from knee.commands.study.questions import Question, StudyPoint
from knee.commands.study.trained_points import refused, trained
from knee.commands.train.api import TrainedRun
from knee.training.sweeps.checks import LocalDevices

SMALL = Question(model="llama-tiny", cluster="cpu", profile="eager", gpus=2, global_batch=4, seq_len=64, plans=((),))
LARGE = replace(SMALL, model="llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, seq_len=4096)
H100 = "NVIDIA H100 80GB HBM3"


def point(question: Question = SMALL, **given: Any) -> StudyPoint:
    return StudyPoint(study="mine", series="FSDP", question=replace(question, **given))


@pytest.mark.parametrize(("machine", "asked", "why"), [
    (LocalDevices(gpus=(), cores=2), point(), None),
    (LocalDevices(gpus=(), cores=2), point(gpus=8), None),
    (LocalDevices(gpus=(), cores=2), point(gpus=9), "9 processes are too many for 2 cores"),
    (LocalDevices(gpus=(), cores=2), point(LARGE), "h100-sxm is required, but no GPU can be used here"),
    (LocalDevices(gpus=(H100,) * 8, cores=2), point(LARGE), None),
    (LocalDevices(gpus=(H100,) * 4, cores=2), point(LARGE), "8 GPUs are required, but this machine has 4"),
    (LocalDevices(gpus=("NVIDIA A100-SXM4-80GB",) * 8, cores=2), point(LARGE),
     "h100-sxm is required, but this machine has NVIDIA A100-SXM4-80GB"),
    (LocalDevices(gpus=("NVIDIA H200",) * 8, cores=2), point(LARGE),
     "h100-sxm is required, but this machine has NVIDIA H200"),
    (LocalDevices(gpus=("NVIDIA A100-SXM4-80GB",) * 8, cores=2), point(LARGE, cluster="dgx-a100"), None),
    (LocalDevices(gpus=("",) * 8, cores=2), point(LARGE), None),  # a driver that does not tell
    (LocalDevices(gpus=(H100,) * 8, cores=2), point(), None),  # processes on the processor, beside the GPUs
    (LocalDevices(gpus=(H100,) * 8, cores=2), point(LARGE, sets=(("fabric.nic_bytes_per_s", "1 GB/s"),)),
     "fabric.nic_bytes_per_s can be changed only in a simulation"),
    (LocalDevices(gpus=(H100,) * 8, cores=2), point(LARGE, sets=(("profile.stream_scale", "1"),)),
     "stream_scale can be changed only in a simulation"),
    (LocalDevices(gpus=(H100,) * 8, cores=2), point(LARGE, sets=(("model.layers", "2"),)), None),
])  # fmt: skip
def test_what_a_machine_can_train(machine: LocalDevices, asked: StudyPoint, why: str | None) -> None:
    assert refused(machine, asked) == why


def test_this_machine() -> None:
    assert LocalDevices.here().cores >= 1


class Stub:
    """In place of ``knee.train``: leaves the record or raises the error that it is told to, and counts."""

    def __init__(self, record: dict[str, Any] | None, error: str = "") -> None:
        self.record, self.error = record, error
        self.runs: list[dict[str, Any]] = []

    def __call__(self, model: Path, *, out: Path, **settings: Any) -> TrainedRun:
        self.runs.append({"model": model, **settings})
        if self.error:
            raise InputError(self.error, code="not-trained", field="plan")
        if self.record is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "record.json").write_text(json.dumps(self.record), encoding="utf-8")
        return TrainedRun(record=self.record or {}, out=out)


@pytest.fixture
def said() -> list[str]:
    return []


def train(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    said: list[str],
    stub: Stub,
    *points: StudyPoint,
    steps: int | None = None,
) -> list[tuple[StudyPoint, Any]]:
    monkeypatch.setattr(real, "train", stub)
    return list(trained(points or (point(),), folder, steps=steps, warn=said.append))


DONE = {"status": "done", "step_s": 1.0}


def test_a_run_is_started_as_people_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    stub = Stub(DONE)
    assert train(monkeypatch, tmp_path, said, stub, steps=4) == [(point(), DONE)]
    [run] = stub.runs
    assert (run["nproc"], run["device"], run["steps"], run["force"]) == (2, "cpu", 4, True)
    assert run["command"][:2] == ["knee", "train"]
    assert run["command"][3:9] == ["--nproc", "2", "--device", "cpu", "--steps", "4"]
    job = run["model"].read_text(encoding="utf-8")
    assert 'model = "llama-tiny"' in job
    assert "global_batch = 4" in job
    assert said == []


def test_gpus_are_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    stub = Stub(DONE)
    train(monkeypatch, tmp_path, said, stub, point(LARGE))
    assert stub.runs[0]["device"] == "cuda"
    assert "steps" not in stub.runs[0]


def test_what_is_done_stays_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    train(monkeypatch, tmp_path, said, Stub(DONE), steps=4)
    again = Stub({"status": "failed"})
    assert train(monkeypatch, tmp_path, said, again, steps=4) == [(point(), DONE)]
    assert again.runs == []
    # the same job in another study too, and whatever the simulator became
    monkeypatch.setattr("knee.commands.study.record_store.engine", lambda: "another")
    other = replace(point(), study="other", series="s")
    assert train(monkeypatch, tmp_path, said, again, other, steps=4) == [(other, DONE)]
    assert again.runs == []


@pytest.mark.parametrize("change", [
    {"gpus": 1}, {"global_batch": 8}, {"seq_len": 32}, {"plans": ((("tp", 2),),)}, {"sets": (("model.layers", "2"),)},
])  # fmt: skip
def test_another_job_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], change: dict[str, Any]
) -> None:
    stub = Stub(DONE)
    train(monkeypatch, tmp_path, said, stub, point(), point(**change))
    assert len(stub.runs) == 2


def test_another_length_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    stub = Stub(DONE)
    for steps in (4, 8, None, 4):
        train(monkeypatch, tmp_path, said, stub, steps=steps)
    assert len(stub.runs) == 3


@pytest.mark.parametrize(("stub", "words"), [
    (Stub({"status": "failed", "error": "rank 1 was ended"}), "the run failed: rank 1 was ended"),
    (Stub({"status": "interrupted"}), "the run interrupted"),
    (Stub(None, "ring attention is not trained\n  and more"),
     "the run wrote no record: ring attention is not trained"),
    (Stub(None), "the run wrote no record"),
])  # fmt: skip
def test_a_run_that_did_not_end_well_is_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], stub: Stub, words: str
) -> None:
    assert train(monkeypatch, tmp_path, said, stub) == [(point(), None)]
    assert len(said) == 1
    assert said[0].startswith(f"mine: FSDP, llama-tiny on 2 x cpu: {words} (its output is in ")
    better = Stub(DONE)
    assert train(monkeypatch, tmp_path, said, better) == [(point(), DONE)]  # and is tried again
    assert len(better.runs) == 1


def test_one_failure_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    never, good = point(plans=((("tp", 3),),)), point(gpus=1)
    assert train(monkeypatch, tmp_path, said, Stub(DONE), never, good) == [(never, None), (good, DONE)]
    assert said == []  # the simulator says why it cannot be


def test_a_record_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    train(monkeypatch, tmp_path, said, Stub(DONE))
    [path] = tmp_path.rglob("record.json")
    for text in ("", "[]", '{"status":'):
        path.write_text(text, encoding="utf-8")
        stub = Stub(DONE)
        train(monkeypatch, tmp_path, said, stub)
        assert len(stub.runs) == 1
    assert real.RUN in path.parts
