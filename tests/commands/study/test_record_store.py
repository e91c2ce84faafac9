"""Records on disk: used again while nothing they depend on changes, and whole or named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import InputError
from knee.commands.study import record_store as store
from knee.commands.study.questions import Question, points_of
from knee.commands.study.record_store import IMPOSSIBLE, Store, cached_fidelity, damage, key_of
from knee.commands.study.run_study import points_to_run, recorded
from knee.commands.study.study_file import load_study
from knee.specs.load import forget_files
from knee.trust.validation.bundled_runs import CarriedFidelity

SOURCES = Path(__file__).parents[3] / "src"
SMALL = Question(model="llama-tiny", cluster="cpu", profile="eager", gpus=2, global_batch=4, seq_len=64, plans=((),))


@pytest.fixture
def said() -> list[str]:
    return []


def kept(folder: Path, said: list[str], *questions: Question) -> Store:
    """A store that was asked these."""
    found = Store(folder, said.append)
    for question in questions or (SMALL,):
        found.record(question)
    return found


def counts(found: Store) -> tuple[int, int]:
    return found.made, found.reused


def test_a_second_run_makes_nothing(tmp_path: Path, said: list[str]) -> None:
    other = replace(SMALL, gpus=4)
    first = kept(tmp_path / "new" / "records", said, SMALL, other, SMALL)
    assert counts(first) == (2, 0)  # asked twice, answered once
    second = kept(tmp_path / "new" / "records", said, SMALL, other)
    assert counts(second) == (0, 2)
    assert second.record(SMALL) == first.record(SMALL)
    assert said == []


def test_a_record_says_what_it_is_of(tmp_path: Path, said: list[str]) -> None:
    record = kept(tmp_path, said).record(SMALL)
    [path] = tmp_path.iterdir()
    assert path.name == f"{record['key']}.json"
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert record["kind"] == "simulated"
    assert record["question"]["model"] == "llama-tiny"
    assert record["made"].keys() == {"knee", "engine"}
    assert path.stat().st_mode & 0o044  # for others to read, as the umask has it


def test_a_changed_question_is_another(tmp_path: Path, said: list[str]) -> None:
    changed: tuple[dict[str, Any], ...] = (
        {"gpus": 4},
        {"global_batch": 8},
        {"seq_len": 128},
        {"plans": ((("tp", 2),),)},
        {"tune": True},
        {"model": "llama-1b"},
        {"profile": "compiled"},
        {"sets": (("model.layers", "2"),)},
    )
    every = [SMALL, *(replace(SMALL, **one) for one in changed)]
    assert len({key_of(question) for question in every}) == len(every)
    assert counts(kept(tmp_path, said, *every)) == (len(every), 0)


def test_a_changed_engine_answers_again(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, said)
    monkeypatch.setattr(store, "engine", lambda: "another")
    assert counts(kept(tmp_path, said)) == (1, 0)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_engine_is_every_file_that_an_answer_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.engine()
    real = Path.read_bytes
    for changed in ("engine/cost/collective_cost.py", "search/bound.py", "catalog/kernels.toml", "__init__.py"):
        path = SOURCES / "knee" / changed
        monkeypatch.setattr(Path, "read_bytes", lambda this, path=path: real(this) + b" " * (this == path))
        store.engine.cache_clear()
        assert store.engine() != before, changed
    monkeypatch.setattr(Path, "read_bytes", real)
    store.engine.cache_clear()
    assert store.engine() == before


def test_a_changed_spec_answers_again(tmp_path: Path, said: list[str]) -> None:
    """The same name, other values behind it."""
    path = tmp_path / "mine.toml"
    mine = replace(SMALL, profile=str(path))
    for scale, count in ((1.0, (1, 0)), (1.0, (0, 1)), (2.0, (1, 0))):
        path.write_text(f'base = "eager"\nstream_scale = {scale}\n', encoding="utf-8")
        forget_files()
        assert counts(kept(tmp_path / "records", said, mine)) == count


def test_a_changed_study_answers_what_is_new(tmp_path: Path, said: list[str]) -> None:
    text = """\
title = "t"
kind = "beyond"
question = "q"
finding = "f"
[[grid]]
series = "s"
model = "llama-tiny"
cluster = "cpu"
profile = "eager"
gpus = [1, 2]
local_batch = 2
seq_len = 64
"""

    def ask(text: str) -> tuple[int, int]:
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        points = points_of(load_study(str(tmp_path / "mine.toml")))
        return counts(kept(tmp_path / "records", said, *(point.question for point in points)))

    assert ask(text) == (2, 0)
    assert ask(text.replace('"s"', '"other name"').replace('"t"', '"other title"')) == (0, 2)
    assert ask(text.replace("[1, 2]", "[1, 2, 4]")) == (1, 2)


@pytest.mark.parametrize(("harm", "words"), [
    (lambda text: text[: len(text) // 2], "incomplete"),
    (lambda text: text[:0], "incomplete"),
    (lambda text: "[" * 100 * len(text), "incomplete"),
    (lambda text: text[:0] + "[]", "no checksum"),
    (lambda text: text[:0] + '{"step_s": 1}', "no checksum"),
    (lambda text: text.replace('"gpus": 2', '"gpus": 3'), "does not match its checksum"),
    (lambda text: text.replace('"seal": "', '"seal": "0'), "does not match its checksum"),
])  # fmt: skip
def test_a_damaged_record_is_named_and_made_again(tmp_path: Path, said: list[str], harm: Any, words: str) -> None:
    good = kept(tmp_path, said).record(SMALL)
    [path] = tmp_path.iterdir()
    path.write_text(harm(path.read_text(encoding="utf-8")), encoding="utf-8")
    again = kept(tmp_path, said)
    assert counts(again) == (1, 0)
    assert again.record(SMALL) == good
    assert len(said) == 1
    assert str(path) in said[0]
    assert words in said[0]
    assert said[0].endswith("; it is computed again")
    assert counts(kept(tmp_path, said)) == (0, 1)  # and is whole now


def test_a_record_of_another_question_is_not_taken(tmp_path: Path, said: list[str]) -> None:
    other = replace(SMALL, gpus=4)
    kept(tmp_path, said, SMALL, other)
    mine, theirs = (tmp_path / f"{key_of(question)}.json" for question in (SMALL, other))
    mine.write_bytes(theirs.read_bytes())
    again = kept(tmp_path, said)
    assert again.record(SMALL)["gpus"] == 2
    assert "the record of another run" in said[0]


def test_what_is_not_text_or_not_a_file(tmp_path: Path, said: list[str]) -> None:
    kept(tmp_path, said)
    [path] = tmp_path.iterdir()
    path.write_bytes(b"\xff\xfe\x00")
    assert counts(kept(tmp_path, said)) == (1, 0)
    assert "cannot be read (not text)" in said[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        kept(tmp_path, said)
    assert "Is a directory" in said[1]


def test_what_cannot_be_is_kept_too(tmp_path: Path, said: list[str]) -> None:
    never = replace(SMALL, plans=((("tp", 3),),))
    record = kept(tmp_path, said, never).record(never)
    assert "3" in record[IMPOSSIBLE]
    assert counts(kept(tmp_path, said, never)) == (0, 1)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Store()
    found.record(SMALL)
    found.record(SMALL)
    assert (counts(found), list(tmp_path.iterdir())) == ((1, 0), [])


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="a file with that name exists"):
        Store(tmp_path / "file")


def test_how_knee_does_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the engine changes, or the file is not whole."""
    table = CarriedFidelity(
        sources=(),
        unseen_frac=0.05,
        unseen_p90_frac=None,
        headline_frac=0.03,
        all_reduce=None,
        all_gather=None,
    )
    made: list[int] = []
    monkeypatch.setattr(store, "carried_fidelity", lambda: made.append(1) or table)

    def asked() -> int:
        assert cached_fidelity(tmp_path / "kept") == table
        return len(made)

    assert (asked(), asked()) == (1, 1)
    [path] = (tmp_path / "kept").iterdir()
    for text in ("", "[]", path.read_text(encoding="utf-8").replace("0.03", "0.01")):
        path.write_text(text, encoding="utf-8")
        before = len(made)
        assert (asked(), asked()) == (before + 1, before + 1)
    monkeypatch.setattr(store, "engine", lambda: "another")
    assert asked() == len(made) == 5


# ---- processes -----------------------------------------------------------------------------------------------------


def whole(folder: Path) -> int:
    """How many records there are, all of them whole."""
    paths = list(folder.glob("*.json"))
    assert [damage(path.read_text(encoding="utf-8"), path.stem) for path in paths] == [None] * len(paths)
    return len(paths)


RECORDING = """\
import sys
from pathlib import Path
from knee.commands.study.run_study import points_to_run, recorded
from knee.commands.study.record_store import Store

said = []
print(len(list(recorded(points_to_run(["fig9"]), Store(Path(sys.argv[1]), said.append).record))), said)
"""


@pytest.mark.slow
def test_two_processes_in_one_folder(tmp_path: Path, said: list[str]) -> None:
    command = [sys.executable, "-c", RECORDING, str(tmp_path / "records")]
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    processes = [subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["4 []\n"] * 2
    assert whole(tmp_path / "records") == 4
    assert [path.name for path in (tmp_path / "records").iterdir() if path.name.startswith(".")] == []
    assert counts(kept(tmp_path / "records", said, *(p.question for p in points_to_run(["fig9"])))) == (0, 4)
    assert said == []


STOPPING = """\
import os, sys
from knee.commands.main import main
from knee.commands.study import record_store as store

answers, few, number = store.answers, *map(int, sys.argv[1:3])

def stopped(questions):
    global few
    few -= 1
    if few < 0:
        os.kill(os.getpid(), number)
    return answers(questions)

store.TOGETHER, store.answers = 0, stopped
main(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, said: list[str], number: signal.Signals) -> None:
    """The signal comes in the middle of the sixth point."""
    records, few = tmp_path / "records", 5
    command = [sys.executable, "-c", STOPPING, str(few), str(int(number)), "study", "run", "fig12", "--no-page"]
    process = subprocess.run(
        [*command, "--out", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == (130 if number == signal.SIGINT else -number), process.stderr
    assert (process.stdout, "Traceback" in process.stderr) == ("", False)
    points = points_to_run(["fig12"])
    assert whole(records) == few < len(points)
    again = Store(records, said.append)
    assert len(list(recorded(points, again.record))) == len(points)
    assert counts(again) == (len(points) - few, few)
    assert said == []
