"""One case: files, the words of a command, and what comes in by standard input."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is given to ``knee``."""

    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path inside the case's folder -> content."""
    stdin: bytes = b""

    def write(self, folder: Path) -> None:
        """Put its files there."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def plain(self) -> dict[str, object]:
        """As JSON holds it; words may have lone surrogates, which JSON escapes."""
        return {
            "words": list(self.words),
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "stdin": base64.b64encode(self.stdin).decode(),
        }


def read_case(path: Path) -> Case:
    """One that was kept."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    return Case(
        words=tuple(plain["words"]),
        files={name: base64.b64decode(data) for name, data in plain["files"].items()},
        stdin=base64.b64decode(plain["stdin"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of input."""

    name: str
    weight: float
    """Share of all cases, in percent; what takes long to answer is asked less often."""
    make: Callable[[Random], Case]

    def case(self, seed: int, number: int) -> Case:
        """The case of that number: the same one for the same seed."""
        case = self.make(Random(f"{seed}/{self.name}/{number}"))
        return replace(case, words=tuple(map(as_argument, case.words)))


def as_argument(word: str) -> str:
    """As a program can get it: no argument has a zero in it, and bytes that are no text come as lone surrogates."""
    return os.fsdecode(word.replace("\0", "").encode("utf-8", "surrogatepass"))
