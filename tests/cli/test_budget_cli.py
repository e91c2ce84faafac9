"""``knee budget`` as a stranger uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.cli import main

ASK = ("budget", "--cluster", "dgx-h100", "--gpus", "16", "--days", "3")


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def refused(*args: str, code: int = 2) -> str:
    result = knee(*args)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stderr.startswith("error: ")
    assert "hint: " in result.stderr
    return result.stderr


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
        "with communication",
        "counting FLOP (40% MFU)",
        "what that really reaches",
        "one more unit",
        "how sure",
        "critical at this loss",
        "assumptions:",
        "Train ",
    ):
        assert words in result.stdout
    # the answer comes first
    assert result.stdout.startswith("Train ")
    assert result.stdout.splitlines()[1].startswith("Counting FLOP at 40% MFU")


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
    assert "The law is extrapolated" in result.stdout
    assert "no standard errors were published" in result.stdout
    assert "by the simulator alone; the law published no errors" in result.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("budget",), "missing: --cluster"),
        (("budget", "--cluster", "dgx-h100"), "nothing limits the work"),
        (("budget", "--cluster", "dgx-h100", "--tokens-max", "1T"), "limits the data, not the work"),
        (("budget", "--cluster", "dgx-h1000", "--days", "3"), "dgx-h100"),
        ((*ASK, "--law", "chinchila"), "no scaling law named"),
        ((*ASK, "--family", "lama"), "did you mean llama?"),
        ((*ASK, "--days", "0"), "--days is 0"),
        ((*ASK, "--days", "-1"), "--days is -1"),
        ((*ASK, "--days", "nan"), "--days is nan"),
        ((*ASK, "--usd", "inf"), "--usd is inf; it must be above 0, and finite"),
        ((*ASK, "--batch-law", "merril"), "did you mean merrill-2025?"),
        ((*ASK, "--tokens-max", "-5T"), "is no number from 1 to 1e18"),
        ((*ASK, "--gpus", "0"), "--gpus is 0"),
        ((*ASK, "--gpus", "2000000"), "described up to"),
        ((*ASK, "--mfu", "1.5"), "--mfu is 1.5"),
        ((*ASK, "--tokens-max", "many"), "--tokens-max 'many' is no number"),
        ((*ASK, "--params", "8 apples"), "is no number"),
        ((*ASK, "--params", "1k"), "the family has"),
        ((*ASK, "--params", "8B", "--model", "llama2-7b"), "both given"),
        ((*ASK, "--tokens-per-param", "-3"), "--tokens-per-param is -3"),
        ((*ASK, "--tokens-per-param", "1e10"), "it must be above 0 and below 1e9"),
        ((*ASK, "--set", "model.layers=3"), "--set model.layers: shapes and plans are what is searched"),
        ((*ASK, "--set", "tp=3"), "shapes and plans are what is searched"),
        (("budget", "--cluster", "gb200-nvl72", "--gpus", "72", "--usd", "1000"), "price of gb200-nvl72 is not known"),
        ((*ASK, "--plot", "x.pdf"), "none of .svg"),
        ((*ASK, "--html", "/nowhere/at/all.html"), "there is no folder"),
        ((*ASK, "--html", ""), "--html is empty"),
        ((*ASK, "--usd", "2 lots"), "--usd '2 lots' is no number"),
        (("budget", "--check", "--cluster", "foo", "--gpus", "3"), "--cluster, --gpus are given"),
        (("budget", "--check", "--grid", "world"), "--grid is given"),
        ((*ASK, "--dayz", "3"), "there is no option --dayz"),
        ((*ASK, "--seq-len", "0"), "seq_len is 0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(args: tuple[str, ...], says: str) -> None:
    assert says in refused(*args)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--gpus", "1", "--days", "3", "--model", "llama3-405b"), "fits no plan"),
        (("--gpus", "8", "--usd", "0.001"), "there is no run"),
        (("--gpus", "8", "--days", "3", "--tokens-max", "100"), "less than one sequence of 4,096"),
        (("--gpus", "8", "--days", "0.01", "--params", "7B", "--tokens-per-param", "2000"),
         "more than these limits afford"),
        (("--gpus", "8", "--days", "3", "--batch-max", "100"), "hint: raise --batch-max"),
    ],
)  # fmt: skip
def test_what_trains_nothing_ends_with_3(args: tuple[str, ...], says: str) -> None:
    assert says in refused("budget", "--cluster", "dgx-h100", *args, code=3)


@pytest.mark.slow
def test_check_shows_the_worst(tmp_path: Path) -> None:
    result = knee("budget", "--check")
    assert result.exit_code == 0
    assert "the worst, llama2-13b-2T" in result.stdout
    data = json.loads(knee("budget", "--check", "--json").stdout)
    assert len(data["runs"]) == 5
    assert tmp_path.exists()
