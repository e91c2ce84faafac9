"""A trace's columns beside the user's other caches, so that a second look is instant.

An entry holds only for a file of the same size, times of change, and first and last bytes, read by this very reader;
one that is damaged, or does not hold, is read anew and replaced. Nothing fails for want of a cache. What is no plain
file (a pipe, the standard input) can be read once only: it is copied first, and has no entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from knee.errors import KneeError
from knee.kineto.collect import read_columns
from knee.kineto.decode import Args
from knee.kineto.event_columns import Counts, LaunchCall, RankTrace, Step, of_gpu
from knee.kineto.event_stream import ReportBytes

EDGE_BYTES = 4096
END = b"\n\0"
"""Behind the text of an entry, which JSON escapes: the columns follow."""
DIGEST_BYTES = ALIGNED_BYTES = 16
LARGEST_BYTES = 256 << 20
"""Of all entries together; the ones not looked at for longest go first."""
ARRAYS = ("start_ns", "end_ns", "kind", "stream", "device", "correlation", "name_id", "launch_correlation", "launch_ns")
READERS = (
    "blocks",
    "collect",
    "number_columns",
    "event_columns",
    "decode",
    "gloo",
    "cpu_trace",
    "nested_spans",
    "event_stream",
)
"""Modules whose text decides what an entry says."""


def cached_columns(path: Path, *, use: bool, report_bytes: ReportBytes | None) -> RankTrace:
    """Return the columns of a trace, from the cache where it has them and ``use`` allows it."""
    if not path.is_file():
        return _read_pipe(path, report_bytes)
    if not use:
        return _read(path, report_bytes)
    try:
        entry, seal = _entry(path), _seal(path)
    except (OSError, RuntimeError):  # there may be no home to have a cache in
        return _read(path, report_bytes)
    trace = _load(entry, seal, path)
    if trace is None:
        trace = _read(path, report_bytes)
        _save(entry, seal, trace)
    return trace


def _read(path: Path, report_bytes: ReportBytes | None) -> RankTrace:
    trace = read_columns(path, report_bytes=report_bytes)
    if len(trace) or of_gpu(trace):
        return trace
    from knee.kineto.cpu_trace import host_columns  # traces of GPUs need none of it

    return host_columns(trace)


def _read_pipe(path: Path, report_bytes: ReportBytes | None) -> RankTrace:
    """Read the trace of a processor twice: the second time from a copy, which ends where the first gave up."""
    from knee.files import scratch_folder  # which takes longer to import than the cache to read

    with scratch_folder() as made:
        copy = made / "trace"
        trace = read_columns(path, copy=copy, report_bytes=report_bytes)
        if not len(trace) and not of_gpu(trace):
            from knee.kineto.cpu_trace import host_columns

            trace = replace(host_columns(replace(trace, path=copy)), path=path)
    return trace


def folder() -> Path:
    """Return the folder that has the entries."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "knee" / "traces"


def _entry(path: Path) -> Path:
    return folder() / f"{hashlib.blake2b(str(path.resolve()).encode(), digest_size=16).hexdigest()}.columns"


def _seal(path: Path) -> dict[str, Any]:
    """What must be the same for an entry to hold."""
    status = path.stat()
    with path.open("rb") as file:
        edges = file.read(EDGE_BYTES)
        file.seek(max(0, status.st_size - EDGE_BYTES))
        edges += file.read(EDGE_BYTES)
    return {
        "size": status.st_size,
        "changed_ns": [status.st_mtime_ns, status.st_ctime_ns],
        "edges": hashlib.blake2b(edges).hexdigest(),
        "reader": _reader(),
    }


@cache
def _reader() -> str:
    """The reader's own text: an entry of another one means nothing."""
    digest = hashlib.blake2b(digest_size=16)
    for name in READERS:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


def _save(entry: Path, seal: dict[str, Any], trace: RankTrace) -> None:
    from knee.files import replacing

    others = {f.name: getattr(trace, f.name) for f in fields(trace) if f.name not in (*ARRAYS, "path")}
    others |= {
        "args": [[row, list(args)] for row, args in trace.args.items()],
        "issued": [[row, list(call)] for row, call in trace.issued.items()],
        "steps": [asdict(step) for step in trace.steps],
        "counts": asdict(trace.counts),
    }
    # no room, no right to write, or what no JSON holds
    with contextlib.suppress(KneeError, OSError, TypeError, ValueError, RecursionError):
        lengths = [len(getattr(trace, name)) for name in ARRAYS]
        text = json.dumps({"seal": seal, "others": others, "lengths": lengths}).encode() + END
        entry.parent.mkdir(parents=True, exist_ok=True)
        columns = b"".join(np.asarray(getattr(trace, name), dtype="<i8").tobytes() for name in ARRAYS)
        content = text.ljust(-(-len(text) // ALIGNED_BYTES) * ALIGNED_BYTES) + columns
        with replacing(entry) as partial:
            partial.write_bytes(_digest(content) + content)
        _prune(entry.parent)


def _load(entry: Path, seal: dict[str, Any], path: Path) -> RankTrace | None:
    try:
        stored = entry.read_bytes()  # one read
        content = memoryview(stored)[DIGEST_BYTES:]
        end = stored.index(END)
        text = json.loads(stored[DIGEST_BYTES:end])
        if text["seal"] != seal or stored[:DIGEST_BYTES] != _digest(content):
            return None
        at = -(-(end + len(END) - DIGEST_BYTES) // ALIGNED_BYTES) * ALIGNED_BYTES
        arrays: dict[str, Any] = {}
        for name, length in zip(ARRAYS, text["lengths"], strict=True):
            arrays[name] = np.frombuffer(content, dtype="<i8", count=length, offset=at)
            at += arrays[name].nbytes
        others = text["others"]
        others["args"] = {int(row): Args(*values) for row, values in others["args"]}
        others["issued"] = {int(row): LaunchCall(*values) for row, values in others["issued"]}
        others["steps"] = tuple(Step(**step) for step in others["steps"])
        others["counts"] = Counts(**others["counts"])
        others["names"], others["notes"] = tuple(others["names"]), tuple(others["notes"])
        os.utime(entry)
        return RankTrace(path=path, **arrays, **others)
    except Exception:  # a damaged entry fails in as many ways as NumPy and JSON know
        return None


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _prune(where: Path) -> None:
    entries = sorted(((e.stat().st_mtime, e.stat().st_size, e) for e in where.iterdir()), reverse=True)
    total = 0
    for _, size, entry in entries:
        total += size
        if total > LARGEST_BYTES:
            entry.unlink(missing_ok=True)
