"""``knee probe power`` from a recording, and what it says when it cannot measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import MissingExtra
from knee.commands.main import main
from knee.measure.machine import gpus, nvml
from knee.measure.machine import power_loads as power
from knee.measure.machine.readings import Machine, key_of, read_readings
from knee.specs.load import load_cluster
from refusals import ended, kind, numbers, refused

DATA = Path(__file__).parents[3] / "data" / "h200"
RECORDING = DATA / "power.jsonl"


def knee(*args: object) -> Result:
    return CliRunner().invoke(main, ["probe", "power", *map(str, args)])


def test_a_recording_becomes_a_cluster_that_simulate_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)  # a replay needs neither
    out = tmp_path / "mine.toml"
    result = knee("--replay", RECORDING, "--out", out)
    assert result.exit_code == 0, result.stderr
    named = ("NVIDIA H200", "attention_flash2", "1,980 MHz", "dgx-h200", "gpu.cap_sharpness")
    assert all(word in result.stdout for word in named)
    assert numbers(result.stderr)[0] == 22
    assert read_readings(tmp_path / "mine.power.jsonl") == read_readings(RECORDING)
    loaded = load_cluster(str(out))
    assert loaded.spec.gpu.gemm_j_per_flop == pytest.approx(1.04e-12, rel=0.02)
    assert loaded.sources["gpu.idle_w"].kind == "measured"
    assert "knee probe power, 2026-11-15, NVIDIA H200" in loaded.sources["gpu.hbm_j_per_byte"].text
    simulated = CliRunner().invoke(
        main, ["simulate", "llama2-7b", "--cluster", str(out), "--gpus", "8", "--local-batch", "2", "--why"]
    )
    assert simulated.exit_code == 0
    assert "knee probe power" in simulated.stdout


def test_json(tmp_path: Path) -> None:
    answer = json.loads(knee("--replay", RECORDING, "--out", tmp_path / "m.toml", "--json").stdout)
    assert answer.keys() == {"readings", "by", "loads", "errors", "cluster_file", "base", "left_out", "values"}
    assert len(answer["loads"]) == answer["errors"]["all"]["points"] == 22
    assert answer["errors"]["all"]["median_frac"] <= 0.04
    assert answer["errors"]["around_cap"]["median_frac"] <= 0.04
    assert answer["errors"]["held_back"].keys() == {"copy", "attention", "mixed"}
    assert answer["values"]["gpu.tdp_w"]["value"] == "700 W"


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("knee.measure.machine.machine_facts.find_spec", lambda _: None)
    _, error = ended("probe", "power", "--out", tmp_path / "m.toml")
    assert (error.code, error.hint) == ("missing-extra", "pip install 'knee[train]'")
    assert list(tmp_path.iterdir()) == []


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(power, "need_torch", lambda _: None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpus, "nvml_library", lambda: None)
    assert isinstance(ended("probe", "power", "--out", tmp_path / "m.toml")[1], MissingExtra)


def test_a_torch_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Whole:
        called, mig = "GPU 0", False

        def others(self) -> list[Any]:
            return []

        def free_bytes(self) -> float:
            return 1e12

    monkeypatch.setattr(power, "Nvml", Whole)
    monkeypatch.setattr(power, "need_torch", lambda _: None)
    cuda = SimpleNamespace(is_available=lambda: False)
    made = SimpleNamespace(__version__="2.13", cuda=cuda, version=SimpleNamespace(cuda=None))
    monkeypatch.setitem(sys.modules, "torch", made)
    error = refused("probe", "power", "--out", tmp_path / "m.toml")
    assert error.code == "no-gpu"
    assert {"0", "2.13"} <= set(error.message.split())


class Gpu:
    """Stands in for NVML's."""

    called, has_counter = "GPU 0", True


def measuring(monkeypatch: pytest.MonkeyPatch, measure: Any) -> Machine:
    """A machine that measures by a function."""
    machine = read_readings(RECORDING).machine
    monkeypatch.setattr(power, "ready_gpu", lambda *, anyway: (machine, Gpu()))  # noqa: ARG005
    monkeypatch.setattr(power, "measure_power", measure)
    return machine


RECORDED = {r["key"]: r for r in read_readings(RECORDING).records}


def test_an_interrupted_probe_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C keeps what was measured; the same command measures the rest and no more."""
    out, asked = tmp_path / "m.toml", []

    def measure(point: Any, _: Any) -> Any:
        asked.append(key_of(point))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return RECORDED[key_of(point)] | {"hot_frac": 0.5}

    measuring(monkeypatch, measure)
    stopped = knee("--out", out, "--quick")
    assert stopped.exit_code == 130
    assert len(read_readings(tmp_path / "m.power.jsonl").records) == 3
    assert not out.exists()
    rest = knee("--out", out, "--quick")
    assert rest.exit_code == 0, rest.stderr
    assert {3.0, 10.0} <= {*numbers(rest.stderr)}
    assert len(asked) == 11
    assert out.exists()


def test_a_board_without_a_counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by = nvml.SamplingMeter.by
    measuring(monkeypatch, lambda point, _: RECORDED[key_of(point)] | {"by": by, "sm_hz": None, "instant_w": None})
    monkeypatch.setattr(Gpu, "has_counter", False)
    result = knee("--out", tmp_path / "m.toml", "--quick")
    assert result.exit_code == 0, result.stderr
    assert by in load_cluster(str(tmp_path / "m.toml")).sources["gpu.hbm_j_per_byte"].text


def test_loads_that_fail_leave_too_little(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(point: Any, _: Any) -> Any:
        if point.load == "copy":
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        return RECORDED[key_of(point)]

    measuring(monkeypatch, measure)
    error = refused("probe", "power", "--out", tmp_path / "m.toml", "--quick")
    assert error.code == "no-readings"
    assert "copy" in error.message


def test_wrong_input(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("what is this?\nno readings\n")
    cases: tuple[tuple[tuple[str | Path, ...], tuple[str, str | None]], ...] = (
        (("--out", "mine.json"), ("not-a-toml-path", "out")),
        (("--replay", tmp_path / "nowhere.jsonl"), ("no-file", None)),
        (("--replay", wrong, "--out", tmp_path / "m.toml"), ("not-a-reading", "line 1")),
        (("--replay", DATA / "steps.jsonl", "--out", tmp_path / "m.toml"), ("another-probe", "replay")),
        (("--replay", RECORDING, "--out", tmp_path / "m.toml", "--base", "dgx-h201"), ("unknown-name", "cluster")),
        (("--replay", RECORDING, "--out", wrong / "m.toml"), ("not-writable", None)),
    )
    for args, found in cases:
        assert kind(refused("probe", "power", *args)) == found


def test_an_unknown_gpu_needs_a_base(tmp_path: Path) -> None:
    lines = RECORDING.read_text(encoding="utf-8").replace("NVIDIA H200", "NVIDIA GeForce RTX 4090")
    recording = tmp_path / "rtx.jsonl"
    recording.write_text(lines, encoding="utf-8")
    error = refused("probe", "power", "--replay", recording, "--out", tmp_path / "m.toml")
    assert kind(error) == ("unknown-gpu", "base")
    assert knee("--replay", recording, "--out", tmp_path / "m.toml", "--base", "dgx-h100").exit_code == 0
