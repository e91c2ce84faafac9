"""``knee probe kernels`` and ``steps`` from recordings, and what they say when they cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.cli import main
from knee.specs.load import load_cluster

DATA = Path(__file__).parents[2] / "data" / "h200"


def knee(*args: object) -> Result:
    return CliRunner().invoke(main, ["probe", *map(str, args)])


def test_a_recording_becomes_a_cluster_that_simulate_takes(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    result = knee("kernels", "--replay", DATA / "kernels.jsonl", "--out", out)
    assert result.exit_code == 0, result.stderr
    for words in ("products bf16", "held out", "one efficiency instead", "gpu.gemm_frac", "NVIDIA H200"):
        assert words in result.stdout
    assert "1425 of 1425 points" in result.stderr
    loaded = load_cluster(str(out))
    assert loaded.spec.gpu.gemm_frac == pytest.approx(0.727, abs=0.01)
    assert "846 points" in loaded.sources["gpu.gemm_frac"].text
    assert loaded.sources["gpu.gemm_frac"].kind == "fitted"
    assert loaded.spec.node.launch_s == pytest.approx(18e-6, rel=0.1)
    simulated = CliRunner().invoke(main, ["simulate", "llama2-7b", "--cluster", str(out), "--gpus", "8",
                                          "--local-batch", "2", "--why"])
    assert simulated.exit_code == 0
    assert "knee probe kernels, 2026-11-15, NVIDIA H200" in simulated.stdout
    steps = knee("steps", "--replay", DATA / "steps.jsonl", "--out", out, "--json")
    errors = [abs(step["error_frac"]) for step in json.loads(steps.stdout)["steps"]]
    assert len(errors) >= 12
    assert max(errors) < 0.08


def test_json(tmp_path: Path) -> None:
    result = knee("kernels", "--replay", DATA / "kernels.jsonl", "--out", tmp_path / "m.toml", "--quick", "--json")
    answer = json.loads(result.stdout)
    assert answer.keys() == {"readings", "residuals", "held_out", "cluster_file", "base", "values"}
    assert answer["base"] == "dgx-h200"
    assert answer["residuals"]["products bf16"]["median_frac"] < 0.06


def test_a_replay_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = knee("kernels", "--replay", DATA / "kernels.jsonl", "--out", tmp_path / "m.toml", "--quick")
    assert result.exit_code == 0, result.stderr


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("knee.probe.machine.find_spec", lambda _: None)
    for probe in ("kernels", "steps"):
        result = knee(probe, "--out", tmp_path / "m.toml")
        assert result.exit_code == 4
        assert result.stderr == (f"error: knee probe {probe} needs torch\nhint: pip install 'knee[train]'\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("kernel",), "there is no probe 'kernel'"),
        (("kernels", "--out", "mine.json"), "it should end in .toml"),
        (("kernels", "--replay", DATA / "nowhere.jsonl"), "nowhere.jsonl"),
        (("kernels", "--replay", DATA / "steps.jsonl"), "has readings of `knee probe steps`"),
        (("kernels", "--replay", DATA / "kernels.jsonl", "--base", "dgx-h201"), "no cluster named 'dgx-h201'"),
    ],
)
def test_wrong_input(args: tuple[object, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = knee(*args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_recording_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    path.write_text((DATA / "kernels.jsonl").read_text())
    before = path.read_text()
    result = knee("kernels", "--replay", path, "--out", tmp_path / "mine.toml")
    assert result.exit_code == 2
    assert "give another --out" in result.stderr
    assert path.read_text() == before


def test_the_list_of_probes() -> None:
    text = knee("--help").stdout
    for name in ("kernels", "collectives", "power", "steps"):
        assert name in text
