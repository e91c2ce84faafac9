"""Studies run: simulated and measured records together, needs of other studies, changed grids, files of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import InputError
from knee.commands.study.claims import Verdict
from knee.commands.study.questions import StudyPoint
from knee.commands.study.record_store import Store
from knee.commands.study.run_study import Ran, points_to_run, recorded, results, strangers, with_needs

MINE = """\
title = "Mine"
kind = "beyond"
question = "What?"
finding = "It is {speed}."

[[grid]]
series = "FSDP"
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
gpus = [1, 2, 4]
local_batch = 2
seq_len = 64

[value.speed]
metric = "tokens_per_s_per_gpu"
at = { gpus = 4 }

[[claim]]
id = "X1"
says = "a step takes longer on more processes"
paper = "longer"
test = [{ test = "trend", metric = "step_s", over = "gpus", goes = "does not fall", noise_frac = 0.1 }]
"""
STORE = Store()
"""Answers are remembered for all tests here."""
Measured = Sequence[tuple[StudyPoint | None, Mapping[str, Any]]]


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return write(tmp_path, MINE)


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def run(*names: str, measured: Measured = (), changes: dict[str, Any] | None = None) -> list[Ran]:
    return results(names, recorded(points_to_run(names, changes), STORE.record), measured, changes)


def real(name: str, gpus: int = 4, **more: Any) -> dict[str, Any]:
    """A measured record of a point: as fast as it is told."""
    point = next(point for point in points_to_run([name]) if point.question.gpus == gpus)
    record = {key: value for key, value in STORE.record(point.question).items() if key not in ("question", "trust")}
    return record | {"kind": "measured", "step_s": 1e-6, "tokens_per_s_per_gpu": 5.0} | more


def of(verdicts: Iterable[Verdict], name: str) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.id == name)


def test_rows_verdicts_and_the_finding(mine: str) -> None:
    [ran] = run(mine)
    assert [(row["gpus"], row["kind"]) for row in ran.rows] == [(1, "simulated"), (2, "simulated"), (4, "simulated")]
    assert of(ran.verdicts, "X1").verdict == "reproduced"
    assert of(ran.verdicts, "X1").kind == "simulated"
    assert ran.finding == f"It is {ran.rows[2]['tokens_per_s_per_gpu']:.3g}." or "," in ran.finding
    assert ran.values.keys() == {"speed"}
    assert ran.trust == "extrapolated"
    assert ran.impossible == ()


def test_a_measured_record_stands_in_for_its_point(mine: str) -> None:
    [ran] = run(mine, measured=[(None, real(mine))])
    assert [(row["gpus"], row["kind"]) for row in ran.rows] == [
        (1, "simulated"),
        (2, "simulated"),
        (4, "simulated"),
        (4, "measured"),
    ]
    assert {row["series"] for row in ran.rows} == {"FSDP"}
    verdict = of(ran.verdicts, "X1")
    # one measured run is no trend, and a trend over both kinds would compare machines
    assert (verdict.verdict, verdict.kind) == ("reproduced", "simulated")
    assert ran.finding == "It is 5. (Measured.)"


def test_measured_records_of_every_point_leave_nothing_simulated(mine: str) -> None:
    every = [(None, real(mine, gpus, step_s=float(gpus))) for gpus in (1, 2, 4)]
    verdict = of(run(mine, measured=every)[0].verdicts, "X1")
    assert (verdict.verdict, verdict.kind) == ("reproduced", "measured")


def test_a_measured_record_of_a_known_point(mine: str) -> None:
    """A run that was started for a point is that point's, whatever it calls its machine."""
    point = points_to_run([mine])[2]
    [ran] = run(mine, measured=[(point, real(mine))])
    assert [row["kind"] for row in ran.rows].count("measured") == 1
    assert ran.finding == "It is 5. (Measured.)"


@pytest.mark.parametrize("change", [
    {"global_batch": 16}, {"seq_len": 128}, {"model": "llama-1b"}, {"cluster": "dgx-h100"}, {"gpus": 3},
])  # fmt: skip
def test_a_record_of_something_else_is_no_point_s(mine: str, change: dict[str, Any]) -> None:
    record = real(mine) | change
    [ran] = run(mine, measured=[(None, record)])
    assert {row["kind"] for row in ran.rows} == {"simulated"}
    answered = list(recorded(points_to_run([mine]), STORE.record))
    assert strangers(answered, [record, real(mine)]) == [record]


def test_another_plan_is_another_point(mine: str) -> None:
    plan = real(mine)["plan"] | {"tp": 2, "dp_shard": 2}
    assert {row["kind"] for row in run(mine, measured=[(None, real(mine, plan=plan))])[0].rows} == {"simulated"}


def test_a_run_that_did_not_end_is_left_out(mine: str) -> None:
    assert {row["kind"] for row in run(mine, measured=[(None, real(mine, step_s=None))])[0].rows} == {"simulated"}


def test_one_record_is_of_every_series_and_study_that_has_its_point(tmp_path: Path) -> None:
    two = MINE + MINE[MINE.index("[[grid]]") : MINE.index("[value")].replace('"FSDP"', '"again"')
    names = [
        write(tmp_path, two.replace("at = { gpus = 4 }", 'at = { gpus = 4, series = "FSDP" }'), "a.toml"),
        write(tmp_path, MINE, "b.toml"),
    ]
    first, second = run(*names, measured=[(None, real(names[1]))])
    assert [row["series"] for row in first.rows if row["kind"] == "measured"] == ["FSDP", "again"]
    assert [row["study"] for row in second.rows if row["kind"] == "measured"] == ["b"]


def test_points_that_differ_in_a_changed_value_only_stay_apart(tmp_path: Path) -> None:
    text = MINE
    for old, new in (
        ('cluster = "cpu"', 'cluster = "dgx-h100"'),
        ("llama-tiny", "llama-1b"),
        ("at = { gpus = 4 }", 'pick = "step_s"'),
        ("gpus = [1, 2, 4]", 'gpus = 16\nset = { "fabric.nic_bytes_per_s" = ["1 GB/s", "2 GB/s"] }'),
        ('over = "gpus", goes = "does not fall"', 'over = "nic_bytes_per_s", goes = "falls"'),
    ):
        text = text.replace(old, new)
    name = write(tmp_path, text)
    [ran] = run(name)
    assert [row["nic_bytes_per_s"] for row in ran.rows] == [1e9, 2e9]
    assert of(ran.verdicts, "X1").verdict == "reproduced"
    point = points_to_run([name])[0]
    record = {k: v for k, v in STORE.record(point.question).items() if k != "question"} | {"kind": "measured"}
    [ran] = run(name, measured=[(None, record)])  # measured on the catalogue's network, which is neither
    assert {row["kind"] for row in ran.rows} == {"simulated"}
    [ran] = run(name, measured=[(point, record | {"step_s": 1e9})])
    assert [row["nic_bytes_per_s"] for row in ran.rows if row["kind"] == "measured"] == [1e9]


def test_a_changed_grid_is_not_held_against_the_claims(mine: str) -> None:
    [ran] = run(mine, changes={"gpus": (2,)})
    assert [row["gpus"] for row in ran.rows] == [2]
    verdict = of(ran.verdicts, "X1")
    assert (verdict.verdict, verdict.found) == ("not testable", "the grid was changed: gpus")
    assert (ran.finding, ran.values) == ("No finding for these runs: no run has gpus 4.", {})
    assert run(mine, changes={"gpus": (4,), "seq_len": (32,)})[0].finding.startswith("It is ")


def test_points_that_cannot_be_are_kept_with_their_reason(tmp_path: Path) -> None:
    [ran] = run(write(tmp_path, MINE.replace("[1, 2, 4]", "4\nplan = { tp = [1, 3] }")))
    assert [row["tp"] for row in ran.rows] == [1]
    assert [(row["tp"], row["kind"]) for row in ran.impossible] == [(3, "impossible")]
    assert ran.impossible[0]["why"]
    assert of(ran.verdicts, "X1").found == "a curve over gpus needs two runs"


def test_data_sheets_and_bandwidths_of_a_file_of_one_s_own(tmp_path: Path) -> None:
    more = """
[[bandwidths]]
series = "{nodes}"
cluster = "dgx-h100"
collective = "all_gather"
nodes = [1, 2]
message = ["1 MiB"]
"""
    name = write(tmp_path, 'hardware = ["dgx-h100", "dgx-a100"]\n' + MINE + more)
    [ran] = run(name)
    assert [row["kind"] for row in ran.rows] == ["simulated"] * 5 + ["catalogue"] * 2
    assert of(ran.verdicts, "X1").verdict == "not testable"  # rows without a step are in its curve
    sheet = 'title = "t"\nkind = "beyond"\nquestion = "q"\nfinding = "f"\nhardware = ["dgx-h100"]\n'
    [ran] = run(write(tmp_path, sheet, "sheet.toml"))
    assert (ran.study.name, len(ran.rows), ran.trust) == ("sheet", 1, None)


def test_studies_that_others_need_are_run() -> None:
    assert [study.name for study in with_needs(["fig13"])] == ["fig13", "fig7"]
    assert [study.name for study in with_needs(["fig2b", "fig2a", "fig2b"])] == ["fig2b", "fig2a"]
    assert {point.study for point in points_to_run(["fig10"])} == {"fig10", "fig6", "fig3"}


def test_claims_about_another_study_s_runs(tmp_path: Path) -> None:
    base = write(tmp_path, MINE, "base.toml")
    text = MINE.replace('id = "X1"', 'id = "X2"').replace('finding = "It is', f'needs = ["{base}"]\nfinding = "It is')
    text = text[: text.index("test = [")] + (
        'test = [{ test = "compares", at = { gpus = 4 }, base = { study = "base", '
        'gpus = 4 }, has = [{ metric = "step_s", than = "no more" }] }]\n'
    )
    name = write(tmp_path, text, "needy.toml")
    [ran] = run(name)
    assert ran.study.name == "needy"
    assert of(ran.verdicts, "X2").verdict == "reproduced"
    # a measured record of the other study's point is not held against this one's simulated point
    [ran] = run(name, measured=[(next(p for p in points_to_run([base]) if p.question.gpus == 4), real(base))])
    assert (of(ran.verdicts, "X2").verdict, of(ran.verdicts, "X2").kind) == ("reproduced", "simulated")
    assert (
        "no run has study base"
        in of(
            results(
                [name], recorded([point for point in points_to_run([name]) if point.study == "needy"], STORE.record)
            )[0].verdicts,
            "X2",
        ).found
    )


def test_two_studies_of_one_name_are_refused(tmp_path: Path) -> None:
    name = write(tmp_path, MINE, "fig9.toml")
    assert run(name)[0].study.title == "Mine"
    with pytest.raises(InputError, match="two studies have the name fig9"):
        run("fig9", name)
