"""``knee scale`` as a stranger uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import DoesNotFit
from knee.commands.main import main
from knee.commands.scale.result import ScalingCurve, against
from knee.commands.scale.text import _beyond
from knee.search.knee import Curve, point_of
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.trust.trust import trust_of
from refusals import ended, kind, numbers, refused

MODEL, H100, EAGER = (
    load(name).spec for load, name in ((load_model, "llama-1b"), (load_cluster, "dgx-h100"), (load_profile, "eager"))
)

NAMES = ("scale", "llama2-7b", "--cluster", "dgx-h100", "--profile", "paper")
ASK = (*NAMES, "--gpus", "8..2048", "--local-batch", "2")


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def answer(*args: str, code: int = 0) -> dict[str, Any]:
    result = knee(*args, "--json")
    assert result.exit_code == code, result.stderr
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def test_the_answer_ends_with_a_sentence_for_a_manager() -> None:
    result = knee(*ASK, "--tokens", "2T")
    assert result.exit_code == 0, result.stderr
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith(
        "Beyond 1,024 GPUs, each doubling gives less than 1.5x the tokens/s; the 2,048-GPU run finishes 1.1 days "
    )
    for word in ("knee", "throughput", "energy", "cost", "CO2e", "extrapolated", "assumptions:"):
        assert word in result.stdout


def test_days_only_with_tokens() -> None:
    result = knee(*ASK)
    assert "days" not in result.stdout
    assert numbers(result.stdout.strip().splitlines()[-1])[:6] == [1024, 1.5, 2048, 1.48, 1024, 2]


def test_json_has_everything() -> None:
    data = answer(*ASK, "--tokens", "300B", "--grid", "france", "--pue", "1.1")
    assert data["scaling"] == "weak"
    assert data["training"]["grid"]["g_co2e_per_kwh"] == 56
    (curve,) = data["curves"]
    assert [point["gpus"] for point in curve["points"]] == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    last = curve["points"][-1]
    for key in (
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu_frac",
        "exposed_comm_s",
        "bubble_s",
        "power_w_per_gpu",
        "tokens_per_j",
        "usd_per_mtoken",
        "plan",
        "trust",
        "return",
        "training",
    ):
        assert last[key] is not None, key
    assert curve["points"][0]["return"] is None
    assert last["return"]["per_doubling"] < 1.5
    assert last["training"]["days"] * 86_400 == pytest.approx(3e11 / last["tokens_per_s"])
    knee = curve["knees"]["throughput"]
    assert knee["gpus"] == 1024
    assert knee["low_gpus"] <= 1024 <= knee["high_gpus"]
    assert "1.5" in knee["formula"]
    assert curve["sentence"].startswith("Beyond 1,024")


def test_the_threshold_moves_the_knee() -> None:
    assert answer(*ASK, "--threshold", "1.9")["curves"][0]["knees"]["throughput"]["gpus"] == 256
    kept = [answer(*ASK, "--keep", keep)["curves"][0]["knees"]["energy"]["gpus"] for keep in ("0.99", "0.8")]
    assert kept[0] < kept[1]


def test_clusters_and_models_side_by_side() -> None:
    options = "--cluster dgx-a100 --cluster dgx-h100,dgx-h100-roce --gpus 64..256 --local-batch 1 --profile paper"
    result = knee("scale", "llama2-7b,llama2-13b", *options.split())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("llama2-13b on dgx-h100-roce") == 3  # its table, the comparison, its sentence


def test_counts_that_cannot_be_say_why_and_stay() -> None:
    data = answer(*NAMES, "--gpus", "8,12,128,256,512", "--global-batch", "256", "--micro-batch", "1")
    points = data["curves"][0]["points"]
    assert {point["gpus"] for point in points if point["reason"]} == {12, 512}
    assert data["scaling"] == "strong"


def test_nothing_fits_is_exit_3_with_what_would() -> None:
    _, error = ended("scale", "llama2-70b", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "1")
    assert isinstance(error, DoesNotFit)
    assert (error.code, numbers(error.hint)[0]) == ("no-count-usable", 16)
    _, error = ended(*NAMES, "--gpus", "7", "--global-batch", "16")
    assert isinstance(error, DoesNotFit)
    assert (error.code, numbers(error.hint)[0]) == ("no-count-usable", 7)
    assert "--best" in str(error.hint)


def test_best_finds_a_plan_at_every_count_and_keeps_what_is_given() -> None:
    plain = answer(*NAMES, "--gpus", "8,64", "--local-batch", "1", "--tp", "2")["curves"][0]
    best = answer(*NAMES, "--gpus", "8,64", "--local-batch", "1", "--tp", "2", "--pp", "1", "--best")["curves"][0]
    for one, other in zip(best["points"], plain["points"], strict=True):
        assert one["plan"]["tp"] == 2
        assert one["tokens_per_s"] >= other["tokens_per_s"] * (1 - 1e-9)
    assert best["best"]


def test_a_job_file_scales(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('model = "llama2-7b"\ncluster = "dgx-h100"\nprofile = "paper"\ngpus = 8\nplan.tp = 2\n')
    data = answer("scale", str(path), "--gpus", "8..32", "--local-batch", "2")
    assert [point["plan"]["tp"] for point in data["curves"][0]["points"]] == [2, 2, 2]
    error = refused("scale", path, "--gpus", "8..32", "--local-batch", "2", "--best")
    assert kind(error) == ("contradiction", "best")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "png", "html", "json"])
def test_it_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    path = tmp_path / f"scale.{ending}"
    result = knee(*ASK, "--plot", str(path))
    assert result.exit_code == 0, result.stderr
    assert path.stat().st_size > 1000
    assert "wrote" in result.stderr
    if ending == "json":
        assert "hconcat" in json.loads(path.read_text())
    if ending in ("svg", "html"):
        assert "knee" in path.read_text()


def test_it_is_drawn_in_the_terminal() -> None:
    result = knee(*ASK, "--plot", "-")
    assert "█" in result.stdout
    assert "<- knee" in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        ((*NAMES, "--local-batch", "2"), "missing-argument", "gpus"),
        ((*NAMES, "--gpus", "8"), "missing-argument", "local_batch"),
        (("scale", "llama2-7b", "--gpus", "8", "--local-batch", "2"), "missing-argument", "cluster"),
        ((*ASK, "--global-batch", "8"), "contradiction", "local_batch"),
        ((*NAMES, "--gpus", "8-64", "--local-batch", "2"), "not-a-count", "gpus"),
        ((*NAMES, "--gpus", "64..8", "--local-batch", "2"), "not-a-count", "gpus"),
        ((*ASK, "--threshold", "2.5"), "out-of-range", "threshold"),
        ((*ASK, "--threshold", "nan"), "out-of-range", "threshold"),
        ((*ASK, "--keep", "0"), "out-of-range", "keep"),
        ((*ASK, "--tokens", "many"), "not-an-amount", "tokens"),
        ((*ASK, "--tokens", "1,5T"), "not-an-amount", "tokens"),
        ((*ASK, "--tokens", "2T", "--grid", "frnace"), "unknown-name", "grid"),
        ((*ASK, "--tokens", "2T", "--pue", "0.5"), "out-of-range", "pue"),
        ((*ASK, "--plot", "scale.pdf"), "unknown-choice", "plot"),
        ((*ASK, "--plot", "-", "--json"), "contradiction", "plot"),
        ((*ASK, "--plot", "/nowhere/scale.json"), "not-writable", "plot"),
        ((*ASK, "--plot", "/tmp/.json/x.svg"), "not-writable", "plot"),
        ((*ASK, "--objective", "tokens_per_j"), "contradiction", "objective"),
        ((*ASK, "--sharding", "ddp", "--dp-shard", "8"), "contradiction", None),
        ((*ASK, "--best", "--recompute-frac", "0.5"), "contradiction", "recompute_frac"),
        (("scale", "llama2-7c", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "2"), "unknown-name", "model"),
    ],
)
def test_wrong_questions(args: tuple[str, ...], code: str, field: str | None) -> None:
    assert kind(refused(*args)) == (code, field)


@pytest.mark.parametrize("best", [(), ("--best",)])
@pytest.mark.parametrize("batch", ["--local-batch=nan", "--local-batch=inf", "--local-batch=-2", "--local-batch=0",
                                   "--local-batch=1e300", "--global-batch=0", "--global-batch=-8"])  # fmt: skip
def test_a_batch_that_is_none_is_refused_before_any_table(batch: str, best: tuple[str, ...]) -> None:
    name = batch.partition("=")[0].removeprefix("--").replace("-", "_")
    assert kind(refused(*NAMES, "--gpus", "8", batch, *best)) == ("out-of-range", name)


@pytest.mark.parametrize("best", [(), ("--best",)])
def test_broken_sequences_at_every_count_are_exit_3(best: tuple[str, ...]) -> None:
    _, error = ended(*NAMES, "--gpus", "3,5", "--local-batch", "0.5", *best)
    assert isinstance(error, DoesNotFit)
    assert error.code == ("no-plan-fits" if best else "no-count-usable")
    assert numbers(error.hint) == [1, 2]  # a batch of 1, or a multiple of 2 GPUs


def test_the_sentence_names_doublings_that_did_not_pay() -> None:
    options = "--cluster dgx-h100 --gpus 8,12,16,20,24,28,32 --local-batch 2 --threshold 1.99"
    result = knee("scale", "llama2-7b", *options.split())
    last = result.stdout.strip().splitlines()[-1]
    assert "although 8 to 12 gives only" in last
    assert "every doubling gives" not in last


def test_hints_keep_the_kind_of_plan_that_was_asked() -> None:
    options = "--cluster dgx-h100 --gpus 64 --local-batch 1 --sharding ddp --recompute none"
    _, error = ended("scale", "llama2-70b", *options.split())
    assert isinstance(error, DoesNotFit)
    words = str(error.hint).split()
    assert words[words.index("--sharding") + 1] == "ddp"
    assert "--recompute" not in words


def test_small_and_large_numbers_are_said_as_people_do() -> None:
    result = knee(*NAMES, "--gpus", "1..4", "--global-batch", "1", "--tokens", "1M", "--seq-len", "512", "--best")
    assert "1 sequence per step" in result.stdout  # not 1 sequences
    row = knee(*NAMES, "--gpus", "8", "--local-batch", "2", "--tokens", "1B").stdout.splitlines()
    cells = row[next(i for i, line in enumerate(row) if "MWh" in line) + 1].split()
    assert 0 < float(cells[5]) < 1


def test_only_counts_that_are_extrapolated_are_called_so() -> None:
    curve = Curve(points=tuple(point_of(make_job(MODEL, H100, EAGER, gpus=n, local_batch=1)[0]) for n in (8, 16, 32)))
    one = ScalingCurve(request=None, curve=curve, best=False, names=("", ""))
    trust = trust_of(make_job(MODEL, H100, EAGER, gpus=8, local_batch=1)[0], [])

    def said(*labels: str) -> str:
        pairs = zip((8, 16, 32), labels, strict=True)
        return _beyond(replace(one, trusts={n: replace(trust, label=label) for n, label in pairs}))

    assert "at 8 GPUs" in said("extrapolated", "near", "near")
    assert "at 8 and 32 GPUs" in said("extrapolated", "near", "extrapolated")
    assert "from 16 GPUs on" in said("near", "extrapolated", "extrapolated")
    assert "at all GPU counts" in said("extrapolated", "extrapolated", "extrapolated")
    few, many = (replace(curve.usable[0][1], tokens_per_j=value) for value in (16.0, 1.0))
    assert "takes 16 times the energy" in against(one, 8, 16, {8: few, 16: many})


def test_long_searches_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = (*NAMES, "--gpus", "8", "--local-batch", "1", "--best", "--pp", "1")
    monkeypatch.setattr("knee.show.terminal.progress_bar.PATIENCE_S", -1.0)
    assert "8 GPUs: listing plans\n" in knee(*ask).stderr
    monkeypatch.setattr("knee.show.terminal.progress_bar.PATIENCE_S", 1e9)
    assert knee(*ask).stderr == ""


def test_the_command_is_light_to_import() -> None:
    heavy = ("numpy", "pydantic", "rich", "altair")
    code = f"import sys, knee.commands.scale.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
