"""Standard output and standard error whose failures wait for the end, so that no file depends on them.

A reader may leave (`| head -1`), a disk may be full (`> answer.json`), a descriptor may be closed (`>&-`). The command
goes on all the same, so that every file it was asked for is written; then it ends with the code for what happened.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

from knee.base.errors import ExitCode, NotWritten

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Descriptor(io.FileIO):
    """Writes to a descriptor. The first failure is kept, and what comes after it is dropped."""

    failure: OSError | None = None
    given_up = False

    def write(self, data: ReadableBuffer) -> int:
        """As many bytes as were taken, or dropped."""
        if self.failure is None and not self.given_up:
            try:
                while (taken := super().write(data)) is None:  # somebody has made it non-blocking
                    select.select([], [self], [])
                return taken
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


class Delivery:
    """The two streams, as long as a command runs."""

    def __enter__(self) -> Delivery:
        self._before = sys.stdout, sys.stderr
        self._own = [_guarded(stream) for stream in self._before]
        sys.stdout, sys.stderr = (stream or before for stream, before in zip(self._own, self._before, strict=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:  # after a signal nothing is waited for: the reader of a full pipe may never come back
                sys.stdout.flush()
                sys.stderr.flush()
        finally:
            sys.stdout, sys.stderr = self._before
            for stream in filter(None, self._own):
                _raw(stream).given_up = True
                if _raw(stream).closefd:
                    stream.close()

    def check(self) -> ExitCode:
        """What standard output says at the end; NotWritten where it took less than all."""
        sys.stdout.flush()
        failure = None if self._own[0] is None else _raw(self._own[0]).failure
        if failure is None:
            return ExitCode.ANSWERED
        if failure.errno == errno.EPIPE:
            return ExitCode.READER_LEFT
        why = "standard output is closed" if failure.errno == errno.EBADF else failure.strerror or str(failure)
        raise NotWritten(
            f"the answer could not be written: {why}", hint="redirect the output to a file on a disk with free space"
        )


def nobody_reads() -> bool:
    """Whether what is printed is dropped by now: whoever would print for ever may stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, Descriptor) and raw.failure is not None


def _raw(stream: io.TextIOWrapper) -> Descriptor:
    assert isinstance(stream.buffer, io.BufferedWriter)
    assert isinstance(stream.buffer.raw, Descriptor)
    return stream.buffer.raw


def _guarded(stream: TextIO | None) -> io.TextIOWrapper | None:
    """A stream over the same descriptor; None for one that has none, a test's or a notebook's."""
    if stream is None:  # closed by whoever started this: what is written to it fails
        raw = Descriptor(os.open(os.devnull, os.O_RDONLY), "w", closefd=True)
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        stream.flush()
        raw = Descriptor(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return None
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )
