"""Study files: what is read and what is refused; and that the catalogue's own say nothing of columns that no run
has."""

from __future__ import annotations

import copy
import random
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import InputError, KneeError
from knee.commands.study.budget_rows import budget_rows
from knee.commands.study.claims import judge
from knee.commands.study.questions import points_of
from knee.commands.study.record_store import IMPOSSIBLE, Store
from knee.commands.study.rows import bandwidth_rows, hardware_row, impossible_row, step_row
from knee.commands.study.run_study import sheet_rows
from knee.commands.study.study_file import (
    FOLDER,
    Study,
    check_study,
    laid_over_common,
    load_study,
    study_names,
    uncounted,
)
from knee.specs.check import SeveralMistakes, all_keys
from refusals import caught, kind

MINE = """\
title = "Mine"
kind = "beyond"
question = "What?"
finding = "It is {speed}."

[common]
model = "llama-1b"
cluster = "dgx-h100"
profile = "eager"
seq_len = 1024
local_batch = 1
plan = { recompute = "none", tp = 1 }

[[grid]]
series = "TP {tp}"
gpus = [8, 16]
plan = { tp = [1, 2] }

[[grid]]
series = "large"
gpus = 8
global_batch = 32
seq_len = 2048

[value.speed]
metric = "tokens_per_s"
at = { series = "TP 1", gpus = 8 }

[[claim]]
id = "X1"
says = "tokens/s rise"
paper = "rise"
test = [{ test = "trend", metric = "tokens_per_s", over = "gpus", at = { series = "TP 1" }, goes = "rises" }]
"""
BANDWIDTHS = """
[[bandwidths]]
series = "{nodes}"
cluster = "dgx-h100"
collective = "all_gather"
nodes = [1, 2]
message = ["1 MiB"]
"""


def load(folder: Path, text: str, name: str = "mine.toml") -> Study:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_study(str(path))


def refused(folder: Path, text: str) -> KneeError:
    error = caught(lambda: load(folder, text))
    assert isinstance(error, InputError)
    assert error.message.startswith(("mine.toml: ", "mine.toml has "))
    assert error.hint
    assert all(len(line) < 400 for line in error.message.splitlines())
    return error


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    study = load(tmp_path, MINE)
    assert (study.name, study.kind, study.title) == ("mine", "beyond", "Mine")
    assert [claim.id for claim in study.claim] == ["X1"]


def test_common_lies_under_every_grid(tmp_path: Path) -> None:
    first, second = load(tmp_path, MINE).grid
    assert (first.model, first.cluster, first.seq_len, first.local_batch) == ("llama-1b", "dgx-h100", 1024, 1)
    assert first.plan == {"recompute": "none", "tp": (1, 2)}  # plans are joined option by option
    assert (second.seq_len, second.plan) == (2048, {"recompute": "none", "tp": 1})
    assert (second.local_batch, second.global_batch) == (None, 32)  # a batch of its own replaces either


TEST = "claim.0.test.0"


@pytest.mark.parametrize(("old", "new", "code", "field"), [
    ("title =", "titel =", "unknown-field", "titel"),
    ('kind = "beyond"', 'kind = "other"', "unknown-choice", "kind"),
    ('title = "Mine"', "title = 3", "wrong-type", "title"),
    ("[common]", "common = 3\n[x]", "wrong-type", "common"),
    ("[[grid]]\nseries = \"large\"", "[[gird]]\nseries = \"large\"", "unknown-field", "gird"),
    ("gpus = 8\n", "", "missing-field", "grid.1.gpus"),
    ("gpus = 8\n", 'gpus = "eight"\n', "wrong-type", "grid.1.gpus"),
    ("gpus = 8\n", "gpus = 8.5\n", "wrong-type", "grid.1.gpus"),
    ("gpus = 8\n", "gpus = 0\n", "wrong-type", "grid.1.gpus"),
    ("gpus = 8\n", "gpus = []\n", "wrong-type", "grid.1.gpus"),
    ("gpus = 8\n", "gpus = true\n", "wrong-type", "grid.1.gpus"),
    ("seq_len = 2048", "seq_len = -1", "wrong-type", "grid.1.seq_len"),
    ("local_batch = 1\n", "local_batch = nan\n", "wrong-type", "grid.0.local_batch"),
    ("local_batch = 1\n", "", "missing-field", "grid.0.local_batch"),
    ("global_batch = 32", "global_batch = 32\nlocal_batch = 1", "contradiction", "grid.1.local_batch"),
    ("plan = { tp = [1, 2] }", "plan = 3", "wrong-type", "grid.0.plan"),
    ("plan = { tp = [1, 2] }", "plan = { tpp = [1, 2] }", "unknown-field", "grid.0.plan.tpp"),
    ("plan = { tp = [1, 2] }", 'plan = { tp = "2" }', "not-a-number", "grid.0.plan.tp"),
    ("plan = { tp = [1, 2] }", 'set = { "fabric.nic" = 1 }', "unknown-field", "grid.0.set.fabric.nic"),
    ("plan = { tp = [1, 2] }", 'pick = "best"', "unknown-choice", "grid.0.pick"),
    ("{speed}", "{sped}", "missing-field", "value.sped"),
    ("{speed}", "{", "not-a-format", "finding"),
    ("[value.speed]", "[value.speed]\nform = \"zz\"", "not-a-format", "value.speed.form"),
    ("[value.speed]", '[value.speed]\nhow = "ratio"', "contradiction", "value.speed.how"),
    ('id = "X1"\n', "", "missing-field", "claim.0.id"),
    ('test = "trend"', 'test = "trendy"', "unknown-choice", f"{TEST}.test"),
    ('test = "trend", ', "", "missing-field", f"{TEST}.test"),
    ('goes = "rises"', 'goes = "jumps"', "unknown-choice", f"{TEST}.goes"),
    ('metric = "tokens_per_s", over', "over", "missing-field", f"{TEST}.metric"),
    ("test = [{", "test = []\nx = [{", "unknown-field", "claim.0.x"),
    ("[[claim]]", MINE[MINE.index("[[claim]]"):] + "[[claim]]", "contradiction", "claim"),
    ("[[claim]]", BANDWIDTHS.replace("2]", "0]") + "[[claim]]", "out-of-range", "bandwidths.0.nodes.1"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "1 MB/s") + "[[claim]]", "not-an-amount", "bandwidths.0"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "-1 MiB") + "[[claim]]", "out-of-range", "bandwidths.0.message"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "1e400 B") + "[[claim]]", "out-of-range", "bandwidths.0.message"),
    ("[[claim]]", BANDWIDTHS.replace("{nodes}", "{tp}") + "[[claim]]", "unknown-field", "bandwidths.0.series"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, code: str, field: str) -> None:
    assert MINE.count(old) >= 1
    assert kind(refused(tmp_path, MINE.replace(old, new, 1))) == (code, field)


@pytest.mark.parametrize(("old", "new", "places"), [
    ("[common]", "[comon]", {("unknown-field", "comon"), ("missing-field", "grid.0.model")}),
    ("gpus = 8\n", "gpu = 8\n", {("unknown-field", "grid.1.gpu"), ("missing-field", "grid.1.gpus")}),
    ('model = "llama-1b"', "model = 3", {("wrong-type", "grid.0.model"), ("wrong-type", "grid.1.model")}),
    ("paper =", "papr =", {("unknown-field", "claim.0.papr"), ("missing-field", "claim.0.paper")}),
    ('over = "gpus"', 'ovr = "gpus"', {("unknown-field", f"{TEST}.ovr"), ("missing-field", f"{TEST}.over")}),
])  # fmt: skip
def test_mistakes_are_named_with_their_places(tmp_path: Path, old: str, new: str, places: set[tuple[str, str]]) -> None:
    error = refused(tmp_path, MINE.replace(old, new, 1))
    assert isinstance(error, SeveralMistakes)
    assert {(one.code, one.place) for one in error.mistakes} >= places


def test_the_nearest_key_is_the_hint(tmp_path: Path) -> None:
    for old, new, near in (("title =", "titel =", "title?"), ("[common]", "[comon]", "common?")):
        assert near in str(refused(tmp_path, MINE.replace(old, new, 1)).hint)


def test_an_empty_test_is_refused(tmp_path: Path) -> None:
    text = MINE[: MINE.index("test = [")]
    assert kind(refused(tmp_path, text + "test = []\n")) == ("missing-field", "claim.0.test")
    number = 'test = [{ test = "number", of = { metric = "step_s" } }]\n'
    assert kind(refused(tmp_path, text + number)) == ("missing-field", f"{TEST}.equals")


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    error = refused(tmp_path, MINE.replace("title", "titel").replace("question", "qestion").replace("goes", "gos"))
    assert isinstance(error, SeveralMistakes)
    assert sorted(one.code for one in error.mistakes) == ["missing-field", *["unknown-field"] * 3]
    many = "\n".join(f"x{i} = 1" for i in range(40)) + "\n"
    error = refused(tmp_path, many + MINE.replace("title =", "t ="))
    assert isinstance(error, SeveralMistakes)
    assert len(error.mistakes) == 41
    assert error.message.count("\n") == 41


def test_a_grid_is_enough(tmp_path: Path) -> None:
    """Words for people are made up where a user's file has none."""
    sizes = 'model = "llama-1b"\ncluster = "dgx-h100"\nprofile = "eager"\ngpus = 8\nlocal_batch = 1\n'
    one = load(tmp_path, sizes + "plan = { tp = [1, 2] }\n")
    assert [point.series for point in points_of(one)] == ["tp 1", "tp 2"]
    assert one.title == "mine"


def test_one_grid_in_single_brackets(tmp_path: Path) -> None:
    text = MINE[: MINE.index('[[grid]]\nseries = "large"')].replace("[[grid]]", "[grid]")
    assert kind(refused(tmp_path, text)) == ("wrong-type", "grid")


def test_a_study_that_runs_nothing(tmp_path: Path) -> None:
    head = 'title = "t"\nkind = "beyond"\nquestion = "q"\nfinding = "f"\n'
    assert kind(refused(tmp_path, head)) == ("missing-field", "grid")
    assert kind(refused(tmp_path, head + '[common]\nmodel = "llama-1b"\n')) == ("wrong-type", "common")
    assert load(tmp_path, head + 'hardware = ["dgx-h100"]\n').hardware == ("dgx-h100",)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for name, code in (("nowhere.toml", "no-file"), (".toml", "no-file"), ("folder.toml", "not-a-file")):
        path = str(tmp_path / name)
        assert caught(lambda path=path: load_study(path)).code == code
    assert caught(lambda: load(tmp_path, "title = ")).code == "not-toml"


def test_a_name_that_no_study_has() -> None:
    assert "fig6?" in str(caught(lambda: load_study("fig66")).hint)
    for name in ("fig66", "", "uncounted", "../studies/fig6", "FIG"):
        assert kind(caught(lambda name=name: load_study(name))) == ("unknown-name", "study")


ODD: tuple[Any, ...] = (
    0,
    -1,
    3.5,
    float("nan"),
    float("inf"),
    10**30,
    "",
    "x",
    "{",
    "{0}",
    "gpus",
    "series",
    "change",
    "knee",
    "-nodes",
    True,
    [],
    [1],
    ["x"],
    [[]],
    [{}],
    {},
    {"x": 1},
)


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield (*path, key)
        yield from _places(node[key], (*path, key))


def _harmed(raw: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same with something odd, missing or twice in it."""
    raw = copy.deepcopy(raw)
    path = chance.choice(list(_places(raw)))
    node: Any = raw
    for key in path[:-1]:
        node = node[key]
    what = chance.random()
    if what < 0.2 and isinstance(node, dict):
        del node[path[-1]]
    elif what < 0.3 and isinstance(node, list):
        node.append(copy.deepcopy(node[path[-1]]))
    elif what < 0.4 and isinstance(node, dict):
        node[chance.choice(all_keys(Study))] = copy.deepcopy(chance.choice(ODD))
    else:
        node[path[-1]] = copy.deepcopy(chance.choice(ODD))
    return raw


@pytest.mark.parametrize("name", ["mine", "fig2a", "fig2b", "table1", "fig10"])
def test_whatever_a_file_has_is_answered_in_words(name: str) -> None:
    raw = tomllib.loads(MINE if name == "mine" else (FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    sheets = [load_study(other) for other in ("fig2a", "fig2b", "table1")]
    rows = {
        study.name: [row for grid in study.bandwidths for row in bandwidth_rows(study.name, grid)]
        + [hardware_row(study.name, cluster) for cluster in study.hardware]
        for study in sheets
    }
    chance, accepted, said = random.Random(name), 0, list[str]()
    for _ in range(150):
        harmed = _harmed(raw, chance)
        try:
            study = check_study(name, laid_over_common(harmed, where="mine.toml", hint=""), where="mine.toml")
            accepted += 1
            points_of(study)
            assert all(verdict.found for verdict in judge(study.claim, rows, name))
        except KneeError as error:
            said.append(error.message)
    assert 0 < accepted < 150
    assert all(said)


# ---- the catalogue's own -------------------------------------------------------------------------------------------

PAPER = ["fig1", "fig2a", "fig2b", *(f"fig{n}" for n in range(3, 15)), "table1"]


def test_the_paper_s_studies_in_its_order() -> None:
    assert study_names("paper") == PAPER
    assert study_names() == [*PAPER, *study_names("beyond")]


@pytest.mark.parametrize("name", study_names())
def test_every_study_is_whole(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.kind == ("paper" if name in PAPER else "beyond")
    assert study.draw
    assert study.claim or study.kind == "beyond"
    assert bool(study.place) is (study.kind == "paper")
    assert all(needed in study_names() for needed in study.needs)
    assert {value for value in study.value if f"{{{value}}}" not in study.finding} == set()


@pytest.fixture(scope="module")
def columns() -> dict[str, set[str]]:
    """Columns that a study's rows have: of every kind of row, made once."""
    store = Store()
    found: dict[str, set[str]] = {}
    for name in study_names():
        study = load_study(name)
        of: set[str] = set()
        for point in points_of(study):
            record = store.record(point.question)
            of |= impossible_row(point, "").keys()
            if IMPOSSIBLE not in record:
                of |= step_row(record, study=name, series=point.series).keys()
                break
        for grid in study.bandwidths:
            of |= next(bandwidth_rows(name, grid)).keys()
        for budgets in study.budget[:1]:
            some = replace(budgets, gpus=(8,), days=0.5)
            of |= next(budget_rows(name, some)).keys()
        for cluster in study.hardware:
            of |= hardware_row(name, cluster).keys()
        if study.long_run or study.exchange or study.wall:
            of |= {column for row in sheet_rows(study) for column in row}
        found[name] = of
    return found


WHERES = ("at", "base", "other_at", "other_base", "of")
METRICS = ("metric", "over", "column", "label", "pick", "y", "shows", "color", "x", "published", "name")


def _named(part: Any, study: str) -> Iterator[tuple[str, str]]:
    """(study, column) of everything below that names a column."""
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name in WHERES and isinstance(value, dict):
            yield from ((str(value.get("study", study)), key) for key in value if key != "study")
        elif field.name in ("same", "each", "least"):
            yield from ((study, key) for key in value)
        elif field.name == "over" and getattr(part, "how", "knee") != "knee":
            continue  # an axis that is not asked for
        elif field.name in METRICS and isinstance(value, str) and value:
            yield study, value.removeprefix("-")
        for one in value if isinstance(value, tuple) else (value,):
            if is_dataclass(one):
                yield from _named(one, study)


@pytest.mark.slow
@pytest.mark.parametrize("name", study_names())
def test_every_column_that_a_study_names_is_one_of_its_rows(name: str, columns: dict[str, set[str]]) -> None:
    study = load_study(name)
    parts = [*study.value.values(), *study.draw, *(test for claim in study.claim for test in claim.test)]
    named = {pair for part in parts for pair in _named(part, name)}
    named |= {(name, stated.metric) for stated in study.published}
    named |= {(name, key) for stated in study.published for key in stated.of}
    named |= {(name, key) for where in study.timeline for key in where}
    assert named
    assert {(study, column) for study, column in named if column not in columns[study]} == set()
    assert {study for study, _ in named} <= {name, *study.needs}


def test_no_claim_is_counted_twice() -> None:
    ids = [claim.id for name in study_names() for claim in load_study(name).claim]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & uncounted().keys()
    assert all(uncounted().values())


def test_inputs_and_second_hand_words_are_no_claims() -> None:
    assert {f"T{n}" for n in range(68, 81)} | {"S01", "S02"} <= uncounted().keys()
