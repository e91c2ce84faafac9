"""Questions about what was measured, as a script asks them: equal to the command's JSON, errors with codes."""

from __future__ import annotations

import csv
import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import knee
from knee.base.errors import Incomplete, InputError
from knee.commands.main import main
from knee.measure.kineto.kineto_writer import write_kineto
from knee.trust.validation.published_runs import read_runs

HEADER = "source,layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tokens_per_s_per_gpu,extra\n"
RUN = "A,32,4096,32,h100-80gb,{gpus},4096,{gpus},{rate},1\n"
LINKS = "gpu,n_gpus,collective,bytes,busbw_GBps\nh100,8,all_reduce,1073741824,400\nh100,8,all_reduce,33554432,300\n"


def printed(*words: str | Path) -> Any:
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def plain(data: object) -> object:
    return json.loads(json.dumps(data))


@pytest.fixture
def step() -> knee.Simulation:
    return knee.simulate("llama2-7b", cluster="dgx-h100", gpus=8, local_batch=2)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    rows = "".join(RUN.format(gpus=gpus, rate=rate) for gpus, rate in ((8, 9000), (16, 8800), (32, 8500)))
    path.write_text(HEADER + rows)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    job, _ = knee.make_job("llama-tiny", "dgx-h100", gpus=8, local_batch=1)
    (path,) = write_kineto(knee.events_of(job), str(tmp_path / "trace.json"), device="H100")
    return Path(path)


def test_records_of_every_form_are_compared(step: knee.Simulation, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(step.to_dict()))
    other = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=16, local_batch=2)
    (tmp_path / "b.json").write_text(json.dumps(other.to_dict()))
    both = knee.compare(file, tmp_path / "b.json")
    assert plain(both.to_dict()) == printed("compare", file, tmp_path / "b.json")
    as_results = knee.compare(step, other.to_dict())
    assert as_results.names == ("record 1", "record 2")
    assert as_results.values == both.values
    assert as_results.notes == both.notes
    assert len(both.rows()) == 2 * len(both.values)
    assert "<table>" in both._repr_html_()


def test_traces_are_read(trace: Path, step: knee.Simulation, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    found = knee.read_traces(trace, cache=False, progress=lambda *words: told.append(words))
    assert plain(found.to_dict()) == printed("trace", trace)
    assert told[-1][1:] == (1, 1)
    assert [row["rank"] for row in found.rows()] == [0]
    assert len(repr(found)) < 300
    found.check_whole()
    again = found.diff(knee.read_traces([trace]))
    assert plain(again.to_dict()) == printed("trace", "diff", trace, trace)
    assert {row["change"] for row in again.rows()} == {0.0}
    assert knee.compare(found, step).records[0]["kind"] == "simulated"
    assert found.write_perfetto(tmp_path / "small.json").kernels > 0
    with pytest.raises(InputError) as refused:
        found.write_perfetto(trace)
    assert refused.value.code == "contradiction"


def test_sql_over_traces(trace: Path) -> None:
    pytest.importorskip("duckdb")
    query = "select count(*) as kernels from kernels"
    found = knee.read_traces(trace).sql(query)
    assert found.columns == ("kernels",)
    assert found.rows() == printed("trace", trace, "--sql", query)


def test_a_trace_that_is_cut_off(trace: Path) -> None:
    trace.write_text(trace.read_text()[:-2000])
    found = knee.read_traces(trace, cache=False)
    assert not found.is_whole
    with pytest.raises(Incomplete) as cut:
        found.check_whole()
    assert cut.value.code == "cut-off"


def test_runs_are_validated(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    found = knee.validate(runs, progress=lambda *words: told.append(words))
    assert plain(found.to_dict()) == printed("validate", runs)
    assert isinstance(found, knee.RunsValidation)
    assert found.ignored_columns == ("extra",)
    assert len(repr(found)) < 500
    assert [row["line"] for row in found.rows()] == [2, 3, 4]
    assert ("predicting", 3, 3) in told
    found.write_rows(tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    links = tmp_path / "links.csv"
    links.write_text(LINKS)
    bandwidths = knee.validate(links)
    assert isinstance(bandwidths, knee.BandwidthsValidation)
    assert plain(bandwidths.to_dict()) == printed("validate", links)
    for name in ("carried_runs", "carried_moe_runs"):
        monkeypatch.setattr(f"knee.commands.validate.api.{name}", lambda: read_runs(runs))
    unseen = knee.validate(unseen=True)
    assert unseen.to_dict()["mixtures_of_experts"] == found.to_dict()
    assert [path.name for path in unseen.write_rows(tmp_path / "unseen.csv")] == ["unseen.csv", "unseen.moe.csv"]
    profile = knee.load_profile("paper").spec
    assert knee.validate(runs, profile=profile).to_dict() == knee.validate(runs, profile="paper").to_dict()


def test_runs_of_which_none_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + RUN.format(gpus=8, rate=9000).replace("h100-80gb", "chip"))
    found = knee.validate(path)
    assert not found.used
    with pytest.raises(InputError) as refused:
        found.check_used()
    assert refused.value.code == "nothing-usable"


def test_runs_are_calibrated_on(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    out, told = tmp_path / "mine.toml", list[str]()
    found = knee.calibrate([runs], only="gemm_scale", out=out, progress=lambda what, *_: told.append(what))
    data = plain(found.to_dict())
    assert data == printed("calibrate", runs, "--only", "gemm_scale", "-o", out)
    assert told[-1] == f"wrote {out}"
    assert {row["name"] for row in found.rows() if row["determined"]} == set(found.values)
    assert knee.load_profile(str(out)).spec.gemm_scale == pytest.approx(found.values["gemm_scale"], abs=1e-4)
    (tmp_path / "none.csv").write_text(HEADER + RUN.format(gpus=8, rate=9000).replace("h100-80gb", "chip"))
    with pytest.raises(InputError) as refused:
        knee.calibrate(tmp_path / "none.csv")
    assert (refused.value.code, refused.value.field) == ("nothing-usable", "files")


def test_studies_run_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[tuple[str, int, int]] = []
    changed = {"gpus": [8, 16], "model": "llama2-7b"}
    found = knee.study("fig3", overrides=changed, progress=lambda *words: told.append(words))
    assert not list(tmp_path.iterdir())
    assert len(repr(found)) < 200
    assert found.points == found.simulated > 0
    assert told[-1] == ("fig3", found.points, found.points)
    assert {row["gpus"] for row in found.rows()} == {8, 16}
    words = ("study", "run", "fig3", "--set", "gpus=8,16", "--set", "model=llama2-7b", "--no-page")
    done = CliRunner().invoke(main, [*words, "--json"])
    assert json.loads(done.stdout[: done.stdout.rindex("}") + 1])["studies"] == plain(found.to_dict()["studies"])
    assert callable(knee.study)


@pytest.mark.parametrize(
    ("ask", "code", "field"),
    [
        (lambda: knee.compare("one.json"), "missing-argument", "records"),
        (lambda: knee.compare({"kind": "simulated"}, {}), "not-a-record", None),
        (lambda: knee.compare(knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8], local_batch=2), {}),
         "not-a-record", None),
        (lambda: knee.validate(profile="eager"), "missing-argument", "file"),
        (lambda: knee.calibrate([]), "missing-argument", "files"),
        (lambda: knee.calibrate("runs.csv", hold_out=0.9), "out-of-range", "hold_out"),
        (lambda: knee.calibrate("runs.csv", only="speed"), "unknown-choice", "only"),
        (lambda: knee.study("fig3", steps=3), "out-of-range", "steps"),
        (lambda: knee.study("fig3", launcher="local"), "missing-argument", "out"),
        (lambda: knee.study("fig3", launcher="slurm"), "unknown-choice", "launcher"),  # type: ignore[arg-type]
        (lambda: knee.study("fig3", overrides={"tp": 2}), "not-an-override", "tp"),
        (lambda: knee.study("fig3", overrides={"gpus": "many"}), "not-a-number", "gpus"),
    ],
)  # fmt: skip
def test_errors_have_codes_and_fields(ask: Any, code: str, field: str | None) -> None:
    with pytest.raises(InputError) as refused:
        ask()
    assert (refused.value.code, refused.value.field) == (code, field)
    assert "--" not in str(refused.value)


def test_kernels_that_communicate_are_named(trace: Path) -> None:
    with pytest.raises(InputError) as refused:
        knee.read_traces(trace, comm="nothing")
    assert (refused.value.code, refused.value.field) == ("unknown-choice", "comm")
    with pytest.raises(InputError) as refused:
        knee.read_traces(trace, skip=9)
    assert (refused.value.code, refused.value.field) == ("no-steps", "skip")


@pytest.mark.parametrize("module", ["compare", "trace", "validate", "calibrate", "study"])
def test_examples_are_true(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"knee.commands.{module}.api"))
    assert tried
    assert not failed


def test_questions_need_nothing_of_the_command_line() -> None:
    names = ("compare", "read_traces", "validate", "calibrate", "study")
    heavy = ("click", "rich", "altair", "torch", "scipy", "duckdb")
    code = f"import sys, knee; [getattr(knee, n) for n in {names}]; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
