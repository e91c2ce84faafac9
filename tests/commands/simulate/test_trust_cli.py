"""What ``knee simulate`` says of how far its answer can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import knee as library
from knee.commands.main import main
from knee.specs.notes import code_of
from knee.trust.trust import Trust

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "64", "--local-batch", "2", "--sharding", "fsdp",
       "--profile", "llm-foundry")  # fmt: skip
KEYS = {
    "label",
    "runs",
    "kind_runs",
    "basis_runs",
    "sources",
    "covered_frac",
    "low_frac",
    "high_frac",
    "median_error_frac",
    "memory_low_frac",
    "memory_high_frac",
    "like",
    "reasons",
    "fits",
}


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def trust(*args: str) -> dict[str, Any]:
    result = knee(*args, "--json")
    assert result.exit_code in (0, 3), result.stderr
    found = json.loads(result.stdout)["trust"]
    assert isinstance(found, dict)
    return found


def asked(**changes: Any) -> Trust:
    """The same question in Python, where reasons have codes."""
    same: dict[str, Any] = {"cluster": "dgx-h100", "gpus": 64, "local_batch": 2, "sharding": "fsdp"} | {
        "profile": "llm-foundry"
    }
    return library.simulate("llama2-7b", **(same | changes)).trust


def test_json_has_the_promised_keys() -> None:
    found = trust(*ASK)
    assert found.keys() >= KEYS
    assert found.keys() == {*Trust.__slots__, "fits"}
    assert found["label"] == "validated"
    assert found["fits"] in ("yes", "unsure")


def test_the_line_below_the_question_says_the_same() -> None:
    found, lines = trust(*ASK), knee(*ASK).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("  trust  ")]
    assert lines.index(line) == 3
    for part in (
        "validated",
        f"{-found['low_frac']:.0%} below",
        f"{found['high_frac']:.0%} above",
        f"{found['covered_frac']:.0%}",
    ):
        assert part in line
    for count in (found["basis_runs"], found["runs"]):
        assert f" {count:,} " in line


def test_reasons_stand_below_the_line() -> None:
    lines = knee(*ASK, "--cp", "2").stdout.splitlines()
    assert lines[3].split()[:2] == ["trust", "extrapolated"]
    found = asked(cp=2)
    assert code_of(found.reasons[0]) == "no-run-of-kind"
    assert lines[4].strip() == found.reasons[0]


def test_no_basis_is_said() -> None:
    found = trust(*ASK, "--cluster", "cpu", "--profile", "eager")
    assert (found["label"], found["low_frac"], found["high_frac"]) == ("extrapolated", None, None)
    assert "extrapolated" in knee(*ASK, "--cluster", "cpu", "--profile", "eager").stdout.splitlines()[3]


@pytest.mark.parametrize("change", ["fabric.nic_bytes_per_s=200Gbit/s", "profile.hop_scale=2", "gpu.hbm_frac=0.8"])
def test_a_value_of_ones_own_is_not_validated(change: str) -> None:
    found = asked(overrides=[tuple(change.split("="))])
    assert (found.label, code_of(found.reasons[0])) == ("near", "own-values")
    assert list(found.reasons) == trust(*ASK, "--set", change)["reasons"]


@pytest.mark.parametrize("change", ["fabric.nic_bytes_per_s=400Gbit/s", "gpu.hbm_bytes_per_s=3.35TB/s"])
def test_the_catalogue_s_own_value_changes_nothing(change: str) -> None:
    assert trust(*ASK, "--set", change) == trust(*ASK)


def test_a_network_of_1_gbit_is_not_validated() -> None:
    found, usual = trust(*ASK, "--set", "fabric.nic_bytes_per_s=1Gbit/s"), trust(*ASK)
    assert found["label"] in ("near", "extrapolated")
    assert found["low_frac"] < usual["low_frac"]


def test_a_price_changes_nothing() -> None:
    assert trust(*ASK, "--set", "usd_per_gpu_h=3") == trust(*ASK)


def test_a_cluster_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n[fabric]\nnic_bytes_per_s = "200 Gbit/s"\n', encoding="utf-8")
    found = asked(cluster=path)
    assert (found.label, code_of(found.reasons[0])) == ("near", "own-values")
    assert found.reasons[0].endswith("fabric.nic_bytes_per_s")


def test_a_cluster_file_that_only_renames_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n', encoding="utf-8")
    assert trust(*ASK, "--cluster", str(path)) == trust(*ASK)


def test_a_gpu_of_ones_own_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n[gpu]\nbf16_flop_per_s = "2 PFLOP/s"\n', encoding="utf-8")
    found = asked(cluster=path)
    assert (found.label, code_of(found.reasons[0])) == ("extrapolated", "own-gpu")
    assert found.reasons[0].endswith("gpu.bf16_flop_per_s")


def test_the_paper_s_profile_names_its_study() -> None:
    found = asked(profile="paper", gpus=2048)
    assert (found.label, code_of(found.reasons[-1])) == ("extrapolated", "fitted-to-paper")


@pytest.mark.slow
def test_what_fits_within_the_error_is_said() -> None:
    for gib in range(40, 120):
        question = (*ASK, "--set", f"gpu.hbm_bytes={gib}GiB")
        result = knee(*question)
        unsure = "within the error of the memory model" in result.stdout  # the one word of the table for it
        assert unsure == (trust(*question)["fits"] == "unsure")
        if unsure:
            assert ("NOT" in result.stdout) == (result.exit_code == 3)
            return
    pytest.fail("no size of memory was within the error")
