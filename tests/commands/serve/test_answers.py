"""What the views say is what the functions of ``import knee`` say."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import knee
from knee.commands.main import main
from knee.commands.serve.answers.controls import catalog_view
from knee.commands.serve.answers.dispatch import answer
from knee.commands.serve.answers.questions import asked_of, query_of
from knee.commands.serve.answers.search_view import budget_view
from knee.commands.serve.answers.views import scale_view, step_view, toml_file, why
from knee.engine.simulator import simulate_table
from knee.search.space import Space, whole_table
from lanes import NIGHTLY
from serve.served import STEP

QUESTIONS: list[dict[str, Any]] = [
    {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 64, "local_batch": 2, "tp": 2, "tokens": "1T"},
    {"model": "llama2-7b", "cluster": "dgx-a100", "gpus": 16, "local_batch": 8, "micro_batch": 1, "sharding": "fsdp"},
    {"model": "llama2-70b", "cluster": "dgx-h100", "gpus": 64, "global_batch": 64, "tp": 4, "pp": 4,
     "sharding": "zero1"},
    {
        "model": "llama2-70b", "cluster": "dgx-h100", "gpus": 64, "global_batch": 64, "tp": 8, "pp": 4,
        "schedule": "interleaved", "virtual_stages": 2, "profile": "fused", "sequence_parallel": False,
        "overrides": {"fabric.nic_bytes_per_s": "25 GB/s"},
    },
    {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 64, "local_batch": 2, "ep": 8, "profile": "fused"},
]  # fmt: skip


def asked(name: str, body: Any) -> tuple[int, Any]:
    told: list[Any] = []
    status, data = answer(name, json.dumps(body).encode(), lambda event: told.append(json.loads(event)))
    return status, json.loads(data) | {"told": told}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q['model']} pp {q.get('pp', 1)}")
def test_the_step_view_is_the_simulation(question: dict[str, Any]) -> None:
    view, answer = step_view(question), knee.simulate(**question)
    data = answer.to_dict()
    assert view["measurement"] | {"trust": view["trust"], "assumptions": view["assumptions"]} == data
    assert sum(part["bytes"] for part in view["memory"]["parts"]) == pytest.approx(answer.memory_bytes)
    # the lanes add up to the loads of the step: mean over stages
    stages = 1 + max(lane["stage"] for lane in view["lanes"])
    seconds: dict[str, float] = defaultdict(float)
    for lane in view["lanes"]:
        for start, end, name, exposed, kernels in lane["intervals"]:
            assert 0 <= start <= end <= view["end_s"] * (1 + 1e-9)
            assert isinstance(name, str)
            assert 0 <= exposed <= 1
            assert kernels >= 1
            seconds[lane["kind"]] += end - start
    assert stages == answer.job.plan.pp
    if stages == 1:
        assert seconds["compute"] == pytest.approx(answer.compute_load_s, rel=0.01)
        assert seconds["exposed"] == pytest.approx(answer.exposed_comm_s, rel=0.01, abs=1e-4)
    assert view["end_s"] == pytest.approx(answer.step_s, rel=0.02)


def test_a_drawing_has_few_intervals_and_all_stages() -> None:
    view = step_view(QUESTIONS[2] | {"gpus": 256, "global_batch": 2048, "pp": 16})
    assert sum(len(lane["intervals"]) for lane in view["lanes"]) <= 5_000
    compute = [lane for lane in view["lanes"] if lane["kind"] == "compute"]
    assert [lane["stage"] for lane in compute] == list(range(16))
    many = step_view(QUESTIONS[2] | {"global_batch": 2**17, "micro_batch": 1})
    assert many["lanes"] == []
    assert "not drawn" in many["lanes_note"]


def test_the_scale_view_is_the_scaling() -> None:
    question = QUESTIONS[0] | {"counts": "8..64", "curves": [{}, {"tp": 4}]}
    view = scale_view(question)
    for curve, tp in zip(view["curves"], (2, 4), strict=True):
        own = {name: value for name, value in QUESTIONS[0].items() if name != "gpus"} | {"tp": tp, "gpus": "8..64"}
        data = knee.scale(**own).to_dict()["curves"][0]
        words = [point.pop("words") for point in curve["points"]]
        assert all(f"tp {tp}" in text for text in words)
        assert {name: curve[name] for name in data} == data
    published = view["curves"][0]["published"]
    assert len(published) > 10
    assert all(point["tokens_per_s_per_gpu"] > 0 and point["reference"] for point in published)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q['model']} pp {q.get('pp', 1)}")
def test_commands_and_python_give_the_same_answer(question: dict[str, Any]) -> None:
    view = step_view(question)
    words = shlex.split(view["command"])
    assert words[0] == "knee"
    result = CliRunner().invoke(main, [*words[1:], "--json"])
    said = json.loads(result.stdout)
    names: dict[str, Any] = {}
    exec(view["python"], names)
    for other in (said, names["answer"].to_dict()):
        # sentences name arguments as their reader knows them
        for name in ("step_s", "memory_bytes", "plan", "tokens_per_j", "training"):
            assert other.get(name) == view["measurement"].get(name)


def test_scale_and_budget_can_be_copied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = scale_view({**STEP, "counts": [8, 16, 24], "sharding": "fsdp"})["curves"][0]
    budget = budget_view({"cluster": "dgx-h100", "gpus": 64, "days": 7, "usd": "1M", "tokens_max": "300B"})
    for view in (curve, budget):
        context = main.make_context("knee", shlex.split(view["command"])[1:], resilient_parsing=False)
        assert context is not None
        said: list[dict[str, Any]] = []
        for name in ("scale", "budget"):
            monkeypatch.setattr(knee, name, lambda *_, said=said, **given: said.append(given), raising=False)
        exec(view["python"], {})
        assert said[0]["cluster"] == "dgx-h100"


def test_every_number_opens() -> None:
    lines = why(QUESTIONS[0])["lines"]
    for name in ("tokens_per_s", "step_s", "memory_bytes", "power_w_per_gpu"):
        own = why(QUESTIONS[0] | {"number": name})["lines"]
        assert own[0]["name"] == name
        assert all(line in lines for line in own)
    status, data = asked("why", QUESTIONS[0] | {"number": "<b>"})
    assert (status, data["error"]["field"]) == (422, "number")


@pytest.mark.slow
def test_presets_are_questions_that_can_be_asked() -> None:
    found = catalog_view({})
    assert {preset["study"] for preset in found["presets"]} >= {"fig1", "fig3", "fig9", "generations"}
    for preset in found["presets"]:
        state = preset["state"]
        assert preset["address"] == f"/?{query_of(state)}"
        if state["view"] == "plan" or state.get("best"):  # searches: that their questions are whole is enough
            assert asked_of(state, "plan" if state["view"] == "plan" else "scale")
        else:
            assert scale_view(state) if state["view"] == "scale" else step_view(state)


def test_controls_are_those_of_the_specs() -> None:
    found = {control["name"]: control for control in catalog_view({})["controls"]}
    assert found["sharding"]["choices"] == ("ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp")
    assert found["tp"]["default"] == 1
    assert found["gpus"]["unit"] == "GPUs"
    for control in found.values():
        assert control["label"]
        assert control["kind"] in ("choice", "integer", "number", "logarithmic", "switch", "words")
        assert (control["kind"] in ("choice", "words")) == bool(control["choices"])
        assert (control["kind"] in ("integer", "number", "logarithmic")) == (control["most"] is not None)


@pytest.mark.slow
def test_a_search_tells_of_its_best_and_fills_the_heat_map() -> None:
    question = {"kind": "plan", "model": "llama2-7b", "cluster": "dgx-h100", "gpus": 16, "global_batch": 32,
                "max_cp": 1, "tp": 2, "sharding": "fsdp", "only": "micro_batch <= 2"}  # fmt: skip
    status, data = asked("search", question)
    assert status == 200
    best = [event["row"]["tokens_per_s"] for event in data["told"] if event["event"] == "best"]
    assert best == sorted(best)
    assert data["ranking"][0]["tokens_per_s"] == pytest.approx(best[-1])
    assert [event["event"] for event in data["told"]].count("ranked") == 1
    # every cell is the best of all its plans
    job = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=16, global_batch=32).job
    space = Space(model=job.model, gpus=16, global_batch=32, seq_len=job.seq_len, fixed=knee.Plan(), max_cp=1)
    table = whole_table(space)
    table = table.rows(np.flatnonzero(table.micro_batch <= 2))
    every = simulate_table(job.model, job.cluster, job.profile, table)
    for cell in data["heat"]:
        rows = (table.tp == cell["tp"]) & (table.pp == cell["pp"]) & every.fits
        assert cell["fits"] == bool(rows.any())
        if cell["fits"]:
            assert cell["tokens_per_s"] == pytest.approx(float(every.tokens_per_s[rows].max()))
            assert knee.simulate("llama2-7b", cluster="dgx-h100", gpus=16, global_batch=32, **cell["options"]).fits


SEARCHES = (
    {"model": "llama3-70b", "cluster": "dgx-h100", "gpus": 64, "global_batch": 64},
    {"model": "llama2-7b", "cluster": "dgx-h100-buildings", "gpus": 64, "global_batch": 128, "only": "tp <= 2"},
    {"model": "llama2-7b", "cluster": "dgx-h100-sites", "gpus": 32, "global_batch": 64, "sync_every": 8,
     "sync_dtype": "fp8", "precision": "fp8", "fp8_recipe": "rowwise"},
    {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 16, "global_batch": 32, "dispatcher": "deepep",
     "routing": "dropless", "max_pp": 2},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("question", SEARCHES, ids=lambda q: f"{q['model']} on {q['cluster']}")
def test_a_ranked_plan_reopened_is_the_plan_that_was_ranked(question: dict[str, Any]) -> None:
    # what the page does when a row is picked: all fields of the plan become the row's options
    controls = catalog_view({})["controls"]
    kept = {control["name"] for control in controls if control["kept"]}
    status, data = asked("search", {"kind": "plan", "top": 40, **question})
    assert status == 200
    job = {name: question[name] for name in ("model", "cluster", "gpus", "global_batch")}
    for row in (*data["ranking"][:: 1 if NIGHTLY else 5], *data["front"][:5], data["recommended"]):
        found = knee.simulate(**job, **row["options"])
        assert json.loads(json.dumps(asdict(found.job.plan))) == row["plan"]
        assert found.step_s == row["step_s"]
        assert found.memory_bytes == row["memory_bytes"]
    assert kept >= {name for name in question if name in asdict(knee.Plan())}
    words = [row["words"] for row in data["ranking"]]
    assert len(set(words)) == len(words)


def test_budgets_agree_with_the_law() -> None:
    question = {"cluster": "dgx-h100", "gpus": 8, "days": 7, "params": "350M"}
    view = budget_view(question)
    status, data = asked("search", question | {"kind": "budget"})
    assert status == 200
    assert data["budget"] == knee.budget(**question).to_dict() | {}
    for curve in view["equal_loss"]:
        law = view["law"]["values"]
        for n, d in curve["points"]:
            assert law["E"] + law["A"] / n ** law["alpha"] + law["B"] / d ** law["beta"] == pytest.approx(curve["loss"])
    flop = view["flop_counting"]
    assert 6 * flop["params"] * flop["tokens"] == pytest.approx(flop["flop"])


def test_a_state_has_more_than_a_function_takes() -> None:
    state = STEP | {"view": "plan", "objective": "tokens_per_j", "days": 30, "counts": "8..64", "compare": "tp=2"}
    assert asked("views/step", state)[0] == 200
    status, data = asked("views/step", state | {"objectiv": 1})
    assert (status, data["error"]["code"]) == (422, "unknown-argument")


@pytest.mark.parametrize(
    "body", [{}, {"model": 1}, {"model": None}, STEP | {"local_batch": {}}, STEP | {"overrides": [1]}]
)
@pytest.mark.parametrize("name", ["simulate", "scale", "why", "views/step", "views/scale", "toml"])
def test_what_is_wrong_is_said_with_its_field(name: str, body: dict[str, Any]) -> None:
    status, data = asked(name, body)
    assert status == 422
    assert data["error"]["message"]


def test_a_job_file_can_be_asked_again(tmp_path: Any) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(toml_file(QUESTIONS[3]))
    assert knee.simulate(path).step_s == pytest.approx(knee.simulate(**QUESTIONS[3]).step_s)
