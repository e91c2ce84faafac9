"""The API as a script uses it: plain names in, results that equal the command's JSON out, errors with codes."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import knee
from knee.base.errors import DoesNotFit, InputError, MissingExtra
from knee.commands.main import main

ASKED = {"cluster": "dgx-h100", "gpus": 16}


def printed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert isinstance(data, dict)
    return data


def plain(data: object) -> object:
    return json.loads(json.dumps(data))


@pytest.mark.slow
def test_results_equal_what_commands_print() -> None:
    ask = ("--cluster", "dgx-h100", "--gpus", "16")
    step = knee.simulate("llama2-7b", **ASKED, local_batch=2, tp=2, overrides={"node.gpus": 4})
    words = ("--local-batch", "2", "--tp", "2", "--set", "node.gpus=4")
    assert plain(step.to_dict()) == printed("simulate", "llama2-7b", *ask, *words)
    found = knee.plan("llama2-7b", **ASKED, global_batch=32, top=3)
    assert plain(found.to_dict()) == printed("plan", "llama2-7b", *ask, "--global-batch", "32", "--top", "3")
    curve = knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8, 16, 32], local_batch=2, tokens="1T")
    words = ("--gpus", "8,16,32", "--local-batch", "2", "--tokens", "1T")
    assert plain(curve.to_dict()) == printed("scale", "llama2-7b", "--cluster", "dgx-h100", *words)
    budget = knee.budget(cluster="dgx-h100", gpus=8, days=7, params="350M")
    words = ("--gpus", "8", "--days", "7", "--params", "350M")
    assert plain(budget.to_dict()) == printed("budget", "--cluster", "dgx-h100", *words)


@pytest.mark.slow
def test_a_budget_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    asked: dict[str, Any] = {"cluster": "dgx-h100", "gpus": 8, "days": 7, "params": "350M"}
    answer = knee.budget(**asked, frontier=True)
    answer.plot(tmp_path / "budget.json")
    assert "concat" in json.loads((tmp_path / "budget.json").read_text(encoding="utf-8"))
    answer.write_page(tmp_path / "budget.html", command="knee budget --gpus 8")
    assert "knee budget --gpus 8" in (tmp_path / "budget.html").read_text(encoding="utf-8")
    for one, file, kind in (
        (answer, "budget.gif", ("unknown-choice", "plot")),
        (answer, "none/budget.svg", ("not-writable", "plot")),
        (knee.budget(**asked), "budget.svg", ("missing-argument", "frontier")),
    ):
        with pytest.raises(InputError) as refused:
            one.plot(tmp_path / file)
        assert (refused.value.code, refused.value.field) == kind


def test_a_result_says_what_is_asked_of_it() -> None:
    step = knee.simulate("llama2-7b", **ASKED, local_batch=2)
    assert step.tokens_per_s == pytest.approx(16 * step.tokens_per_s_per_gpu)
    assert step.trust.label in ("validated", "near", "extrapolated")
    assert step.why()[0].formula
    found = knee.plan("llama2-7b", **ASKED, global_batch=32, max_pp=1, top=4)
    assert len(found.plans) == 4
    assert found.best.rank is not None
    assert found.best.plan == found.job.plan
    assert found.front[0].rank == 1
    assert 'model = "llama2-7b"' in found.export("knee")
    curve = knee.scale("llama2-7b", cluster="dgx-h100", gpus="8..32", local_batch=2)
    assert curve.knee is not None
    assert curve.knee.gpus in (8, 16, 32)


@pytest.mark.slow
def test_specs_and_jobs_are_taken_as_they_are(tmp_path: Path) -> None:
    named = knee.simulate("llama2-7b", **ASKED, local_batch=2)
    specs = knee.load_model("llama2-7b").spec, knee.load_cluster("dgx-h100").spec
    given = knee.simulate(specs[0], cluster=specs[1], gpus=16, local_batch=2)
    assert given.step_s == knee.simulate(named.job).step_s == named.step_s
    job, notes = knee.make_job("llama2-7b", "dgx-h100", gpus=16, local_batch=2)
    assert job == named.job
    assert any("dp_shard" in note for note in notes)
    file = tmp_path / "job.toml"
    file.write_text('model = "llama2-7b"\ncluster = "dgx-h100"\ngpus = 16\nlocal_batch = 2\n')
    assert knee.simulate(file).step_s == named.step_s
    assert knee.plan(file, max_pp=1, max_cp=1).found.space.global_batch == 32
    assert knee.scale(file, gpus=[8, 16], local_batch=2).only.curve.points[1].gpus == 16
    assert knee.budget(model=str(file), gpus=8, days=7).problem.model == specs[0]


@pytest.mark.parametrize(
    ("ask", "code", "field"),
    [
        (lambda: knee.simulate("llama2-7b", cluster="dgx-h100", gpus=8), "missing-argument", "local_batch"),
        (lambda: knee.simulate("llama2-7b", gpus=8, local_batch=1), "missing-argument", "cluster"),
        (lambda: knee.simulate("llama2-7b", **ASKED, local_batch=1, tpp=2), "unknown-argument", "tpp"),
        (lambda: knee.simulate("llama2-7b", **ASKED, local_batch=1, global_batch=8), "contradiction", "local_batch"),
        (lambda: knee.simulate("llama2-7b", **ASKED, local_batch=1, overrides={"gpus": 2}), "not-an-override", "gpus"),
        (lambda: knee.plan("llama2-7b", **ASKED), "missing-argument", "local_batch"),
        (lambda: knee.plan("llama2-7b", **ASKED, global_batch=8, top=0), "out-of-range", "top"),
        (lambda: knee.scale("llama2-7b", cluster="dgx-h100", gpus=[], local_batch=1), "not-a-count", "gpus"),
        (lambda: knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8], local_batch=1, keep=2), "out-of-range", "keep"),
        (lambda: knee.budget(cluster="dgx-h100", days=1, usd="much"), "not-an-amount", "usd"),
        (lambda: knee.budget(days=1), "missing-argument", "cluster"),
    ],
)
def test_errors_have_codes_and_fields(ask: Any, code: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        ask()
    assert (refused.value.code, refused.value.field) == (code, field)
    assert refused.value.hint
    assert "--" not in f"{refused.value}{refused.value.hint}"


def test_what_fits_nowhere() -> None:
    with pytest.raises(DoesNotFit) as refused:
        knee.plan("llama2-70b", cluster="dgx-h100", gpus=1, global_batch=1)
    assert refused.value.code == "no-plan-fits"
    step = knee.simulate("llama2-70b", cluster="dgx-h100", gpus=8, local_batch=1)
    assert not step.fits
    with pytest.raises(DoesNotFit):
        step.check_fits()
    curve = knee.scale("llama2-70b", cluster="dgx-h100", gpus=[1, 2], local_batch=1)
    assert curve.knee is None
    with pytest.raises(DoesNotFit):
        curve.check_usable()


def test_progress_is_reported_and_may_end_the_work() -> None:
    reported: list[tuple[str, int, int]] = []
    knee.plan("llama2-7b", **ASKED, global_batch=32, max_pp=1, progress=lambda *done: reported.append(done))
    assert {("listing plans", 0, 0), ("simulating plans", 0, 0)} <= set(reported)

    class Enough(Exception):
        pass

    def stop(*_: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        knee.plan("llama2-7b", **ASKED, global_batch=32, progress=stop)


def test_rows_become_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8, 16], local_batch=2)
    assert [row["gpus"] for row in curve.rows()] == [8, 16]
    assert {"plan.tp", "tokens_per_s", "trust.label", "return.per_doubling"} <= set(curve.rows()[1])
    assert repr(curve).startswith("<Scaling: 2 rows")
    assert len(str(curve)) < 100
    html = curve._repr_html_()
    assert html.count("<tr>") == 3
    assert "<svg" in html
    assert len(knee.simulate("llama2-7b", **ASKED, local_batch=2).rows()) == 1
    with pytest.raises(InputError):
        curve.to_frame("numpy")  # type: ignore[arg-type]
    pandas = pytest.importorskip("pandas")
    assert isinstance(curve.to_frame(), pandas.DataFrame)
    assert curve.to_frame("pandas")["gpus"].tolist() == [8, 16]
    monkeypatch.setattr("knee.show.result.find_spec", lambda _: None)
    with pytest.raises(MissingExtra):
        curve.to_frame()


def test_the_package_shows_what_it_has() -> None:
    assert {"simulate", "plan", "scale", "budget", "train"} <= set(dir(knee))
    assert import_module("knee.measure.traces").analyse is not None
    for name in ("simulate", "plan", "scale", "budget"):
        assert name in str(knee.__doc__)


API = [f"knee.commands.{name}.api" for name in ("simulate", "plan", "scale", "budget")]


@pytest.mark.parametrize("module", ["knee", *API, "knee.commands.job_request"])
def test_examples_are_true(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failed


def test_importing_a_question_needs_nothing_of_the_command_line() -> None:
    code = "import sys, knee; knee.simulate; print([m for m in ('click', 'rich', 'altair') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
