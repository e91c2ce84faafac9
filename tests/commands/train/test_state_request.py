"""What a run goes on from is looked at before a process starts; needs no torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import InputError
from knee.commands.train.request import checked_to_go_on, settings_of_run, trainer_job, with_state
from knee.specs.load import load_model
from knee.specs.plan import Plan
from knee.training.checkpoints.folder import (
    CHECKPOINTS,
    STATE,
    check_model,
    difference,
    name_of,
    read_state,
    write_state,
)
from knee.training.checkpoints.huggingface_names import config_of
from knee.training.parallelism.trainer_job import AUTO, TrainJob

MODEL = load_model("llama-tiny").spec


def a_job(out: Path, **rest: Any) -> TrainJob:
    given = {"global_batch": 8, "seq_len": 64, "steps": 10, "warmup": 1, "lr": 1e-3, "lr_schedule": "cosine"}
    return TrainJob(model=MODEL, plan=Plan(micro_batch=8), gpus=1, device="cpu", **(given | rest), out=str(out))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of 10 steps that has saved after 4."""
    folder = tmp_path / CHECKPOINTS / name_of(4)
    folder.mkdir(parents=True)
    write_state(folder, a_job(tmp_path, checkpoint_every=4, seed=7), 4, {"kind": "synthetic"})
    return tmp_path


def test_settings_that_are_left_out_are_those_of_the_run(run: Path) -> None:
    job = trainer_job("llama-tiny", device="cpu", resume=run)
    of_run = a_job(run, checkpoint_every=4, seed=7)
    for name in ("global_batch", "seq_len", "steps", "lr", "lr_schedule", "checkpoint_every", "seed"):
        assert getattr(job, name) == getattr(of_run, name), name
    said: list[str] = []
    other = trainer_job("llama-tiny", device="cpu", resume=run, lr=2e-3, steps=20, nproc=2, say=said.append)
    assert (other.lr, other.steps, other.global_batch, other.gpus) == (2e-3, 20, 8, 2)
    assert any(line.startswith("lr was 0.001") for line in said)


def test_a_setting_that_is_not_one_is_damage(run: Path) -> None:
    state = run / CHECKPOINTS / name_of(4) / STATE
    plain = json.loads(state.read_text())
    plain["job"]["lr"] = "much"
    state.write_text(json.dumps(plain))
    with pytest.raises(InputError) as caught:
        settings_of_run(run)
    assert caught.value.code == "damaged"


@pytest.mark.parametrize(
    ("rest", "status", "refused"),
    [
        ({"seed": 7}, None, None),
        ({"seed": 8}, None, ("contradiction", "seed")),
        # measured again from the start, because it failed after its last step
        ({"seed": 7, "steps": 4}, "failed", None),
        ({"seed": 7, "steps": 4}, "done", ("already-done", "steps")),
    ],
)
def test_auto_is_refused_before_a_process_starts(
    run: Path, rest: dict[str, Any], status: str | None, refused: tuple[str, str] | None
) -> None:
    if status is not None:
        (run / "record.json").write_text(json.dumps({"status": status}))
    job = a_job(run, resume=AUTO, **rest)
    if refused is None:
        assert checked_to_go_on(job) is job
        return
    with pytest.raises(InputError) as caught:
        checked_to_go_on(job)
    assert (caught.value.code, caught.value.field) == refused


@pytest.mark.parametrize(("option", "value"), [("keep", 3), ("lr_min_frac", 0.1), ("lr_decay_frac", 0.1)])
def test_options_without_effect_are_refused(option: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        trainer_job("llama-tiny", device="cpu", **{option: value})
    assert caught.value.field == option


def test_a_folder_of_weights_may_have_a_name_without_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("hf")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(MODEL, "bf16")))
    (folder / "model.safetensors").touch()
    assert with_state(a_job(tmp_path), None, folder, print).weights == str(tmp_path / "hf")
    with pytest.raises(InputError) as caught:
        with_state(replace(a_job(tmp_path), model=replace(MODEL, layers=2)), None, folder, print)
    assert caught.value.code == "other-model"


def test_models_differ_by_names_and_not_by_tables(run: Path) -> None:
    assert difference("experts", None, {"count": 8}) == "no experts"
    assert difference("experts", {"count": 8}, None) == "experts"
    assert difference("experts", {"count": 8, "top_k": 2}, {"count": 8, "top_k": 1}) == "experts.top_k 2 and not 1"
    checkpoint = run / CHECKPOINTS / name_of(4)
    job = replace(a_job(run), model=load_model("moe-tiny").spec)
    with pytest.raises(InputError) as caught:
        check_model(checkpoint, read_state(checkpoint), job, "resume")
    assert (caught.value.code, caught.value.field) == ("other-model", "resume")
