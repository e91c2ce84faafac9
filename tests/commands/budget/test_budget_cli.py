"""``knee budget`` as a stranger uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import DoesNotFit
from knee.commands.main import main
from refusals import ended, kind, refused

ASK = ("budget", "--cluster", "dgx-h100", "--gpus", "16", "--days", "3")


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("budget")
    result = knee(
        *ASK, "--gpus", "8", "--usd", "500", "--json", "--html", str(folder / "b.html"), "--plot", str(folder / "b.svg")
    )
    assert result.exit_code == 0, result.stderr
    page = (folder / "b.html").read_text(encoding="utf-8")
    assert "The best model that a budget can train" in page
    for words in ("Loss against dollars", "MFU by 6 N D", "The pale band is that of the law", "PUE is 1.56"):
        assert words in page
    assert "http" not in (folder / "b.svg").read_text(encoding="utf-8").replace("http://www.w3.org", "")
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_an_answer_has_both_sides_and_what_lies_between(data: dict[str, Any]) -> None:
    best, flop = data["best"], data["flop_counting"]
    assert best["loss"] <= flop["really"]["loss"]
    assert flop["lost"]["loss"] >= 0
    assert best["cost_usd"] <= 500 * (1 + 1e-9)
    assert best["days"] <= 3 * (1 + 1e-9)
    assert best["batch_tokens"] <= best["critical_batch_tokens"]
    assert best["bands"]["law"][0] < best["loss"] < best["bands"]["law"][1]
    assert {one["axis"] for one in data["frontiers"]} == {"days", "usd", "mwh", "co2e_kg"}
    assert {one["what"] for one in data["marginal"]} == {"day", "thousand USD", "MWh", "GPU"}
    assert len(data["sentences"]) >= 2
    low, high = best["even_params"]
    assert low <= best["params"] <= high
    assert all(len(point["law_band"]) == 2 for one in data["frontiers"] for point in one["points"] if point["run"])
    assert data["site"]["usd_source"]
    assert data["law"]["name"] == "besiroglu-2024"


def test_on_the_screen_it_says_the_same() -> None:
    result = knee(*ASK, "--params", "1B")
    assert result.exit_code == 0
    for words in (
        "best run",
        "FLOP-only estimate (40% MFU)",
        "size on this cluster",
        "per additional unit",
        "uncertainty of the loss",
        "critical batch size at this loss",
        "assumptions:",
        "Train ",
    ):
        assert words in result.stdout
    # the answer comes first
    assert result.stdout.startswith("Train ")
    assert result.stdout.splitlines()[1].startswith("A FLOP-only estimate at 40% MFU")


@pytest.mark.slow
def test_sizes_and_ratios_can_be_fixed() -> None:
    result = knee(*ASK, "--params", "1B", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["best"]["params"] == pytest.approx(1e9, rel=0.1)
    result = knee(*ASK, "--tokens-per-param", "40", "--json")
    assert json.loads(result.stdout)["best"]["tokens_per_param"] == pytest.approx(40)
    result = knee(*ASK, "--model", "llama-1b", "--json")
    assert json.loads(result.stdout)["best"]["model"] == "llama-1b"


def test_beyond_its_runs_the_law_says_so() -> None:
    result = knee(*ASK, "--law", "kaplan-2020", "--params", "7B")
    assert "The scaling law is extrapolated" in result.stdout
    assert "no standard errors were published" in result.stdout
    assert "from the simulator alone; no errors were published for the scaling law" in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        (("budget",), "missing-argument", "cluster"),
        (("budget", "--cluster", "dgx-h100"), "missing-argument", "days"),
        (("budget", "--cluster", "dgx-h100", "--tokens-max", "1T"), "missing-argument", "days"),
        (("budget", "--cluster", "dgx-h1000", "--days", "3"), "unknown-name", "cluster"),
        ((*ASK, "--law", "chinchila"), "unknown-name", "scaling law"),
        ((*ASK, "--family", "lama"), "unknown-name", "family"),
        ((*ASK, "--days", "0"), "out-of-range", "days"),
        ((*ASK, "--days", "-1"), "out-of-range", "days"),
        ((*ASK, "--days", "nan"), "out-of-range", "days"),
        ((*ASK, "--usd", "inf"), "out-of-range", "usd"),
        ((*ASK, "--batch-law", "merril"), "unknown-name", "law of the critical batch"),
        ((*ASK, "--tokens-max", "-5T"), "not-an-amount", "tokens_max"),
        ((*ASK, "--gpus", "0"), "out-of-range", "gpus"),
        ((*ASK, "--gpus", "2000000"), "out-of-range", "gpus"),
        ((*ASK, "--mfu", "1.5"), "out-of-range", "mfu"),
        ((*ASK, "--tokens-max", "many"), "not-an-amount", "tokens_max"),
        ((*ASK, "--params", "8 apples"), "not-an-amount", "params"),
        ((*ASK, "--params", "1k"), "out-of-range", "params"),
        ((*ASK, "--params", "8B", "--model", "llama2-7b"), "contradiction", "model"),
        ((*ASK, "--tokens-per-param", "-3"), "out-of-range", "tokens_per_param"),
        ((*ASK, "--tokens-per-param", "1e10"), "out-of-range", "tokens_per_param"),
        ((*ASK, "--set", "model.layers=3"), "not-an-override", "model.layers"),
        ((*ASK, "--set", "tp=3"), "not-an-override", "tp"),
        (("budget", "--cluster", "gb200-nvl72", "--gpus", "72", "--usd", "1000"), "no-rate", "usd"),
        ((*ASK, "--plot", "x.pdf"), "unknown-choice", "plot"),
        ((*ASK, "--html", "/nowhere/at/all.html"), "not-writable", "html"),
        ((*ASK, "--html", ""), "missing-argument", "html"),
        ((*ASK, "--usd", "2 lots"), "not-an-amount", "usd"),
        (("budget", "--check", "--cluster", "foo", "--gpus", "3"), "contradiction", "check"),
        (("budget", "--check", "--grid", "world"), "contradiction", "check"),
        ((*ASK, "--dayz", "3"), "unknown-option", "--dayz"),
        ((*ASK, "--seq-len", "0"), "out-of-range", "seq_len"),
    ],
)
def test_what_cannot_be_is_refused(args: tuple[str, ...], code: str, field: str | None) -> None:
    assert kind(refused(*args)) == (code, field)


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        (("--gpus", "1", "--days", "3", "--model", "llama3-405b"), "no-plan-fits", "gpus"),
        (("--gpus", "8", "--usd", "0.001"), "does-not-fit", None),
        (("--gpus", "8", "--days", "3", "--tokens-max", "100"), "does-not-fit", "seq_len"),
        (("--gpus", "8", "--days", "0.01", "--params", "7B", "--tokens-per-param", "2000"),
         "does-not-fit", "tokens_per_param"),
        (("--gpus", "8", "--days", "3", "--batch-max", "100"), "does-not-fit", "batch_max"),
    ],
)  # fmt: skip
def test_what_trains_nothing_ends_with_3(args: tuple[str, ...], code: str, field: str | None) -> None:
    _, error = ended("budget", "--cluster", "dgx-h100", *args)
    assert isinstance(error, DoesNotFit)
    assert kind(error) == (code, field)


@pytest.mark.slow
def test_check_shows_the_worst(tmp_path: Path) -> None:
    result = knee("budget", "--check")
    assert result.exit_code == 0
    assert "of llama2-13b-2T, is -" in result.stdout
    data = json.loads(knee("budget", "--check", "--json").stdout)
    assert len(data["runs"]) == 5
    assert tmp_path.exists()
