"""``knee probe kernels`` and ``steps`` from recordings, and what they say when they cannot."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from knee.commands.main import main
from knee.specs.load import load_cluster
from refusals import ended, kind, numbers, refused

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[3] / "data" / "h200"


def knee(*args: object) -> Result:
    return CliRunner().invoke(main, ["probe", *map(str, args)])


def test_a_recording_becomes_a_cluster_that_simulate_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # a replay needs none
    out = tmp_path / "mine.toml"
    result = knee("kernels", "--replay", DATA / "kernels.jsonl", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert all(word in result.stdout for word in ("gpu.gemm.bf16.peak_frac", "NVIDIA H200"))
    assert numbers(result.stderr)[0] == 1425
    loaded = load_cluster(str(out))
    rate = loaded.spec.gpu.gemm["bf16"]
    assert rate.peak_frac * rate.sustained_frac == pytest.approx(0.727, abs=0.01)
    assert 846 in numbers(loaded.sources["gpu.gemm.bf16.peak_frac"].text)
    assert loaded.sources["gpu.gemm.bf16.peak_frac"].kind == "fitted"
    assert loaded.spec.node.launch_scale == pytest.approx(1.0, rel=0.05)
    assert "unfused" not in out.read_text()
    simulated = CliRunner().invoke(
        main, ["simulate", "llama2-7b", "--cluster", str(out), "--gpus", "8", "--local-batch", "2", "--why"]
    )
    assert simulated.exit_code == 0
    assert "knee probe kernels, 2026-11-15, NVIDIA H200" in simulated.stdout
    steps = knee("steps", "--replay", DATA / "steps.jsonl", "--out", out, "--json")
    errors = [abs(step["error_frac"]) for step in json.loads(steps.stdout)["steps"]]
    assert len(errors) >= 12
    assert max(errors) < 0.08


def test_json(tmp_path: Path) -> None:
    result = knee("kernels", "--replay", recorded(tmp_path), "--out", tmp_path / "m.toml", "--json")
    answer = json.loads(result.stdout)
    assert answer.keys() == {"readings", "residuals", "held_out", "cluster_file", "base", "left_out", "values"}
    assert answer["base"] == "dgx-h200"
    assert answer["residuals"]["products bf16"]["median_frac"] < 0.06


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("knee.measure.machine.machine_facts.find_spec", lambda _: None)
    for probe in ("kernels", "steps"):
        _, error = ended("probe", probe, "--out", tmp_path / "m.toml")
        assert (error.code, error.hint) == ("missing-extra", "pip install 'knee[train]'")


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("kernel",), ("unknown-command", None)),
        (("kernels", "--out", "mine.json"), ("not-a-toml-path", "out")),
        (("kernels", "--out", ".toml"), ("not-a-toml-path", "out")),
        (("kernels", "--quick", "--replay", DATA / "kernels.jsonl"), ("contradiction", "quick")),
        (("kernels", "--base", "mine.toml"), ("would-overwrite", "base")),
        (("kernels", "--base", "nowhere.toml"), ("no-file", "cluster")),
        (("kernels", "--replay", DATA / "nowhere.jsonl"), ("no-file", None)),
        (("kernels", "--replay", DATA / "steps.jsonl"), ("another-probe", "replay")),
        (("kernels", "--replay", DATA / "kernels.jsonl", "--base", "dgx-h201"), ("unknown-name", "cluster")),
    ],
)
def test_wrong_input(
    args: tuple[str | Path, ...], found: tuple[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kind(refused("probe", *args)) == found
    assert list(tmp_path.iterdir()) == []


def test_a_recording_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.jsonl"
    path.write_text((DATA / "kernels.jsonl").read_text())
    before = path.read_text()
    error = refused("probe", "kernels", "--replay", path, "--out", tmp_path / "mine.toml")
    assert kind(error) == ("would-overwrite", "out")
    assert path.read_text() == before


def test_the_list_of_probes() -> None:
    text = knee("--help").stdout
    for name in ("kernels", "collectives", "power", "steps"):
        assert name in text


def recorded(tmp_path: Path, change: dict[str, object] | None = None, where: dict[str, object] | None = None) -> Path:
    """Every third of the H200's kernels, which is fitted sooner, with some readings changed."""
    first, *rest = [json.loads(line) for line in (DATA / "kernels.jsonl").read_text().splitlines()]
    lines = [first, *rest[::3]]
    for line in lines[1:]:
        if where and all(line.get(key) == value for key, value in where.items()):
            line.update(change or {})
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_points_that_failed_do_not_stop_the_fit(tmp_path: Path) -> None:
    where = {"kernel": "flash2", "forward": False, "seq_len": 32768}
    path = recorded(tmp_path, {"error": "out of memory"}, where)
    result = knee("kernels", "--replay", path, "--out", tmp_path / "m.toml")
    assert result.exit_code == 0, result.stderr
    assert "out of memory" in result.stderr


def test_a_replay_does_not_write_over_readings(tmp_path: Path) -> None:
    out, path = tmp_path / "m.toml", tmp_path / "m.kernels.jsonl"
    path.write_text(recorded(tmp_path, {"median_s": 1.0}, {"m": 4096}).read_text())
    before, recording = path.read_text(), recorded(tmp_path)
    assert recording.read_text() != before
    assert kind(refused("probe", "kernels", "--replay", recording, "--out", out)) == ("would-overwrite", "out")
    assert path.read_text() == before
    assert knee("kernels", "--replay", recording, "--out", out, "--fresh").exit_code == 0


def test_a_file_is_of_one_machine(tmp_path: Path) -> None:
    out = tmp_path / "m.toml"
    assert knee("power", "--replay", DATA / "power.jsonl", "--out", out).exit_code == 0
    recording = DATA.parent / "gloo" / "collectives-2.jsonl"
    assert kind(refused("probe", "collectives", "--replay", recording, "--out", out)) == ("other-machine", "out")


def test_an_unfinished_probe_does_not_hold_up_another(tmp_path: Path) -> None:
    lines = (DATA / "kernels.jsonl").read_text().splitlines()[:5]
    (tmp_path / "m.kernels.jsonl").write_text("\n".join(lines) + "\n")
    result = knee("power", "--replay", DATA / "power.jsonl", "--out", tmp_path / "m.toml", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["left_out"].keys() == {"kernels"}
    assert load_cluster(str(tmp_path / "m.toml")).spec.gpu.cap_sharpness == pytest.approx(18.2, rel=0.05)


def test_another_card_of_that_name_needs_a_base(tmp_path: Path) -> None:
    path = tmp_path / "pcie.jsonl"
    text = (DATA / "kernels.jsonl").read_text()
    text = text.replace("NVIDIA H200", "NVIDIA H100 PCIe").replace('"sms": 132', '"sms": 114')
    path.write_text(text)
    error = refused("probe", "kernels", "--replay", path, "--out", tmp_path / "m.toml")
    assert kind(error) == ("unknown-gpu", "base")
    assert 114 in numbers(error.message)


def test_an_unfinished_probe_of_a_processor_does_not_hold_up_another(tmp_path: Path) -> None:
    gloo = DATA.parent / "gloo" / "collectives-2.jsonl"
    header = json.loads(gloo.read_text().splitlines()[0]) | {"probe": "kernels"}
    (tmp_path / "c.kernels.jsonl").write_text(json.dumps(header) + "\n")
    result = knee("collectives", "--replay", gloo, "--out", tmp_path / "c.toml", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["left_out"].keys() == {"kernels"}


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ({"kind": "gemm"}, {"layout": "bogus"}),
        ({"kind": "gemm"}, {"m": -5}),
        ({"kind": "gemm"}, {"kind": ["gemm"]}),
        ({"kind": "gemm"}, {"error": None}),
        ({"kind": "attention"}, {"head_dim": 0}),
        ({"kind": "stream"}, {"operation": "bogus"}),
        ({"probe": "kernels"}, {"memory_bytes": float("nan")}),
        ({"probe": "kernels"}, {"device": "two\nlines"}),
    ],
)
def test_a_recording_that_no_probe_wrote(where: dict[str, object], change: dict[str, object], tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (DATA / "kernels.jsonl").read_text().splitlines()]
    next(line for line in lines if all(line.get(k) == v for k, v in where.items())).update(change)
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert refused("probe", "kernels", "--replay", path, "--out", tmp_path / "m.toml").code == "not-a-reading"


def test_a_base_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text('base = "dgx-h200"\nusd_per_gpu_h = "1.25 USD/h"\n')
    Path("out").mkdir()
    result = knee("kernels", "--replay", DATA / "kernels.jsonl", "--out", "out/mine.toml", "--base", "base.toml")
    assert result.exit_code == 0
    assert tomllib.loads(Path("out/mine.toml").read_text())["base"] == "../base.toml"
    assert load_cluster("out/mine.toml").spec.usd_per_gpu_h == pytest.approx(1.25)
