"""What a case must not do: start programs, signal processes, write outside its folder, or use the network.

An audit hook of Python sees each of these before it happens and refuses it as the system would. Starting Python (a run
of `knee train`, `knee sweep` or `knee study --launcher local`) and importing torch (`knee dryrun`, a probe) end the
case as answered: the work was about to begin. Other programs (squeue, sbatch, git, ssh, nvidia-smi) are not there.
Signals reach nobody, and one to process 1 or below, which would be a signal to everyone, is a finding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

ALLOWED = ("/dev/", "/proc/")
"""Devices take what is written; nothing can be made among processes."""
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto")
FORKS = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "os.spawn")
PATHS: dict[str, tuple[int, ...]] = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
}
"""Event -> which of its arguments are paths that it changes."""


class Started(BaseException):
    """The work was about to begin. No Exception, because programs catch those."""


@dataclass(slots=True)
class Guard:
    """What the hook knows of the case that runs."""

    root: str = ""
    active: bool = False
    words: Sequence[str] = ()
    violations: list[str] = field(default_factory=list)
    started: bool = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for every event."""
        if not self.active:
            return
        if event == "open":
            self._open(*args[:3])
        elif event in PATHS:
            for number in PATHS[event]:
                self._inside(args[number], event)
        elif event == "subprocess.Popen":
            self._program(args[0], args[1])
        elif event in FORKS or (event == "import" and args[0] == "torch"):
            self.started = True
            raise Started(event)
        elif event in ("os.kill", "os.killpg"):
            self._signal(int(args[0]), event)
        elif event in NETWORK:
            raise OSError("no network is there while fuzzing")

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else False
        if writes or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            self._inside(path, "open")

    def _inside(self, path: Any, event: str) -> None:
        if isinstance(path, int):
            return
        where = os.path.abspath(os.fsdecode(path))
        if where.startswith((self.root, *ALLOWED)) or "/__pycache__" in where:  # Python keeps what it compiles
            return
        first = "/" + where.split("/")[1]
        if not any(first in word for word in self.words):  # nobody asked for it
            self.violations.append(f"{event} of {where}")
        raise PermissionError(13, "not while fuzzing", where)

    def _program(self, executable: Any, words: Any) -> None:
        """Python was to be started, or a program that is not there."""
        first = executable or (words[0] if isinstance(words, (list, tuple)) and words else words)
        name = Path(os.fsdecode(first)).name if isinstance(first, (str, bytes, os.PathLike)) else ""
        if name.startswith(("python", "bash", "sh")):
            self.started = True
            raise Started(name)
        raise FileNotFoundError(2, "no such program while fuzzing", name)

    def spawn(self, start: Callable[..., int]) -> Callable[..., int]:
        """How multiprocessing starts Python, as long as no case runs."""

        def started(*args: Any) -> int:
            if self.active:
                self.started = True
                raise Started("multiprocessing")
            return start(*args)

        return started

    def _signal(self, target: int, event: str) -> None:
        if target <= 1:
            self.violations.append(f"{event} of {target}")
        raise ProcessLookupError(3, "no such process")


GUARD = Guard()
_installed: list[Callable[..., None]] = []


@contextmanager
def guarded(root: Path, words: Sequence[str]) -> Iterator[list[str]]:
    """While it lasts; what was done against the rules."""
    if not _installed:  # a hook stays for the process' life
        sys.addaudithook(GUARD.hook)
        util.spawnv_passfds = GUARD.spawn(util.spawnv_passfds)  # type: ignore[attr-defined] - no audit event tells of it
        _installed.append(GUARD.hook)
    GUARD.root, GUARD.words, GUARD.violations, GUARD.started, GUARD.active = str(root), words, [], False, True
    try:
        yield GUARD.violations
    finally:
        GUARD.active = False
