"""``knee calibrate`` on runs whose truth is known, and on files as strangers write them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import refusals
from knee.base.files import csv_text
from knee.commands.main import main
from knee.engine.one_job import simulate
from knee.specs.load import load_profile
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS
from knee.trust.validation.published_runs import Setting
from knee.trust.validation.run_to_job import job_of
from refusals import kind

pytestmark = pytest.mark.slow

TRUTH = replace(load_profile("eager").spec, launch_s=30e-6, stream_scale=1.3, bandwidth_scale_frac=0.5)
MODELS = {"1b": (16, 2048, 32), "7b": (32, 4096, 32)}
RUNS = (
    ("1b", 8, 1024, 1),
    ("1b", 8, 2048, 2),
    ("1b", 32, 1024, 1),
    ("1b", 8, 4096, 4),
    ("1b", 64, 512, 1),
    ("7b", 8, 1024, 1),
    ("7b", 8, 4096, 1),
    ("7b", 8, 4096, 2),
    ("7b", 64, 512, 1),
    ("7b", 64, 2048, 1),
    ("7b", 128, 1024, 1),
    ("7b", 128, 4096, 1),
    ("7b", 16, 4096, 1),
    ("7b", 32, 2048, 2),
    ("7b", 256, 1024, 1),
    ("7b", 256, 512, 1),
)
"""Model, GPUs, tokens a sequence, sequences a GPU: small ones wait for the host, those on many GPUs for the network."""


def rows(truth: Profile = TRUTH, runs: tuple[tuple[str, int, int, int], ...] = RUNS) -> list[dict[str, Any]]:
    found = []
    for name, gpus, seq_len, micro_batch in runs:
        layers, hidden, heads = MODELS[name]
        setting: dict[str, Any] = {
            "source": "mine",
            "model": name,
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "gpu": "h100-80gb",
            "n_gpus": gpus,
            "seq_len": seq_len,
            "global_batch": gpus * micro_batch,
            "micro_batch": micro_batch,
            "sharding": "fsdp",
        }
        measured = simulate(job_of(Setting(**setting), profile=truth).job)
        found.append(setting | {"tokens_per_s_per_gpu": measured.tokens_per_s_per_gpu, "status": "ok"})
    return found


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text(csv_text(records), encoding="utf-8")
    return path


def knee(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def calibrate(*args: str | Path) -> dict[str, Any]:
    result = knee("calibrate", *args, "--json")
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    data: dict[str, Any] = json.loads(result.stdout)
    data["by_name"] = {p["name"]: p for p in data["parameters"]}
    return data


def refused(*args: str | Path) -> str:
    result = knee("calibrate", *args)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    assert result.stderr.count("error:") == result.stderr.count("hint:") == 1
    return result.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("whole")
    file, out = write(folder / "runs.csv", rows()), folder / "mine.toml"
    return file, out, calibrate(file, "-o", out)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Five of them: quick, and too few to hold any back."""
    return write(tmp_path / "few.csv", rows(runs=RUNS[5:10]))


@pytest.mark.slow
def test_what_was_true_is_found(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    _, out, data = whole
    profile = load_profile(str(out)).spec
    for name in ("launch_s", "stream_scale", "bandwidth_scale_frac"):
        found = data["by_name"][name]
        assert found["determined"]
        assert found["after"] == pytest.approx(getattr(TRUTH, name), rel=0.1)
        assert getattr(profile, name) == pytest.approx(found["after"], rel=1e-3)
    for name in ("step_overhead_s", "compute_slowdown_frac", "hop_scale"):  # what was right stays nearly so
        assert data["by_name"][name]["after"] == pytest.approx(getattr(TRUTH, name), rel=0.1)
    assert data["throughput_before"]["median_frac"] > 0.07
    assert data["throughput_after"]["median_frac"] < 0.01
    held = data["held_out"]
    assert held["one_by_one"]
    assert held["runs"] == held["fitted_runs"] + 1 == data["runs"] == 16
    assert held["throughput_after"]["median_frac"] < 0.03 < held["throughput_before"]["median_frac"]


@pytest.mark.slow
def test_what_has_no_evidence_is_not_written(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    _, out, data = whole
    text = out.read_text(encoding="utf-8")
    for name in ("issue_s", "tp_overlap_frac", "p2p_overlap_frac", "cp_overlap_frac", "context_bytes"):
        found = data["by_name"][name]
        assert (found["determined"], found["why_left"]) == (False, "no run depends on it")
        assert found["uncertainty_left_frac"] == pytest.approx(1.0)
        assert f"\n{name} =" not in text
    assert 'base = "eager"' in text


@pytest.mark.slow
def test_every_value_says_where_it_comes_from(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    _, out, _ = whole
    source = load_profile(str(out)).sources["launch_s"]
    assert source.kind == "fitted"
    for words in ("knee calibrate", "16 runs of runs.csv", "median error of tokens/s", "->", "held-out runs"):
        assert words in source.text
    own, base = (load_profile(name).sources["tp_overlap_frac"] for name in (str(out), "eager"))
    assert own.text == base.text  # no run has it


@pytest.mark.slow
def test_other_commands_take_the_profile(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    file, out, data = whole
    before, after = (
        json.loads(knee("validate", file, *more, "--json").stdout)["all"]["throughput"]
        for more in ((), ("--profile", out))
    )
    assert before["median_frac"] == pytest.approx(data["throughput_before"]["median_frac"])
    assert after["median_frac"] == pytest.approx(data["throughput_after"]["median_frac"], abs=1e-3)
    asked = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "1", "--json")
    steps = [json.loads(knee(*asked, "--profile", name).stdout)["step_s"] for name in ("eager", str(out))]
    assert steps[1] > steps[0]


@pytest.mark.slow
def test_same_runs_same_file(few: Path, tmp_path: Path) -> None:
    for name in ("a.toml", "b.toml"):
        calibrate(few, "--only", "launch_s,stream_scale", "-o", tmp_path / name)
    assert (tmp_path / "a.toml").read_bytes() == (tmp_path / "b.toml").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"few.csv", "a.toml", "b.toml"}


def test_the_table(few: Path, tmp_path: Path) -> None:
    result = knee("calibrate", few, "--only", "stream_scale", "-o", tmp_path / "p.toml")
    assert result.exit_code == 0
    for words in (
        "fitted, but not tested on held-out runs: 5 runs",
        f"(5 of 5 rows), starting from eager, 1 of {len(PARAMETERS)} parameters determined",
        "uncertainty left",
        "if all are fitted",
        "not selected",
        "before -> after",
        "5 runs are too few to hold some out",
        "assumptions:",
    ):
        assert words in result.stdout
    assert f"--profile {tmp_path / 'p.toml'}" in result.stderr
    assert "held-out test" not in result.stdout


def test_one_run_says_little_and_is_valid(tmp_path: Path) -> None:
    file, out = write(tmp_path / "one.csv", rows(runs=RUNS[7:8])), tmp_path / "p.toml"
    data = calibrate(file, "-o", out)
    assert sum(p["determined"] for p in data["parameters"]) <= 2
    assert "not tested: 1 run is too few" in data["warnings"][-1]
    assert data["checked"] is False
    assert "# Not tested" in out.read_text(encoding="utf-8")
    assert load_profile(str(out)).spec.name == "p"


def test_a_run_that_determines_nothing_leaves_the_base(few: Path, tmp_path: Path) -> None:
    data = calibrate(few, "--only", "tp_overlap_frac", "-o", tmp_path / "p.toml")
    assert "the runs determine none of the parameters" in data["warnings"][0]
    assert load_profile(str(tmp_path / "p.toml")).spec == replace(load_profile("eager").spec, name="p")


def test_failed_runs_are_counted_and_not_used(tmp_path: Path) -> None:
    records = rows(runs=RUNS[5:8])
    records += [
        records[0] | {"tokens_per_s_per_gpu": "", "status": status, "micro_batch": 1, "global_batch": 8 * n}
        for n, status in ((2, "oom"), (3, "failed"))
    ]
    data = calibrate(write(tmp_path / "r.csv", records), "--only", "stream_scale")
    assert (data["rows"], data["rows_used"], data["runs"]) == (5, 3, 3)
    assert data["skipped"] == {"the run ended early (oom or failed), so no time was measured": 2}
    only_failed = write(tmp_path / "f.csv", records[3:])
    assert refusals.refused("calibrate", only_failed).code == "nothing-usable"


def test_runs_that_contradict_each_other(tmp_path: Path) -> None:
    records = rows(runs=RUNS[5:10])
    for i, record in enumerate(records):
        record["tokens_per_s_per_gpu"] *= (0.4, 2.5)[i % 2]
    records.append(records[0] | {"tokens_per_s_per_gpu": 2 * records[0]["tokens_per_s_per_gpu"]})
    said = " ".join(calibrate(write(tmp_path / "r.csv", records), "--only", "stream_scale,gemm_scale")["warnings"])
    assert "the error after the fit is still" in said
    assert "contradict each other" in said
    assert "repeats of one setting differ by up to 100%" in said


@pytest.mark.parametrize("runs", [RUNS[5:6], RUNS[5:9]])
def test_runs_that_are_off_alike(runs: tuple[tuple[str, int, int, int], ...], tmp_path: Path) -> None:
    records = [r | {"tokens_per_s_per_gpu": 0.3 * r["tokens_per_s_per_gpu"]} for r in rows(runs=runs)]
    said = " ".join(calibrate(write(tmp_path / "r.csv", records), "--only", "gemm_scale")["warnings"])
    assert "the fitted parameters do not explain" in said
    assert "contradict" not in said


def test_what_cannot_be_told_apart_is_said(tmp_path: Path) -> None:
    """Slow products look like slow memory-bound kernels: what is fitted for one stands for the other."""
    truth = replace(load_profile("eager").spec, gemm_scale=0.9, stream_scale=1.4)
    runs = tuple(("7b", gpus, 4096, batch) for gpus in (8, 16, 64) for batch in (1, 2))
    file = write(tmp_path / "r.csv", rows(truth, runs))
    data = calibrate(file, "--only", "gemm_scale,stream_scale,launch_s")
    stream, gemm = data["by_name"]["stream_scale"], data["by_name"]["gemm_scale"]
    assert stream["after"] > 1.45  # slow products too
    assert (stream["confounded_with"], gemm["confounded_with"]) == ("gemm_scale", "stream_scale")
    assert stream["uncertainty_left_all_free_frac"] > 1.25 * stream["uncertainty_left_frac"]
    assert gemm["why_left"] == "the runs cannot distinguish it from stream_scale"
    assert data["by_name"]["launch_s"]["confounded_with"] is None
    assert any("stream_scale and gemm_scale cannot be distinguished by these runs" in said for said in data["warnings"])


@pytest.mark.slow
def test_a_fit_that_is_no_better_on_other_runs_is_not_taken(tmp_path: Path) -> None:
    """The base is right, and runs are fast and slow by turns: nothing of that carries over."""
    records = rows(load_profile("eager").spec)
    for i, record in enumerate(records):
        record["tokens_per_s_per_gpu"] *= (0.85, 0.9, 1.0, 1.1)[i % 4]
    file, out_file = write(tmp_path / "r.csv", records), tmp_path / "p.toml"
    data = calibrate(file, "--only", "stream_scale", "-o", out_file)
    assert data["held_out"]["throughput_better"] is False
    assert (data["checked"], data["by_name"]["stream_scale"]["after"]) == (
        True,
        load_profile("eager").spec.stream_scale,
    )
    assert data["by_name"]["stream_scale"]["fitted"] > 1.01
    assert load_profile(str(out_file)).spec == replace(load_profile("eager").spec, name="p")
    assert (
        "# Kept as in eager: the fit does not clearly improve tokens/s of runs that were held out"
        in out_file.read_text()
    )
    first = knee("calibrate", file, "--only", "stream_scale").stdout.splitlines()[0]
    assert first.startswith("the values of eager are kept, because the fit does not clearly improve tokens/s")
    forced = calibrate(file, "--only", "stream_scale", "-o", out_file, "--anyway")
    assert forced["by_name"]["stream_scale"]["after"] == data["by_name"]["stream_scale"]["fitted"]
    assert load_profile(str(out_file)).spec.stream_scale > 1.01
    assert "the fitted values are used because of --anyway" in forced["warnings"][-1]


def test_kernel_sets_share_one_fit(tmp_path: Path) -> None:
    """Compiled runs keep their kernels and share what is fitted; the file that is written predicts both."""
    slow = replace(load_profile("eager").spec, launch_s=30e-6, gemm_scale=0.85, bandwidth_scale_frac=0.5)
    compiled = (0, 5, 8)
    records = rows(slow, RUNS[:10])
    for i, row in zip(compiled, rows(replace(slow, kernels="compiled"), tuple(RUNS[i] for i in compiled)), strict=True):
        records[i] = row | {"compile": 1}
    records = [record | {"compile": record.get("compile", 0)} for record in records]
    file, out = write(tmp_path / "r.csv", records), tmp_path / "p.toml"
    data = calibrate(file, "--only", "gemm_scale,launch_s,bandwidth_scale_frac", "-o", out)
    assert (data["base"], data["runs"], data["profiles"]) == ("eager", 10, {"eager": 7, "compiled": 3})
    assert "the runs use several profiles: eager (7), compiled (3)" in data["warnings"][0]
    # two spreads between stacks away: the prior keeps a part of it, which is worth 1% of throughput
    assert 0.85 <= data["by_name"]["gemm_scale"]["after"] < 0.92
    after = json.loads(knee("validate", file, "--profile", out, "--json").stdout)["all"]["throughput"]
    assert (after["points"], after["median_frac"] < 0.02) == (10, True)


def test_an_outlier_does_not_ruin_it(tmp_path: Path) -> None:
    records = rows(replace(load_profile("eager").spec, gemm_scale=0.85), RUNS[5:13])
    records[3]["tokens_per_s_per_gpu"] *= 0.4
    data = calibrate(write(tmp_path / "r.csv", records), "--only", "gemm_scale,stream_scale")
    assert data["held_out"]["throughput_better"]
    assert data["throughput_after"]["median_frac"] < 0.03


def test_the_next_runs(tmp_path: Path) -> None:
    file = write(tmp_path / "r.csv", rows(runs=RUNS[5:8]))
    args = ("calibrate", file, "--only", "stream_scale,launch_s,bandwidth_scale_frac", "--suggest")
    data = json.loads(knee(*args, "--json").stdout)
    found = [(run["model"], run["gpus"], run["global_batch"], run["plan"]) for run in data["suggested"]]
    assert len(set(found)) == 3
    for run in data["suggested"]:
        assert run["uncertainty_after_frac"] < run["uncertainty_before_frac"]
        assert run["spread_after_frac"] < run["spread_before_frac"]
        assert run["tells"] in run["why"]
    assert "suggested next runs:" in knee(*args).stdout


@pytest.mark.slow
def test_runs_of_several_clusters_are_one_stack(tmp_path: Path) -> None:
    records = rows(runs=RUNS[5:8])
    other = [
        record | {"gpu": "a100-80gb", "tokens_per_s_per_gpu": 0.4 * record["tokens_per_s_per_gpu"]}
        for record in records
    ]
    file = write(tmp_path / "r.csv", records + other)
    assert calibrate(file, "--only", "stream_scale")["runs"] == 6
    data = calibrate(file, "--only", "stream_scale", "--cluster", "dgx-h100")
    assert (data["runs"], list(data["skipped"].values())) == (3, [3])
    assert "the GPU is a100-80gb" in next(iter(data["skipped"]))


@pytest.mark.slow
def test_a_fit_goes_on_from_a_file(few: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    calibrate(few, "--only", "stream_scale", "-o", first)
    calibrate(few, "--profile", first, "--only", "bandwidth_scale_frac", "-o", second)
    one, two = (load_profile(str(path)).spec for path in (first, second))
    assert two.stream_scale == one.stream_scale != 1.0
    assert two.bandwidth_scale_frac != one.bandwidth_scale_frac
    error = refusals.refused("calibrate", few, "--profile", first, "-o", first)
    assert kind(error) == ("would-overwrite", "out")


@pytest.mark.slow
def test_records_of_knee_itself(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    texts = [
        knee(
            "simulate",
            "llama2-7b",
            "--cluster",
            "dgx-h100",
            "--gpus",
            "8",
            "--local-batch",
            batch,
            "--sharding",
            "fsdp",
            "--set",
            "profile.stream_scale=1.3",
            "--json",
        ).stdout
        for batch in ("1", "2")
    ]
    measured = [json.loads(text) | {"kind": "measured"} for text in texts]
    file.write_text("".join(texts), encoding="utf-8")  # one after another, as a shell appends them
    data = calibrate(file, "--only", "stream_scale")
    assert data["by_name"]["stream_scale"]["after"] == pytest.approx(1.3, rel=0.05)
    assert "2 of the records are simulated" in data["warnings"][0]
    lines = "".join(json.dumps(record) + "\n" for record in measured)
    file.write_text(lines + lines + '{"model": "llama2', encoding="utf-8")  # repeats, and a line that was cut off
    again = calibrate(file, "--only", "stream_scale")
    assert again["by_name"] == data["by_name"]
    assert (again["rows"], again["rows_used"], again["runs"]) == (5, 4, 2)
    assert again["skipped"] == {"it is incomplete: the writer was interrupted": 1}
    file.write_text(json.dumps(measured), encoding="utf-8")
    assert calibrate(file, "--only", "stream_scale")["by_name"] == data["by_name"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "llama9"}, "llama9"),
        ({"model": 7}, "model is not a name"),
        ({"gpus": True}, "gpus is"),
        ({"gpus": 10**400}, "dgx-h100 is described only up to"),
        ({"plan": []}, "plan is not a table"),
        ({"plan": {"tp": "x"}}, "plan.tp"),
        ({"step_s": -1}, "step_s is -1, and must be positive"),
        ({"step_s": 10**400}, "which is not realistic"),
        ({"step_s": "fast"}, "step_s is 'fast', not a number"),
        ({"tokens_per_s": 1.0}, "contradict each other"),
        ({"fits": False}, "the run ended early"),
        ({"kind": "guessed"}, "kind is 'guessed'"),
        ({"plan": {"dp_shard": 3}}, "the plan fills 3 GPUs"),
    ],
)
def test_records_that_cannot_be_used(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    record = {
        "model": "llama2-7b",
        "cluster": "dgx-h100",
        "profile": "eager",
        "gpus": 8,
        "global_batch": 16,
        "seq_len": 4096,
        "plan": {"dp_shard": 8},
        "step_s": 1.0,
    }
    (tmp_path / "r.jsonl").write_text(json.dumps(record | change) + "\n", encoding="utf-8")
    assert words in refused(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text(json.dumps({k: v for k, v in record.items() if k not in change}), "utf-8")
    if set(change) & {"model", "gpus", "plan"}:
        assert f"the record has no {next(iter(change))}" in refused(tmp_path / "r.jsonl")


@pytest.mark.slow
def test_steps_of_a_probe() -> None:
    steps = Path(__file__).parents[3] / "data/h200/steps.jsonl"
    data = calibrate(steps, "--profile", "eager", "--only", "stream_scale,step_overhead_s")
    assert data["by_name"]["stream_scale"]["determined"]
    assert "load no data" in data["by_name"]["step_overhead_s"]["why_left"]
    assert data["throughput_after"]["median_frac"] < 0.02
    assert sorted(data["profiles"]) == ["eager"]


def test_what_is_refused_before_a_fit(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.trust.profile_fit.calibration.calibrate", lambda *_: pytest.fail("it was fitted"))
    (tmp_path / "taken").write_text("", encoding="utf-8")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "other.txt").write_text("no columns\n1\n", encoding="utf-8")
    (tmp_path / "bad.json").write_text("{]", encoding="utf-8")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    cases: tuple[tuple[tuple[str | Path, ...], tuple[str, str | None]], ...] = (
        ((), ("missing-argument", "files")),
        ((tmp_path / "none.csv",), ("unreadable", None)),
        ((tmp_path / "other.txt",), ("missing-field", "layers")),
        ((tmp_path / "bad.json",), ("not-json", None)),
        ((tmp_path / "bytes.csv",), ("not-utf8", None)),
        ((few, "-o", few), ("not-a-toml-path", "out")),
        ((few, "-o", tmp_path / "folder.toml"), ("not-writable", "out")),
        ((few, "-o", tmp_path / "taken" / "p.toml"), ("not-writable", "out")),
        ((few, "-o", tmp_path / "no" / "such" / "p.toml"), ("not-writable", "out")),
        ((few, "--hold-out", "0.9"), ("out-of-range", "hold_out")),
        ((few, "--only", "launch"), ("unknown-choice", "only")),
        ((few, "--only", "launch_s", "--fix", "launch_s"), ("nothing-to-fit", "fix")),
        ((few, "--profile", "eagr"), ("unknown-name", "profile")),
        ((few, "--cluster", "dgx-h10"), ("unknown-name", "cluster")),
        ((few, "--cluster", "dgx-a100"), ("nothing-usable", "files")),
    )
    assert [kind(refusals.refused("calibrate", *args)) for args, _ in cases] == [found for _, found in cases]
    assert not (tmp_path / "no").exists()


def test_without_scipy(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    _, error = refusals.ended("calibrate", few, "-o", tmp_path / "p.toml")
    assert (error.code, error.hint) == ("missing-extra", "pip install 'knee[fit]'")
    assert not (tmp_path / "p.toml").exists()


def test_an_interrupted_fit_leaves_what_was_there(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "p.toml").write_text('base = "eager"\n', encoding="utf-8")
    monkeypatch.setattr("os.replace", interrupted)
    assert knee("calibrate", few, "--only", "stream_scale", "-o", tmp_path / "p.toml").exit_code == 130
    assert (tmp_path / "p.toml").read_text(encoding="utf-8") == 'base = "eager"\n'
    assert {path.name for path in tmp_path.iterdir()} == {"few.csv", "p.toml"}


@pytest.mark.slow
def test_runs_out_of_memory_are_evidence_for_the_memory_model(tmp_path: Path) -> None:
    """A sweep's folder as it is: what knee says fits with little to spare, and did not, makes it expect more memory."""
    from knee.engine.one_job import simulate
    from knee.specs import Job
    from knee.specs.load import load_cluster, load_model, make_job

    specs = (load_model("llama2-7b").spec, load_cluster("dgx-h100").spec, load_profile("eager").spec)

    def a_job(micro: int, gpus: int = 8) -> Job:
        return make_job(*specs, gpus=gpus, global_batch=gpus * micro, plan_options={"micro_batch": micro})[0]

    def write_record(number: int, job: Job, **changes: Any) -> None:
        plan = {"dp_shard": job.gpus, "micro_batch": job.plan.micro_batch, "sharding": job.plan.sharding}
        record = {
            "kind": "measured",
            "model": "llama2-7b",
            "cluster": "dgx-h100",
            "profile": "eager",
            "gpus": job.gpus,
            "global_batch": job.global_batch,
            "seq_len": 4096,
            "plan": plan,
            "status": "done",
            "step_s": simulate(job).step_s,
        }
        for place in (f"runs/{number:04d}", f"runs/{number:04d}/attempts/1"):
            (tmp_path / place).mkdir(parents=True)
            (tmp_path / place / "record.json").write_text(json.dumps(record | changes), encoding="utf-8")

    fit = max(micro for micro in range(1, 9) if simulate(a_job(micro)).fits)
    write_record(1, a_job(1))
    for number in range(2, 8):
        write_record(number, a_job(fit, 8 * number), status="oom", fits=False, step_s=None)
    write_record(9, a_job(1, 16), status="failed")  # measured for a part of its window only
    data = calibrate(tmp_path, "--only", "context_bytes,allocator_frac", "--anyway")
    assert (data["runs"], data["rows"]) == (1, 8)
    assert any(
        "6 runs ended out of memory: the base profile predicts that 6 of them fit" in words
        for words in data["warnings"]
    )
    moved = [data["by_name"][name] for name in ("context_bytes", "allocator_frac")]
    assert any(one["after"] > one["before"] for one in moved)
