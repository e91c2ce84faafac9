"""What ``knee simulate`` says of how far its answer can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.cli import main
from knee.trust.trust import Trust

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "64", "--local-batch", "2", "--sharding", "fsdp")
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
    assert line.startswith(f"  trust  validated: true throughput {found['low_frac']:+.0%} to {found['high_frac']:+.0%}")
    assert f"in 4 of 5 of {found['basis_runs']} published runs of its kind ({found['like']}; " in line
    assert line.endswith(f", {found['runs']} of them like it in every size")


def test_reasons_stand_below_the_line() -> None:
    lines = knee(*ASK, "--precision", "fp8").stdout.splitlines()
    assert lines[3].startswith("  trust  extrapolated: true throughput at least ")
    assert lines[3].endswith("; none is like it")
    assert lines[4] == "         no published run computed in fp8"


def test_no_basis_is_said() -> None:
    text = knee(*ASK, "--cluster", "mi300x-8").stdout
    assert "  trust  extrapolated: no published run says how far it is from the truth\n" in text
    assert trust(*ASK, "--cluster", "mi300x-8")["low_frac"] is None


@pytest.mark.parametrize("change", ["fabric.nic_bytes_per_s=200Gbit/s", "profile.hop_scale=2", "gpu.hbm_frac=0.8"])
def test_a_value_of_ones_own_is_not_validated(change: str) -> None:
    found = trust(*ASK, "--set", change)
    assert found["label"] == "near"
    assert found["reasons"][0].startswith("values of your own: ")


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
    found = trust(*ASK, "--cluster", str(path))
    assert found["label"] == "near"
    assert found["reasons"][0] == "values of your own in cluster mine: fabric.nic_bytes_per_s"


def test_a_cluster_file_that_only_renames_its_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n', encoding="utf-8")
    assert trust(*ASK, "--cluster", str(path)) == trust(*ASK)


def test_a_gpu_of_ones_own_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n[gpu]\nbf16_flop_per_s = "2 PFLOP/s"\n', encoding="utf-8")
    found = trust(*ASK, "--cluster", str(path))
    assert found["label"] == "extrapolated"
    assert found["reasons"][0] == "a GPU of your own: gpu.bf16_flop_per_s"


def test_the_paper_s_profile_names_its_study() -> None:
    found = trust(*ASK, "--profile", "paper", "--gpus", "2048")
    assert found["label"] == "extrapolated"
    assert "`knee study`" in found["reasons"][-1]


@pytest.mark.slow
def test_what_fits_within_the_error_is_said() -> None:
    for gib in range(40, 120):
        asked = (*ASK, "--set", f"gpu.hbm_bytes={gib}GiB")
        result = knee(*asked)
        unsure = "within the error of the memory model" in result.stdout
        assert unsure == (trust(*asked)["fits"] == "unsure")
        if unsure:
            verdict = "does NOT fit, but within" if result.exit_code else "fits, but within"
            assert verdict in result.stdout
            return
    pytest.fail("no size of memory was within the error")
