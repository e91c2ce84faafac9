"""SIGINT, SIGTERM and SIGHUP at moments that are sure: a command that waits for its input, its reader, or for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import ExitCode
from waiting import until

SOURCES = Path(__file__).parents[2] / "src"
ASK = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8", "--local-batch", "2")
SAFETY_S = 60
"""Only against a test that never ends."""
BOTH = pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGHUP, ExitCode.HUNG_UP)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts Python as a background job of a shell is started: SIGINT is ignored by its parent."""
    (tmp_path / "scratch").mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(SOURCES),
        "TMPDIR": str(tmp_path / "scratch"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def begin(*words: Any, **more: Any) -> subprocess.Popen[str]:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return subprocess.Popen(
                [sys.executable, *map(str, words)],
                env=environment,
                text=True,
                start_new_session=True,
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    return begin


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what was said on stderr; nothing that it started may still run."""
    try:
        _, said = process.communicate(timeout=SAFETY_S)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return process.returncode, said.strip()  # click ends the line that Ctrl-C may stand on


@pytest.mark.slow
@BOTH
def test_a_command_that_waits_for_its_input(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals, code: ExitCode
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    process = start("-m", "knee", "trace", tmp_path / "pipe.json", "--html", tmp_path / "page.html")
    with (tmp_path / "pipe.json").open("w", encoding="utf-8") as pipe:  # returns once somebody reads
        pipe.write('{"traceEvents": [\n')
        pipe.flush()
        process.send_signal(number)
        assert end_of(process) == (code, "")
    assert not (tmp_path / "page.html").exists()
    assert os.listdir(tmp_path / "scratch") == []


def test_a_command_whose_reader_does_not_read(start: Callable[..., subprocess.Popen[str]]) -> None:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = start("-m", "knee", *ASK, "--json", "--why", stdout=writer)  # one write, larger than the pipe
    os.close(writer)
    while struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0] < size:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (ExitCode.INTERRUPTED, "")
    os.close(reader)


LISTENS = "import os, signal, sys; from pathlib import Path; from knee.base import signals; signals.listen()\n"
STUBBORN = """
from knee.base.files import replacing
with replacing(Path(sys.argv[1]) / "a.txt") as partial:
    partial.write_text("half")
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("heard", flush=True)
        while True:
            try:
                signal.pause()
            except KeyboardInterrupt:
                pass
"""


@BOTH
@pytest.mark.parametrize("twice", [True, False], ids=["twice", "once"])
def test_a_clean_up_that_never_ends(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals, code: ExitCode, twice: bool
) -> None:
    """A second signal ends it at once, and so does the first after a while."""
    patience = "" if twice else "signals.GRACE_S = 0.0\n"
    (tmp_path / "out").mkdir()
    process = start("-c", LISTENS + patience + STUBBORN, tmp_path / "out")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    if twice:
        assert process.stdout.readline() == "heard\n"
        process.send_signal(number)
    assert end_of(process) == (code, "")
    assert os.listdir(tmp_path / "out") == []


def test_a_signal_that_arrives_in_a_destructor(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Python drops what is raised there."""
    code = (
        LISTENS
        + """
class Destroyed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
one = Destroyed()
del one
print("goes on")
"""
    )
    assert end_of(start("-c", code)) == (ExitCode.INTERRUPTED, "")


def test_a_signal_after_the_answer_does_not_change_it(start: Callable[..., subprocess.Popen[str]]) -> None:
    code = LISTENS + "signals.ending(5); print('ready', flush=True); signal.pause()"
    process = start("-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (ExitCode.IN_PART, "")


def test_a_child_that_was_forked_does_not_speak_for_its_parent(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Signals of a fork would be written to the pipe that it shares with its parent."""
    code = (
        LISTENS
        + """
signals.GRACE_S = 0.0
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, signals._hear)
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        os._exit(7)
os.kill(child, signal.SIGTERM) if sys.stdin.readline() else None
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
sys.stdin.readline()
"""
    )
    process = start("-c", code, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "7\n"
    assert end_of(process)[0] == 0


READS = """
import os, sys
from pathlib import Path
from knee.base.processes import process_pool
from knee.measure.traces.kernel_classes import classes_of
from knee.measure.traces.read_trace import read_trace
if __name__ == "__main__":
    with process_pool(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(read_trace, Path(sys.argv[1]), classes_of()).result()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["parent", "worker"])
def test_a_reader_of_traces_ends_with_whoever_asked(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: str
) -> None:
    """Also in the middle of a trace, and without a copy left behind."""
    os.mkfifo(tmp_path / "pipe.json")
    process = start("-c", READS, tmp_path / "pipe.json")
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    with (tmp_path / "pipe.json").open("w", encoding="utf-8"):  # returns once it reads
        process.kill() if how == "parent" else os.kill(worker, signal.SIGTERM)
        process.communicate(timeout=SAFETY_S)
        until(lambda: not Path(f"/proc/{worker}").exists())
    assert os.listdir(tmp_path / "scratch") == []


def test_until_signals_are_heard_an_interrupt_is_silent(start: Callable[..., subprocess.Popen[str]]) -> None:
    """What is imported first may not be long in coming, nor leave a traceback."""
    code = "import sys, knee.__main__; print(*sys.modules); import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    process = start("-c", code)
    assert process.stdout is not None
    before = set(process.stdout.readline().split())
    assert not {"click", "typing", "numpy", "enum", "re"} & before
    assert end_of(process) == (-signal.SIGINT, "")
