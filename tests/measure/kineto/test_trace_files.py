"""What is given to ``knee trace``, and where it is kept: folders, pipes, caches, workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gloo_traces import gloo_trace
from knee.base.errors import Incomplete
from knee.measure.kineto import column_cache as cache
from knee.measure.kineto.trace_files import left_out_sentences
from knee.measure.traces import analyse
from knee.specs.notes import code_of
from refusals import caught, ended, kind, refused
from small_traces import job
from trace_made import document, event, write

SOURCE = Path(__file__).parents[3] / "src"


def test_a_run_of_knee_is_its_traces(tmp_path: Path) -> None:
    for name in ("traces", "heartbeats"):
        (tmp_path / name).mkdir()
    for i in range(2):
        job(tmp_path / "traces" / f"rank{i}.json", rank=i)
        (tmp_path / "heartbeats" / f"rank{i}.json").write_text('{"step": 3}')
    (tmp_path / "record.json").write_text('{"schema_version": 1, "kind": "measured"}')
    found = analyse(tmp_path, cache=False)
    assert len(found.ranks) == 2
    assert found.is_whole
    assert {code_of(one.why) for one in found.left_out} == {"beside-traces"}
    (said,) = left_out_sentences(found.left_out)
    assert "heartbeats/rank0.json" in said
    assert "record.json" in said


def test_of_a_folder_only_what_begins_like_a_trace_is_read(tmp_path: Path) -> None:
    job(tmp_path / "a.json")
    for name, content in (("job.json", "{}"), ("list.json", "[1, 2]"), (".b_rank1.json", "{}"), ("none.json", "")):
        (tmp_path / name).write_text(content)
    found = analyse(tmp_path, cache=False)
    assert {one.path.name: code_of(one.why) for one in found.left_out} == {
        "job.json": "not-a-trace",
        "list.json": "not-a-trace",
        ".b_rank1.json": "hidden",
        "none.json": "empty",
    }
    assert found.is_whole
    (tmp_path / "rank1.json").write_bytes(b"\x1f\x8b\x08damaged")
    assert not analyse(tmp_path, cache=False).is_whole
    ran, error = ended("trace", tmp_path, "--no-cache")
    assert isinstance(error, Incomplete)
    assert error.code == "unreadable"
    assert str(tmp_path / "rank1.json") in ran.stdout
    (tmp_path / "a.json").unlink()
    (tmp_path / "rank1.json").unlink()
    assert kind(refused("trace", tmp_path)) == ("nothing-usable", "paths")


@pytest.mark.parametrize("target", ["--html", "--perfetto"])
def test_what_is_read_is_not_written_over(tmp_path: Path, target: str) -> None:
    path = job(tmp_path / "t.json")
    before = path.read_bytes()
    (tmp_path / "link.json").symlink_to(path)
    for name in ("t.json", "link.json"):
        error = refused("trace", path, target, tmp_path / name, "--no-cache")
        assert kind(error) == ("contradiction", target.removeprefix("--"))
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["gpu", "processor"])
def test_a_pipe_is_read_once(tmp_path: Path, kind: str) -> None:
    path = job(tmp_path / "t.json") if kind == "gpu" else gloo_trace(tmp_path / "t.json.gz")
    pipe = tmp_path / "pipe_rank3"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    thread.start()
    found = analyse(pipe)
    thread.join()
    assert found.times == analyse(path, cache=False).times
    assert found.ranks[0].path == pipe


def test_what_never_ends_is_refused() -> None:
    assert caught(lambda: analyse("/dev/zero")).code == "not-json"


@pytest.mark.slow
def test_standard_input(tmp_path: Path) -> None:
    path = job(tmp_path / "t.json")
    command = [sys.executable, "-m", "knee", "trace", "-"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "ascii"}
    run = subprocess.run(command, input=path.read_bytes(), capture_output=True, env=environment, check=True)
    assert b" us " in run.stdout  # and no letter that the terminal lacks
    run = subprocess.run(command, input=b"{}", capture_output=True, env=environment, check=False)
    assert run.returncode == 2
    assert b"error: /dev/stdin " in run.stderr


@pytest.mark.parametrize("where", ["file", "/dev/null", "no home"])
def test_nothing_fails_for_want_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (tmp_path / "file").write_text("")
    if where == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home"))))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / where))
    assert len(analyse(job(tmp_path / "t.json")).ranks) == 1


def test_a_damaged_entry_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = job(tmp_path / "t.json")
    times = analyse(path).times
    (entry,) = cache.folder().glob("*.columns")
    good = entry.read_bytes()
    for at in range(0, len(good), max(1, len(good) // 60)):
        entry.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
        assert analyse(path).times == times
    for error in (NotImplementedError, RuntimeError, MemoryError):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np, "load", lambda *_, error=error, **__: (_ for _ in ()).throw(error()))
            assert analyse(path).times == times


def test_a_second_look_at_a_processors_trace_reads_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = gloo_trace(tmp_path / "t.json.gz")
    first = analyse(path).ranks[0]
    monkeypatch.setattr(cache, "_read", None)
    again = analyse(path).ranks[0]
    assert (again.times, again.collectives, again.kernels) == (first.times, first.collectives, first.kernels)
    status = path.stat()
    data = bytearray(path.read_bytes())
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # ctime tells all the same
    with pytest.raises(TypeError):
        analyse(path)


def test_workers_import_nothing_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [job(tmp_path / f"rank{i}.json", rank=i) for i in range(2)]
    (tmp_path / "queue.py").write_text("raise SystemExit('taken from the current folder')")
    monkeypatch.setattr(sys.modules["knee.measure.traces.analyse"], "PARALLEL_BYTES", 0)
    monkeypatch.setattr(sys, "path", ["", *(one for one in sys.path if one != str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert len(analyse(paths, cache=False).ranks) == 2


def test_an_interrupt_ends_the_workers_too_and_in_silence(tmp_path: Path) -> None:
    """Two files are large enough for workers; the pipe, to which nobody writes, is never read to its end."""
    for i in range(2):
        path = write(tmp_path / f"rank{i}.json", document([event(0, 5)]))
        os.truncate(path, 1 << 25)
    pipe = tmp_path / "pipe_rank2"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [sys.executable, "-m", "knee", "trace", "--no-cache", *sorted(tmp_path.iterdir())],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    ) as run:
        while run.poll() is None and not (workers := children_of(run.pid)) and not is_opened(pipe):
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate()
    assert b"Traceback" not in said
    assert run.returncode == 130
    while any(map(is_running, workers)):  # one that was just started ends with its pipe
        time.sleep(0.01)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_opened(pipe: Path) -> bool:
    """Whether somebody reads from it: until then it cannot be opened for writing without waiting."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
