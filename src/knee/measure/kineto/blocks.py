"""A file's bytes in blocks, unpacked on a thread of its own, so that a trace is never in memory as a whole."""

from __future__ import annotations

import queue
import sys
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path

from knee.base.errors import InputError
from knee.base.files import cannot_read, open_input
from knee.base.limits import GIB, MOST_TRACE_BYTES

BLOCK_BYTES = 1 << 18
"""Large enough that cutting costs nothing, small enough that a block's events stay in the cache."""
TOGETHER = 8
"""Blocks that are unpacked at once, one at first, for which decoding waits."""
SWITCH_S = 1e-4
"""How long the thread that unpacks waits for the interpreter's lock, which decoding does not let go of by itself.
Python's 5 ms, for each of the buffers that zlib asks for, are longer than unpacking takes: the two would take turns."""
AHEAD = 2
"""Blocks that are unpacked before they are asked for."""
GZIP = b"\x1f\x8b"


class CutOff(Exception):
    """The file ends before its content does; what came before is good."""


def too_large(path: Path) -> InputError:
    """What is said of a trace, or a folder of them, that would take hours."""
    return InputError(
        f"{path} has more than {MOST_TRACE_BYTES // GIB:,} GiB of unpacked trace, which is the most that knee reads",
        hint="give fewer ranks, or trace fewer steps (torch.profiler.schedule)",
        code="too-large",
    )


def blocks(path: Path, size: int | None = None, *, copy: Path | None = None) -> Generator[memoryview, None, None]:
    """The content, unpacked where it is gzip. Raises ``CutOff`` after the last good block of a damaged file.

    What is read is written to ``copy`` too, where there is one: a pipe gives it once only.
    zlib works without the interpreter's lock, so that unpacking and decoding share two cores.
    """
    block_bytes = size or BLOCK_BYTES
    ready: queue.Queue[bytes | Exception | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: bytes | Exception | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            left = MOST_TRACE_BYTES
            for block in _unpacked(path, block_bytes, copy):
                left -= len(block)
                if left < 0:
                    raise too_large(path)
                if not put(block):
                    return
            put(None)
        except Exception as error:  # handed to the reader
            put(error)

    thread = threading.Thread(target=work, name="knee-unpack", daemon=True)
    thread.start()
    _switches.begin()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            several = memoryview(item)
            yield from (several[at : at + block_bytes] for at in range(0, len(item), block_bytes))
    finally:
        _switches.end()
        stop.set()  # not waited for: it may be reading a pipe that nobody writes to


class _QuickSwitches:
    """The interpreter's interval of switching threads, shorter while any trace is read and as it was afterwards."""

    def __init__(self) -> None:
        self.lock, self.readers, self.before_s = threading.Lock(), 0, 0.0

    def begin(self) -> None:
        with self.lock:
            if not self.readers:
                self.before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_S, self.before_s))
            self.readers += 1

    def end(self) -> None:
        with self.lock:
            self.readers -= 1
            if not self.readers:
                sys.setswitchinterval(self.before_s)


_switches = _QuickSwitches()


def _unpacked(path: Path, size: int, copy: Path | None) -> Iterator[bytes]:
    try:
        with open_input(path) as file, copy.open("wb") if copy is not None else nullcontext() as target:

            def read(count: int) -> bytes:
                data = file.read(count)
                if target is not None:
                    target.write(data)
                return data

            first = read(size)
            if first[: len(GZIP)] == GZIP:
                yield from _gunzipped(iter(lambda: read(max(size * TOGETHER // 8, 1)), b""), first, size)
                return
            while first:
                yield first
                first = read(size * TOGETHER)
    except OSError as error:
        raise cannot_read(path, error, field="paths") from None


def _gunzipped(packed: Iterator[bytes], first: bytes, size: int) -> Iterator[bytes]:
    """One gzip member after another; zeros after the last are padding."""
    unpacker, data, most = zlib.decompressobj(31), first, size
    while True:
        if not data:
            data = next(packed, b"")
        if not data:
            if unpacker.eof:
                return
            raise CutOff("the gzip stream ends too early")
        if unpacker.eof:
            data = data.lstrip(b"\0")
            if not data:
                continue
            unpacker = zlib.decompressobj(31)
        try:
            block = unpacker.decompress(data, most)
        except zlib.error as error:
            raise CutOff(f"the gzip stream is damaged ({error})") from None
        data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if block:
            yield block
            most = min(2 * most, size * TOGETHER)
