"""What Python callers give is held against the signatures: refused in one sentence with its field, or made plain."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import knee
from knee.base.errors import InputError

JOB = {"cluster": "dgx-h100", "gpus": 8, "local_batch": 2}
SEARCH = {"cluster": "dgx-h100", "gpus": 8, "global_batch": 16, "max_pp": 1}
CURVE = {"cluster": "dgx-h100", "gpus": [8, 16], "local_batch": 2}


@pytest.mark.parametrize(("function", "given", "changed", "field"), [
    ("simulate", JOB, {"gpus": "8"}, "gpus"),
    ("simulate", JOB, {"gpus": [8]}, "gpus"),
    ("simulate", JOB, {"gpus": True}, "gpus"),
    ("simulate", JOB, {"gpus": 8.5}, "gpus"),
    ("simulate", JOB, {"gpus": float("nan")}, "gpus"),
    ("simulate", JOB, {"gpus": Decimal(8)}, "gpus"),
    ("simulate", JOB, {"gpus": np.array([8, 16])}, "gpus"),
    ("simulate", JOB, {"local_batch": "2"}, "local_batch"),
    ("simulate", JOB, {"seq_len": 8.5}, "seq_len"),
    ("simulate", JOB, {"cluster": ["dgx-h100"]}, "cluster"),
    ("simulate", JOB, {"overrides": "gpu.hbm_bytes=1"}, "overrides"),
    ("simulate", JOB, {"overrides": ["gpu.hbm_bytes=1"]}, "overrides"),
    ("simulate", JOB, {"overrides": {5: 6}}, "overrides"),
    ("simulate", JOB, {"overrides": None}, "overrides"),
    ("simulate", JOB, {"tp": float("inf")}, "tp"),
    ("plan", SEARCH, {"top": 3.5}, "top"),
    ("plan", SEARCH, {"only": 5}, "only"),
    ("plan", SEARCH, {"max_tp": float("nan")}, "max_tp"),
    ("plan", SEARCH, {"progress": 5}, "progress"),
    ("scale", CURVE, {"gpus": ["8"]}, "gpus"),
    ("scale", CURVE, {"threshold": "1.5"}, "threshold"),
    ("scale", CURVE, {"grid": 5}, "grid"),
])  # fmt: skip
def test_another_type_is_refused(function: str, given: dict[str, Any], changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        getattr(knee, function)("llama2-7b", **given | changed)
    assert (refused.value.code, refused.value.field) == ("wrong-type", field)
    assert refused.value.hint


@pytest.mark.parametrize(("changed", "field"), [
    ({"sharding": "fdsp"}, "sharding"),
    ({"sharding": ["fsdp", "nope"]}, "sharding"),
    ({"schedule": ["x"]}, "schedule"),
    ({"precision": "bf17"}, "precision"),
    ({"objective": "speed"}, "objective"),
])  # fmt: skip
def test_another_choice_is_refused(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        knee.plan("llama2-7b", **SEARCH | changed)
    assert (refused.value.code, refused.value.field) == ("unknown-choice", field)


@pytest.mark.parametrize(("function", "given"), [
    ("read_traces", None), ("read_traces", 5), ("read_traces", b"t.json"), ("validate", 5), ("calibrate", None),
    ("catalog_entry", None), ("sweep_status", 5), ("sweep_status", "a\0b"), ("study", None), ("run_sweep", 5),
    ("read_records", 5), ("validate", "a\0b"), ("probe_power", None), ("compare", 5),
])  # fmt: skip
def test_no_path_is_refused(function: str, given: object) -> None:
    with pytest.raises(InputError) as refused:
        getattr(knee, function)(given)
    assert refused.value.code == "wrong-type"


@pytest.mark.parametrize(("launcher", "device"), [("slrm", "cpu"), ("local", "tpu")])
def test_launchers_and_devices_are_those_there_are(tmp_path: Path, launcher: Any, device: Any) -> None:
    with pytest.raises(InputError) as refused:
        knee.prepare_sweep("fig9", out=tmp_path / "sweep", launcher=launcher, device=device)
    assert refused.value.code == "unknown-choice"


def test_no_model_and_no_tokens_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        knee.scale([], **CURVE)
    assert refused.value.field == "model"
    for tokens in (-1, 0):
        with pytest.raises(InputError) as refused:
            knee.scale("llama2-7b", **CURVE, tokens=tokens)
        assert refused.value.field == "tokens"


def test_numbers_of_numpy_are_numbers() -> None:
    made = knee.simulate("llama2-7b", **JOB | {"gpus": np.int64(8), "local_batch": np.float32(2)}, tp=np.int64(2))
    assert made.to_dict() == knee.simulate("llama2-7b", **JOB, tp=2).to_dict()
    json.dumps(made.to_dict())
    whole = knee.scale("llama2-7b", **CURVE).to_dict()
    for counts in (np.array([8, 16]), iter((8, 16)), (8.0, 16)):
        assert knee.scale("llama2-7b", **CURVE | {"gpus": counts}).to_dict() == whole


def test_one_where_several_may_be() -> None:
    one = knee.plan("llama2-7b", **SEARCH, sharding="fsdp", micro_batch=1).to_dict()
    assert one == knee.plan("llama2-7b", **SEARCH, sharding=["fsdp"], micro_batch=[1]).to_dict()
    assert knee.scale("llama2-7b", **CURVE | {"gpus": 8}).rows()[0]["gpus"] == 8


def test_errors_cross_processes() -> None:
    for changed in ({"gpus": -1}, {"overrides": {"nope": 1}}, {"gpus": "8"}):
        with pytest.raises(InputError) as refused:
            knee.simulate("llama2-7b", **JOB | changed)  # type: ignore[arg-type]
        for again in (pickle.loads(pickle.dumps(refused.value)), copy.copy(refused.value)):
            assert (type(again), str(again), vars(again)) == (
                type(refused.value),
                str(refused.value),
                vars(refused.value),
            )


@pytest.mark.slow
def test_a_curve_becomes_a_chart() -> None:
    pytest.importorskip("altair")
    assert knee.scale("llama2-7b", **CURVE).plot().to_dict()["hconcat"]


@pytest.mark.parametrize("path", [5, [], b"x.svg", "a\0b.svg", None])
def test_a_result_is_written_to_a_path_only(path: Any) -> None:
    with pytest.raises(InputError) as refused:
        knee.simulate("llama2-7b", **JOB).write_trace(path)
    assert (refused.value.code, refused.value.field) == ("wrong-type", "path")
