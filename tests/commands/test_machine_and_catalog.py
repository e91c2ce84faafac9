"""Probes, doctor, catalogue, reports and the budget check as a script uses them: results equal the command's JSON."""

from __future__ import annotations

import doctest
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import knee
from knee.base.errors import InputError
from knee.commands.main import main
from knee.measure.machine.listener import ProbeListener
from knee.measure.machine.readings import Readings
from knee.show.result import Result

DATA = Path(__file__).parents[2] / "data"


def printed(*words: object) -> Any:
    done = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def plain(answer: Result | None) -> Any:
    assert answer is not None
    return json.loads(json.dumps(answer.to_dict()))


@pytest.mark.parametrize(
    ("probe", "ask", "recording"),
    [
        ("power", knee.probe_power, "h200/power.jsonl"),
        ("steps", knee.probe_steps, "h200/steps.jsonl"),
        ("collectives", knee.probe_collectives, "gloo/collectives-4.jsonl"),
        pytest.param("kernels", knee.probe_kernels, "h200/kernels.jsonl", marks=pytest.mark.slow),
    ],
)
def test_a_probe_equals_what_its_command_prints(
    probe: str, ask: Callable[..., Result | None], recording: str, tmp_path: Path
) -> None:
    out = tmp_path / "mine.toml"
    answer = ask(out, replay=DATA / recording)
    assert answer is not None
    assert plain(answer) == printed("probe", probe, "--out", out, "--replay", DATA / recording)
    assert len(answer.rows()) > 1


def test_a_listener_hears_how_a_probe_goes(tmp_path: Path) -> None:
    lines = (DATA / "h200" / "power.jsonl").read_text(encoding="utf-8").splitlines()
    failed = json.loads(lines[-1]) | {"error": "out of memory"}
    recording = tmp_path / "recording.jsonl"
    recording.write_text("\n".join([*lines[:-1], json.dumps(failed)]), encoding="utf-8")
    heard: list[object] = []

    class Listener(ProbeListener):
        def replayed(self, path: Path, readings: int) -> None:
            heard.append((path, readings))

        def failed(self, readings: Readings) -> None:
            heard.append([record["error"] for record in readings.failed])

    knee.probe_power(tmp_path / "mine.toml", replay=recording, listener=Listener())
    assert heard == [(recording, len(lines) - 1), ["out of memory"]]


@pytest.mark.parametrize(
    ("ask", "code", "field"),
    [
        (lambda: knee.probe_kernels("mine.json"), "not-a-toml-path", "out"),
        (lambda: knee.probe_kernels(quick=True, replay="a.jsonl"), "contradiction", "quick"),
        (lambda: knee.probe_kernels(base="mine.toml"), "would-overwrite", "base"),
        (lambda: knee.probe_steps(device="tpu"), "unknown-choice", "device"),  # type: ignore[arg-type]
        (lambda: knee.probe_collectives(backend="mpi"), "unknown-choice", "backend"),  # type: ignore[arg-type]
        (lambda: knee.probe_collectives(collectives=["all_redcue"]), "unknown-choice", "collectives"),
        (lambda: knee.probe_collectives(max_size="big"), "not-an-amount", "max_size"),
        (lambda: knee.probe_power(replay=DATA / "h200" / "steps.jsonl"), "another-probe", "replay"),
        (lambda: knee.catalog_entry("llama27b"), "unknown-name", "name"),
        (lambda: knee.catalog_entry("kaplan-2020"), "unknown-choice", "kind"),
        (lambda: knee.read_records([]), "missing-argument", "records"),
        (lambda: knee.read_records(DATA / "h200" / "train", by="colour"), "unknown-choice", "by"),
    ],
)
def test_errors_have_codes_and_fields(
    ask: Any, code: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        ask()
    assert (refused.value.code, refused.value.field) == (code, field)
    assert "--" not in f"{refused.value}{refused.value.hint}"
    assert not list(tmp_path.iterdir())


def test_the_catalogue() -> None:
    known = knee.catalog_entries()
    assert plain(known) == printed("catalog")
    assert {"kind": "model", "name": "llama2-7b"} in known.rows()
    for name in ("llama2-7b", "dgx-h100", "llama2-7b-2T", "constants"):
        assert plain(knee.catalog_entry(name)) == printed("catalog", name)
    laws = [knee.catalog_entry("kaplan-2020", kind=kind) for kind in ("scaling_laws", "critical_batches")]
    assert [plain(law) for law in laws] == printed("catalog", "kaplan-2020")
    assert knee.catalog_entry("llama2-7b").spec == knee.load_model("llama2-7b").spec


def test_studies() -> None:
    known = knee.list_studies()
    assert [plain(one) for one in known] == printed("study", "list")
    fig6 = knee.describe_study("fig6")
    assert plain(fig6) == printed("study", "show", "fig6")
    (row,) = [one for one in known if one.name == "fig6"]
    assert (row.points, row.claims) == (len(fig6.rows()), tuple(claim.id for claim in fig6.study.claim))


@pytest.mark.slow
def test_records(tmp_path: Path) -> None:
    folder = DATA / "h200" / "train"
    answer = knee.read_records(folder, simulate=True)
    assert plain(answer) == printed("report", folder, "--simulate")
    assert answer.notes
    pytest.importorskip("vl_convert")
    answer.write_page(tmp_path / "runs.html", title="Ours")
    assert "<h1>Ours</h1>" in (tmp_path / "runs.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_published_costs() -> None:
    assert plain(knee.budget_check()) == printed("budget", "--check")


@pytest.mark.parametrize("module", ["doctor", "catalog", "probe", "report"])
def test_examples_are_true(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"knee.commands.{module}.api"))
    assert tried
    assert not failed
