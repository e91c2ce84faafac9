"""Which files are meant by what was given: of a folder, those that are traces; and why others are not read."""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from knee.base.errors import InputError
from knee.base.files import cannot_read
from knee.base.limits import MOST_TRACES
from knee.measure.kineto.blocks import GZIP
from knee.measure.kineto.event_stream import HINT, SPACE

IN_FOLDERS = ("*.json", "*.json.gz", "*/*.json", "*/*.json.gz")
OWN_FOLDER = "traces"
"""Where a run of knee has its traces, beside files about the run."""
STDIN = "-"
START_BYTES = 1 << 16
"""Of a file, to see what it is."""
TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"')
"""One of them is near the beginning of every trace."""
SHOWN = 5
"""Files that the audit names for one reason."""
NAME_PARTS = ("trace", "rank")
"""Words in the names of traces: a file with one that is empty or damaged is a trace that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTrace:
    """A file that is in no number of the answer."""

    path: Path
    why: str
    is_trace: bool
    """Whether it is a trace, and the answer therefore not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """The traces that were given, and the files beside them that are not read."""

    files: tuple[Path, ...]
    left_out: tuple[SkippedTrace, ...]


def find_files(paths: Iterable[str | Path]) -> TraceFiles:
    """The files that are meant: those of a folder are its .json and .json.gz, in it or one level below, that begin like
    a trace; only those in its folder ``traces`` where it has one."""
    found: list[Path] = []
    left_out: list[SkippedTrace] = []
    names = [str(path) for path in paths]
    if "" in names:
        hint = "check whether a shell variable is unset"
        raise InputError("a trace path is empty", hint=hint, code="missing-argument", field="paths")
    for path in (Path("/dev/stdin") if name == STDIN else Path(name) for name in names):
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            raise cannot_read(path, error, hint=HINT, field="paths") from None
        if is_folder:
            inside = _in_folder(path)
            found += inside.files
            left_out += inside.left_out
        else:
            found.append(path)
    given = dict.fromkeys(found)
    files = tuple(given)
    _check_count(len(files), "what was given")
    if not files:
        hint = "give trace files or folders that contain traces"
        raise InputError("no trace is given", hint=hint, code="missing-argument", field="paths")
    return TraceFiles(files=files, left_out=tuple(one for one in dict.fromkeys(left_out) if one.path not in given))


def _check_count(count: int, where: str) -> None:
    """Before the first is opened."""
    if count > MOST_TRACES:
        raise InputError(
            f"{where} has {count:,} files that may be traces, but knee reads at most {MOST_TRACES:,} ranks together",
            hint="give the traces of some of the ranks",
            code="too-many",
            field="paths",
        )


def _in_folder(folder: Path) -> TraceFiles:
    from knee.specs.notes import Note  # and with it all specs: only folders need them

    inside = sorted({p for pattern in IN_FOLDERS for p in folder.glob(pattern) if p.is_file()})
    if not inside:
        text = f"{folder} and the folders directly below it contain no .json or .json.gz file"
        raise InputError(text, hint=HINT, code="nothing-usable", field="paths")
    own = {p for p in inside if p.parent == folder / OWN_FOLDER}
    _check_count(len(own or inside), str(folder))
    files: list[Path] = []
    left_out: list[SkippedTrace] = []
    for path in inside:
        beside = Note("beside-traces", f"only {folder / OWN_FOLDER} is read")
        why = beside if own and path not in own else _no_trace(path)
        if why is None:
            files.append(path)
        else:
            left_out.append(SkippedTrace(path=path, why=why, is_trace=False))
    if not files:
        first = left_out[0]
        raise InputError(
            f"{folder} and the folders directly below it contain no trace: {len(inside):,} files end in "
            f".json or .json.gz, the first is {first.path} ({first.why})",
            hint=HINT,
            code="nothing-usable",
            field="paths",
        )
    return TraceFiles(files=tuple(files), left_out=tuple(left_out))


def _no_trace(path: Path) -> str | None:
    """Why a file in a folder is not taken for a trace; None where it is one, or has a trace's name and is damaged."""
    from knee.specs.notes import Note

    if path.name.startswith("."):
        return Note("hidden", "it is hidden or still being written")
    try:
        start = _start(path).lstrip(SPACE + b"\xef\xbb\xbf")
    except (OSError, zlib.error) as error:
        start = b""
        why = Note("unreadable", f"it cannot be read: {getattr(error, 'strerror', None) or error}")
    else:
        why = Note("empty", "it is empty")
    if not start:
        return None if any(word in path.name.lower() for word in NAME_PARTS) else why
    looks = start[:1] in (b"{", b"[") and any(word in start for word in TRACE_KEYS)
    return None if looks else Note("not-a-trace", "it does not begin like a trace")


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        start = file.read(START_BYTES)
    return zlib.decompressobj(31).decompress(start, START_BYTES) if start[: len(GZIP)] == GZIP else start


def left_out_sentences(left_out: Sequence[SkippedTrace]) -> list[str]:
    """What the audit says of them: each trace that could not be read, and others by their reason."""
    said = [
        f"not read: {one.why if str(one.path) in one.why else f'{one.path}: {one.why}'}"
        for one in left_out
        if one.is_trace
    ]
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        if not one.is_trace:
            reasons.setdefault(one.why, []).append(str(one.path))
    for why, names in reasons.items():
        more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
        said.append(f"not read, as {why}: {', '.join(names[:SHOWN])}{more}")
    return said
