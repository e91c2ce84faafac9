"""``knee probe collectives``: what it says without a GPU, and everything downstream of a recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from knee.commands.main import main
from refusals import ended, kind, refused

DATA = Path(__file__).parents[3] / "data" / "gloo"
RECORDING = DATA / "collectives-4.jsonl"
RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in RANK:
        monkeypatch.delenv(name, raising=False)


def ask(*options: str) -> Result:
    return CliRunner().invoke(main, ["probe", "collectives", *options])


def replay(*options: str) -> Result:
    result = ask("--replay", str(RECORDING), *options)
    assert result.exit_code == 0, result.output
    return result


def test_a_recording_becomes_a_table_a_fit_and_a_cluster_file() -> None:
    text = replay().stdout
    for word in ("algbw", "busbw", "all_to_all", "world: 4 ranks", "tp: 2 x 2 ranks", "node.hop_s", "mine.toml"):
        assert word in text


def test_the_simulator_takes_the_cluster_file_as_it_is() -> None:
    replay()
    job = [
        "simulate",
        "llama-1b",
        "--cluster",
        "mine.toml",
        "--gpus",
        "4",
        "--local-batch",
        "1",
        "--seq-len",
        "128",
        "--json",
        "--why",
    ]
    result = CliRunner().invoke(main, job)
    assert result.exit_code in (0, 3), result.output  # whether it fits is another question
    assert "knee probe collectives" in Path("mine.toml").read_text(encoding="utf-8")


def test_json_has_everything() -> None:
    answer = json.loads(replay("--json").stdout)
    point = next(p for p in answer["points"] if p["collective"] == "all_reduce" and p["group"] == 4)
    assert point["algbw_bytes_per_s"] == pytest.approx(point["size_bytes"] / point["time_s"])
    assert point["busbw_bytes_per_s"] == pytest.approx(1.5 * point["algbw_bytes_per_s"])
    assert {"latency_s", "hop_s", "bus_bytes_per_s", "residuals", "held_out"} <= answer["fits"][0].keys()
    assert {"compute_slowdown_frac", "comm_slowdown"} <= answer["contention"][0].keys()
    assert answer["values"]["node.gpus"]["value"] == 4


def test_a_replay_does_not_load_torch() -> None:
    code = (
        "import sys; from knee.commands.main import main\n"
        f"try: main(['probe', 'collectives', '--replay', {str(RECORDING)!r}])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(DATA.parents[1] / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)


def test_half_a_recording_is_enough() -> None:
    lines = RECORDING.read_text(encoding="utf-8").splitlines()
    Path("half.jsonl").write_text("\n".join(lines[: len(lines) // 2]) + '\n{"key": "cut o', encoding="utf-8")
    result = ask("--replay", "half.jsonl")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "found", "named"),
    [
        (("--collectives", "all_redcue"), ("unknown-choice", "collectives"), "all_reduce"),
        (("--collectives", ","), ("missing-argument", "collectives"), "all_reduce"),
        (("--max-size", "big"), ("not-an-amount", "max_size"), ""),
        (("--max-size", "12 B"), ("out-of-range", "max_size"), ""),
        (("--out", "mine.json"), ("not-a-toml-path", "out"), ""),
        (("--base", "dgx-h1000"), ("unknown-name", "cluster"), "dgx-h100"),
        (("--quik",), ("unknown-option", "--quik"), "--quick"),
        (("--backend", "mpi"), ("unknown-choice", "backend"), ""),
    ],
)
def test_bad_input_is_refused(options: tuple[str, ...], found: tuple[str, str | None], named: str) -> None:
    error = refused("probe", "collectives", *options)
    assert kind(error) == found
    assert named in str(error.hint)


def test_a_recording_of_another_probe_is_refused() -> None:
    error = refused("probe", "collectives", "--replay", DATA.parent / "h200" / "power.jsonl")
    assert kind(error) == ("another-probe", "replay")


@pytest.fixture
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is asked of torch before ranks meet; importing the real one takes seconds."""
    made = ModuleType("torch")
    made.__dict__.update(__spec__=ModuleSpec("torch", None), cuda=SimpleNamespace(device_count=lambda: 0))
    monkeypatch.setitem(sys.modules, "torch", made)


@pytest.mark.usefixtures("_torch")
def test_without_torchrun_it_says_how() -> None:
    hint = refused("probe", "collectives").hint
    assert "torchrun --nproc-per-node 8 -m knee probe collectives --out mine.toml" in str(hint)


@pytest.mark.usefixtures("_torch")
def test_one_process_has_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(RANK, ("0", "1", "0", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert refused("probe", "collectives").code == "too-few-gpus"


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize(("rank", "says"), [("0", True), ("1", False)])
def test_one_rank_tells_of_a_mistake(monkeypatch: pytest.MonkeyPatch, rank: str, says: bool) -> None:
    for name, value in zip(RANK, (rank, "3", rank, "2"), strict=True):
        monkeypatch.setenv(name, value)
    result = ask()
    assert result.exit_code == 2
    assert bool(result.stderr) == says


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knee.measure.machine.machine_facts.find_spec", lambda _: None)
    _, error = ended("probe", "collectives")
    assert (error.code, error.hint) == ("missing-extra", "pip install 'knee[train]'")
