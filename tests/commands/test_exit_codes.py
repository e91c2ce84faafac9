"""How commands end: every code in one table, and files that do not depend on who reads standard output."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
from click.testing import CliRunner

import refusals
from knee.base import errors, signals
from knee.base.errors import ExitCode, InputError, KneeError, NotWritten
from knee.base.files import make_folder, remove_unfinished, replacing, scratch_folder, write_text
from knee.commands import main as cli
from knee.commands.main import TRACEBACK, in_words, main
from knee.engine.energy import grid_names
from knee.engine.one_job import events_of
from knee.measure.kineto.kineto_writer import write_kineto
from knee.specs.catalog import did_you_mean
from knee.specs.choices import DEVICES
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from refusals import caught, refused

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "2")
SCALE = ("scale", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8..16", "--local-batch", "2")
PAGE = Path(__file__).parents[2] / "docs/reference/exit-codes.md"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, cluster, profile = (
        load(name).spec
        for load, name in ((load_model, "llama-1b"), (load_cluster, "dgx-h100"), (load_profile, "paper"))
    )
    job, _ = make_job(model, cluster, profile, gpus=8, local_batch=1)
    return write_kineto(events_of(job), tmp_path_factory.mktemp("trace") / "t.json")[0]


@contextlib.contextmanager
def unread() -> Iterator[TextIO]:
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        yield stream


def ended(*words: Any, out: TextIO | None) -> int:
    """The exit code of a command whose standard output is this."""
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:  # type: ignore[type-var]
        main([str(word) for word in words])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("trace", "TRACE", "--no-cache", "--html", "p.html", "--perfetto", "p.json"), ("p.html", "p.json")),
        ((*ASK, "--trace", "step.json"), ("step.json",)),
        ((*SCALE, "--plot", "scale.json"), ("scale.json",)),
    ],
    ids=lambda value: value[0] if value[0] in main.list_commands(None) else "",  # type: ignore[arg-type]
)
def test_files_are_written_though_the_reader_has_left(
    words: tuple[str, ...], names: tuple[str, ...], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with unread() as out:
        assert ended(*(trace if word == "TRACE" else word for word in words), out=out) == ExitCode.READER_LEFT
    assert all(Path(name).stat().st_size for name in names)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.slow
def test_an_error_is_said_though_the_reader_has_left(capsys: pytest.CaptureFixture[str]) -> None:
    with unread() as out:
        assert ended("simulate", "llama2-70b", *ASK[2:], out=out) == ExitCode.DOES_NOT_FIT
    assert capsys.readouterr().err.count("error:") == 1


def test_an_answer_that_does_not_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*ASK, "--json", out=None) == ExitCode.NOT_WRITTEN
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert ended(*ASK, "--json", out=full) == ExitCode.NOT_WRITTEN
    said = capsys.readouterr().err
    assert said.count("error:") == said.count("hint:") == 2


def test_whoever_prints_nothing_needs_no_standard_output(tmp_path: Path) -> None:
    words = ("train", "llama-tiny", "--device", "cpu", "--job", tmp_path / "job.json")
    assert ended(*words, out=None) == ExitCode.ANSWERED
    assert (tmp_path / "job.json").exists()


@pytest.mark.parametrize(
    ("raised", "code", "word"),
    [
        (KeyError("x"), ExitCode.BUG, "bug"),
        (EOFError(), ExitCode.BUG, "bug"),
        (GeneratorExit(), ExitCode.BUG, "bug"),
        (MemoryError(), ExitCode.FAILED, "out-of-memory"),
        (OSError(28, "No space left on device", "/x"), ExitCode.NOT_WRITTEN, "not-written"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, None),
        (KneeError("wrong"), ExitCode.BUG, "error"),
        (InputError("wrong"), ExitCode.WRONG_INPUT, "invalid-input"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_is_raised_ends_in_a_code(
    raised: BaseException, code: ExitCode, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise raised

    monkeypatch.setattr(cli.importlib, "import_module", fail)
    for shown in ("0", "1"):
        monkeypatch.setenv(TRACEBACK, shown)
        result = CliRunner().invoke(main, ["catalog"])
        assert result.exit_code == code
        assert len(re.findall("^error:", result.stderr, re.MULTILINE)) == (word is not None)
        if word is not None:
            assert in_words(raised).code == word
            # a bug names the exception and the line of knee
            assert word != "bug" or type(raised).__name__ in result.stderr
        bug = code == ExitCode.BUG and not isinstance(raised, KneeError)
        assert ("Traceback" in result.stderr) == (bug and shown == "1")


def test_the_table_of_codes_is_told() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    assert all(re.search(rf"^ +{int(code)}  {re.escape(code.meaning)}$", text, re.MULTILINE) for code in ExitCode)
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {str(int(code)): code.meaning for code in ExitCode}.items() <= rows.items()
    own = [kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KneeError)]
    assert {ExitCode(code) for code in own} == {ExitCode(number) for number in range(1, 8)}


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before")

    def interrupted() -> None:
        with replacing(path) as partial:
            partial.write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text(encoding="utf-8") == "before"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_is_left_when_nothing_is_unwound_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with replacing(tmp_path / "a.txt") as partial, scratch_folder() as folder:
        partial.write_text("half", encoding="utf-8")
        (folder / "copy").write_text("half", encoding="utf-8")
        signals.clean_up()
        assert os.listdir(tmp_path) == []
        partial.write_text("whole", encoding="utf-8")
    assert os.listdir(tmp_path) == ["a.txt"]
    remove_unfinished()


@pytest.mark.parametrize(
    ("path", "kind"),
    [("no/such/folder", InputError), ("/dev/full", NotWritten), ("x" * 300, InputError), (".", InputError)],
)
def test_a_wrong_path_is_wrong_input_and_a_full_disk_is_not(
    path: str, kind: type[KneeError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as error:
        write_text(Path(path), "text")
    assert error.value.code == ("not-writable" if kind is InputError else "not-written")
    assert os.listdir(tmp_path) == []


def test_a_folder_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("", encoding="utf-8")
    assert caught(lambda: make_folder(tmp_path / "a")).code == "not-a-folder"


def test_links_in_a_circle_are_not_said_to_be_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(loop)
    for words in (("trace", loop), ("probe", "kernels", "--replay", loop), ("sweep", "status", loop)):
        assert refused(*words).code == "unreadable"
    assert caught(lambda: write_text(loop, "text")).code == "not-writable"
    assert loop.is_symlink()


@pytest.mark.parametrize(
    ("words", "known"),
    [(("sweep", "statuss", "x"), "status"), (("probe", "kernel"), "kernels"), (("data", "prepar"), "prepare")],
)
def test_a_misspelt_command_of_a_group_gets_the_nearest(words: tuple[str, ...], known: str) -> None:
    error = refused(*words)
    assert error.code == "unknown-command"
    assert known in str(error.hint)


def test_a_choice_that_is_none_names_the_choices() -> None:
    error = refused("probe", "kernels", "--device", "tpu")
    assert refusals.kind(error) == ("unknown-choice", "device")
    assert all(word in error.message for word in ("--device", "'tpu'", *DEVICES))
    assert refusals.kind(refused("plan", "llama2-7b", "--gpus", "x")) == ("not-a-number", "gpus")


def test_a_suggestion_is_close() -> None:
    assert did_you_mean("nan", grid_names()) is None
    assert did_you_mean("finlnd", grid_names()) == "finland"
    assert did_you_mean("tpu", DEVICES) == "cpu"


def test_streams_are_given_back() -> None:
    before = sys.stdout, sys.stderr
    ended("--version", out=sys.stdout)
    assert (sys.stdout, sys.stderr) == before
