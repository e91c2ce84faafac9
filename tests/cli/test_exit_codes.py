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

from knee import cli, errors, signals
from knee.cli import main
from knee.cli.render.ending import TRACEBACK
from knee.errors import ExitCode, InputError, KneeError, NotWritten
from knee.files import make_folder, remove_unfinished, replacing, scratch_folder, write_text
from knee.kineto.kineto_writer import write_kineto
from knee.single import events_of
from knee.specs.load import load_cluster, load_model, load_profile, make_job

ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "2")
SCALE = ("scale", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8..16", "--local-batch", "2")
README = Path(__file__).parents[2] / "README.md"


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
    assert "standard output is closed" in said
    assert "No space left" in said


def test_whoever_prints_nothing_needs_no_standard_output(tmp_path: Path) -> None:
    words = ("train", "llama-tiny", "--device", "cpu", "--job", tmp_path / "job.json")
    assert ended(*words, out=None) == ExitCode.ANSWERED
    assert (tmp_path / "job.json").exists()


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (KeyError("x"), ExitCode.BUG, "this is a bug in knee: KeyError: 'x' (cli/__init__.py, line "),
        (EOFError(), ExitCode.BUG, "this is a bug in knee: EOFError (cli/__init__.py, line "),
        (GeneratorExit(), ExitCode.BUG, "this is a bug in knee: GeneratorExit"),
        (MemoryError(), ExitCode.FAILED, "this machine has not enough memory"),
        (OSError(28, "No space left on device", "/x"), ExitCode.NOT_WRITTEN, "/x cannot be written: No space"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, None),
        (KneeError("wrong"), ExitCode.BUG, "wrong"),
        (InputError("wrong"), ExitCode.WRONG_INPUT, "wrong"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_is_raised_ends_in_a_code(
    raised: BaseException, code: ExitCode, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise raised

    monkeypatch.setattr(cli.importlib, "import_module", fail)
    for shown in ("0", "1"):
        monkeypatch.setenv(TRACEBACK, shown)
        result = CliRunner().invoke(main, ["catalog"])
        assert result.exit_code == code
        lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
        assert [line.startswith(f"error: {words}") for line in lines] == ([True] if words else []), result.stderr
        bug = code == ExitCode.BUG and not isinstance(raised, KneeError)
        assert ("Traceback" in result.stderr) == (bug and shown == "1")


def test_the_table_of_codes_is_told() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    assert all(re.search(rf"^ +{int(code)}  {re.escape(code.meaning)}$", text, re.MULTILINE) for code in ExitCode)
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE))
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
    with pytest.raises(kind, match="cannot be written"):
        write_text(Path(path), "text")
    assert os.listdir(tmp_path) == []


def test_a_folder_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="a file of that name is in the way"):
        make_folder(tmp_path / "a")


def test_streams_are_given_back() -> None:
    before = sys.stdout, sys.stderr
    ended("--version", out=sys.stdout)
    assert (sys.stdout, sys.stderr) == before
