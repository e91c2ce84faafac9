"""Study files: what is read, what is refused and in which words; and that the catalogue's own say nothing of columns
that no run has."""

from __future__ import annotations

import copy
import random
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from knee.errors import InputError, KneeError
from knee.studies.budget_rows import budget_rows
from knee.studies.claims import judge
from knee.studies.file_errors import known_keys
from knee.studies.questions import points_of
from knee.studies.record_store import IMPOSSIBLE, Store
from knee.studies.rows import bandwidth_rows, hardware_row, impossible_row, step_row
from knee.studies.study_file import FOLDER, Study, _checked, _laid_over_common, load_study, study_names, uncounted

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
    load_study.cache_clear()
    return load_study(str(path))


def refused(folder: Path, text: str) -> str:
    """What is said, and how to fix it."""
    with pytest.raises(InputError) as caught:
        load(folder, text)
    assert caught.value.message.startswith("mine.toml: ")
    assert caught.value.hint
    assert len(caught.value.message) < 400
    return f"{caught.value.message}\n{caught.value.hint}"


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


@pytest.mark.parametrize(("old", "new", "words"), [
    ("title =", "titel =", "titel is not known"),
    ("title =", "titel =", "did you mean title?"),
    ('kind = "beyond"', 'kind = "other"', "kind: input should be 'paper' or 'beyond', not 'other'"),
    ('title = "Mine"', "title = 3", "title: input should be a valid string, not 3"),
    ("[common]", "[comon]", "did you mean common?"),
    ("[common]", "common = 3\n[x]", "common should be a table"),
    ("[[grid]]\nseries = \"large\"", "[[gird]]\nseries = \"large\"", "gird is not known"),
    ("gpus = 8\n", "gpu = 8\n", "grid.1.gpu is not known"),
    ("gpus = 8\n", "", "grid.1.gpus is missing"),
    ("gpus = 8\n", 'gpus = "eight"\n', "grid.1.gpus cannot be 'eight'"),
    ("gpus = 8\n", "gpus = 8.5\n", "grid.1.gpus cannot be 8.5"),
    ("gpus = 8\n", "gpus = 0\n", "grid.1.gpus cannot be 0"),
    ("gpus = 8\n", "gpus = []\n", "grid.1.gpus cannot be []"),
    ("gpus = 8\n", "gpus = true\n", "grid.1.gpus cannot be True"),
    ("seq_len = 2048", "seq_len = -1", "grid.1.seq_len cannot be -1"),
    ('model = "llama-1b"', "model = 3", "grid.0.model cannot be 3"),
    ("local_batch = 1\n", "local_batch = nan\n", "grid.0.local_batch cannot be nan"),
    ("local_batch = 1\n", "", "local_batch or global_batch is needed"),
    ("global_batch = 32", "global_batch = 32\nlocal_batch = 1", "only one of them"),
    ("plan = { tp = [1, 2] }", "plan = 3", "grid.0.plan: input should be a valid dictionary, not 3"),
    ("plan = { tp = [1, 2] }", "plan = { tpp = [1, 2] }", "plan has no tpp: did you mean tp?"),
    ("plan = { tp = [1, 2] }", 'plan = { tp = "2" }', "plan.tp should be a whole number, not '2'"),
    ("plan = { tp = [1, 2] }", 'set = { "fabric.nic" = 1 }', "set fabric.nic: there is no such field: did you mean"),
    ("plan = { tp = [1, 2] }", 'pick = "best"', "grid.0.pick: input should be 'each'"),
    ("{speed}", "{sped}", "finding names {sped}, and [value.sped] is missing"),
    ("{speed}", "{", "finding: "),
    ("[value.speed]", "[value.speed]\nform = \"zz\"", "value.speed: form 'zz' is not"),
    ("[value.speed]", '[value.speed]\nhow = "ratio"', "value.speed: base and how go together"),
    ('id = "X1"\n', "", "claim.0.id is missing"),
    ("paper =", "papr =", "claim.0.papr is not known"),
    ('test = "trend"', 'test = "trendy"', "claim.0.test.0.test is 'trendy', which is none of 'number', 'trend'"),
    ('test = "trend", ', "", "claim.0.test.0.test is missing"),
    ('goes = "rises"', 'goes = "jumps"', "claim.0.test.0.goes: input should be 'rises', 'falls'"),
    ('metric = "tokens_per_s", over', "over", "claim.0.test.0.metric is missing"),
    ('over = "gpus"', 'ovr = "gpus"', "claim.0.test.0.ovr is not known"),
    ("test = [{", "test = []\nx = [{", "claim.0.x is not known"),
    ("[[claim]]", MINE[MINE.index("[[claim]]"):] + "[[claim]]", "claim X1 is there twice"),
    ("[[claim]]", BANDWIDTHS.replace("2]", "0]") + "[[claim]]", "bandwidths.0.nodes.1: input should be greater than 0"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "1 MB/s") + "[[claim]]", "'MB/s' is not a unit of bytes"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "-1 MiB") + "[[claim]]", "message '-1 MiB' should be above 0"),
    ("[[claim]]", BANDWIDTHS.replace("1 MiB", "1e400 B") + "[[claim]]", "should be above 0, and finite"),
    ("[[claim]]", BANDWIDTHS.replace("{nodes}", "{tp}") + "[[claim]]", "may name {nodes} and {message} only"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert MINE.count(old) >= 1
    assert words in refused(tmp_path, MINE.replace(old, new, 1))


def test_an_empty_test_is_refused(tmp_path: Path) -> None:
    text = MINE[: MINE.index("test = [")]
    assert "claim.0: test is empty" in refused(tmp_path, text + "test = []\n")
    assert "equals, or above and below, is needed" in refused(
        tmp_path, text + 'test = [{ test = "number", of = { metric = "step_s" } }]\n'
    )


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path, MINE.replace("title", "titel").replace("question", "qestion").replace("goes", "gos"))
    assert (said.count("is missing"), said.count("is not known")) == (1, 3)
    assert refused(tmp_path, "x = 1\ny = 2\n").count(";") >= 1
    many = "\n".join(f"x{i} = 1" for i in range(40)) + "\n"
    assert "and 36 more" in refused(tmp_path, many + MINE.replace("title =", "t ="))


def test_a_grid_is_enough(tmp_path: Path) -> None:
    """Words for people are made up where a user's file has none."""
    sizes = 'model = "llama-1b"\ncluster = "dgx-h100"\nprofile = "eager"\ngpus = 8\nlocal_batch = 1\n'
    one = load(tmp_path, sizes + "plan = { tp = [1, 2] }\n")
    assert [point.series for point in points_of(one)] == ["tp 1", "tp 2"]
    assert one.title == "mine"


def test_one_grid_in_single_brackets(tmp_path: Path) -> None:
    text = MINE[: MINE.index('[[grid]]\nseries = "large"')].replace("[[grid]]", "[grid]")
    assert "grid should be a list: [[grid]]" in refused(tmp_path, text)


def test_a_study_that_runs_nothing(tmp_path: Path) -> None:
    head = 'title = "t"\nkind = "beyond"\nquestion = "q"\nfinding = "f"\n'
    assert "it runs nothing" in refused(tmp_path, head)
    assert "laid under every [[grid]]" in refused(tmp_path, head + '[common]\nmodel = "llama-1b"\n')
    assert load(tmp_path, head + 'hardware = ["dgx-h100"]\n').hardware == ("dgx-h100",)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, words in (("nowhere.toml", "there is no file"), (".toml", "there is no file")):
        with pytest.raises(InputError, match=words):
            load_study(str(tmp_path / name))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_study(str(tmp_path / "folder.toml"))
    with pytest.raises(InputError, match="is not valid TOML"):
        load(tmp_path, "title = ")


def test_a_name_that_no_study_has() -> None:
    with pytest.raises(InputError, match="there is no study 'fig66'") as caught:
        load_study("fig66")
    assert caught.value.hint == "did you mean fig6? `knee study list` has all"
    for name in ("", "uncounted", "../studies/fig6", "FIG"):
        with pytest.raises(InputError):
            load_study(name)


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
        node[chance.choice(known_keys(Study))] = copy.deepcopy(chance.choice(ODD))
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
            study = _checked(name, _laid_over_common(harmed, where="mine.toml"), where="mine.toml")
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
