"""A trace's events as they come out of a file, a block at a time, and what stands around them.

A block is cut between two events. Where that is is guessed, and the guess is proven: a text that begins between two
events and parses as a list of them ends between two as well, since brackets and quotes inside it are closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.measure.kineto.blocks import CutOff, blocks
from knee.measure.kineto.decode import EventDecoder, NotJson, decode_object, event_of, repaired, scan

ReportBytes = Callable[[int], None]
"""Called with the number of unpacked bytes that were just read."""
KEY = re.compile(r'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+(\[?)', re.DOTALL)
BETWEEN = re.compile(rb"\}\s*+,\s*+\{")
SEPARATORS = re.compile(r"[ \t\r\n,]*+")
GUESSES = 4
LONGEST_EVENT_BYTES = 1 << 24
"""More text without a whole event is no trace."""
LONGEST_HEAD_BYTES = 1 << 26
NEAR_BYTES = 1 << 10
"""Where the end of an event is looked for first."""
SPACE = b" \t\r\n"
LONGEST_LETTER = 4
"""Bytes of UTF-8."""


@dataclass(slots=True, kw_only=True)
class EventStream:
    """One file's events. ``head``, ``cut`` and ``repairs`` are known once all events were taken."""

    path: Path
    all_args: bool = False
    copy: Path | None = None
    """A file to write all to that is read."""
    report_bytes: ReportBytes | None = None
    head: dict[str, Any] = field(default_factory=dict)
    """What the document says besides its events."""
    cut: str | None = None
    """Why the end of the file could not be read; None for a whole file."""
    repairs: int = 0
    """Blocks in which numbers were put right that JSON does not have."""
    is_list: bool = False
    """Whether the document is nothing but its events."""
    closed: bool = False
    """Whether the end of the events was seen."""
    decoder: EventDecoder = field(init=False)

    def __post_init__(self) -> None:
        self.decoder = EventDecoder(all_args=self.all_args)

    def events(self) -> Iterator[list[Any]]:
        """Lists of events, in the file's order."""
        with closing(blocks(self.path, copy=self.copy)) as source:
            buffer = _Buffer(self, source)
            self._enter(buffer)
            more = True
            while more:
                if events := self._whole_block(buffer):
                    yield events
                more = buffer.more() if events else buffer.double()
            if not self.closed:
                yield self._one_by_one(buffer)

    def _enter(self, buffer: _Buffer) -> None:
        """Read up to the first event."""
        while not buffer.text and buffer.more():
            buffer.text = buffer.text.lstrip(SPACE + b"\xef\xbb\xbf")
        start = buffer.text
        if not start:
            if self.cut:
                raise self._cut_before_any()
            raise InputError(f"{self.path} is empty", code="empty")
        if start.startswith(b"["):
            buffer.text, self.is_list = start[1:], True
            return
        if not start.startswith(b"{"):
            begins = start[:20].decode("utf-8", "replace")
            raise InputError(f"{self.path} is not JSON: it begins with {begins!r}", hint=HINT, code="not-json")
        if self._find_events(buffer):
            return
        if self.cut:
            raise self._cut_before_any()
        try:
            decode_object(buffer.text)
        except NotJson:
            text = f"{self.path} is incomplete JSON and has no traceEvents"
            raise InputError(text, hint=HINT, code="not-json") from None
        raise InputError(f"{self.path} is not a Kineto trace: it has no traceEvents", hint=HINT, code="not-a-trace")

    def _cut_before_any(self) -> InputError:
        return InputError(f"{self.path}: {self.cut}, before any event", code="cut-off")

    def _find_events(self, buffer: _Buffer) -> bool:
        """Read up to the events; False where there are none."""
        at = 1
        while True:
            for repair in (False, True):
                text = repaired(buffer.text, by=b"0") if repair else buffer.text  # of one length: places stay the same
                at, events = _past_keys(text.decode("latin-1"), at)
                if events is not None:
                    return self._take_head(buffer, at, events)
            if buffer.text[at : at + 1] == b"}" or len(buffer.text) > LONGEST_HEAD_BYTES or not buffer.double():
                return False

    def _take_head(self, buffer: _Buffer, end: int, events: int) -> bool:
        try:
            head = decode_object(repaired(buffer.text[:end] + b'"traceEvents":[]}'))
        except NotJson:
            return False
        self.head |= {name: value for name, value in head.items() if name != "traceEvents"}
        buffer.text = buffer.text[events:]
        return True

    def _whole_block(self, buffer: _Buffer) -> list[Any]:
        """Events of the buffer up to a proven cut; none where there is no such cut."""
        end = len(buffer.text)
        for _ in range(GUESSES):
            at = _last_between(buffer.text, end)
            if at is None:
                break
            events = self._decoded(buffer.text[: at[0] + 1])
            if events is not None:
                buffer.text = buffer.text[at[1] :]
                return events
            end = at[0]
        if len(buffer.text) <= LONGEST_EVENT_BYTES:
            return []
        events = self._one_by_one(buffer, last=False)
        if not events and len(buffer.text) > LONGEST_EVENT_BYTES:
            text = f"{self.path}: {LONGEST_EVENT_BYTES >> 20} MiB of the file contain no event"
            raise InputError(text, hint=HINT, code="not-a-trace")
        return events

    def _decoded(self, text: bytes) -> list[Any] | None:
        for repair in (False, True):
            changed = repaired(text) if repair else text
            if repair and changed == text:
                return None
            try:
                events = self.decoder.decode(b"[" + changed + b"]")
            except NotJson:
                continue
            self.repairs += repair
            return events
        return None

    def _one_by_one(self, buffer: _Buffer, *, last: bool = True) -> list[Any]:
        """Events one after the other, up to the end of their list, to what is incomplete, or to what is no JSON."""
        rest = buffer.text
        if not last:  # the last letter may be cut in two: leave it, from its first byte on
            ends = rest[-LONGEST_LETTER:]
            rest = rest[: -next((i for i in range(1, len(ends) + 1) if ends[-i] & 0xC0 != 0x80), 1)]
        found: list[Any] = []
        text, at, is_repaired = rest.decode("utf-8", "replace"), 0, False
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                self._leave(text[at + 1 :].encode() + buffer.text[len(rest) :] + buffer.rest())
                return found
            try:
                one, end = scan(text, at)
            except (ValueError, RecursionError):
                if not is_repaired:
                    left, is_repaired = text[at:], True
                    text, at = repaired(left.encode()).decode(), 0
                    self.repairs += text != left
                    continue
                if last and self.cut is None:
                    inside = "the file ends in the middle of an event, or is not valid JSON from there on"
                    self.cut = inside if text[at:].strip() else "the list of events is not closed"
                break
            if isinstance(one, dict):
                found.append(event_of(one, self.all_args))
            at = end
        if not last:
            buffer.text = text[at:].encode() + buffer.text[len(rest) :]
        return found

    def _leave(self, rest: bytes) -> None:
        """What the document says after its events."""
        self.closed = True
        rest = rest.strip()
        if self.cut or (self.is_list and not rest):
            return
        try:
            after = decode_object(b"{" + repaired(rest).lstrip(SPACE + b","))
        except NotJson:
            self.cut = "the part after the events is incomplete"
            return
        self.head |= {name: value for name, value in after.items() if name != "traceEvents"}


HINT = "give a trace from torch.profiler's export_chrome_trace, as .json or .json.gz"


class _Buffer:
    """Text that was read and not yet decoded."""

    def __init__(self, stream: EventStream, source: Iterator[memoryview]) -> None:
        self.stream, self.source = stream, source
        self.text, self.ended = b"", False

    def more(self) -> bool:
        """Add a block; False at the end."""
        if self.ended:
            return False
        try:
            block = next(self.source, None)
        except CutOff as why:
            self.stream.cut, block = str(why), None
        if block is None:
            self.ended = True
            return False
        self.text += block
        if self.stream.report_bytes is not None:
            self.stream.report_bytes(len(block))
        return True

    def double(self) -> bool:
        """Add as much as there is, so that looking again and again takes no longer than the text; False at the end."""
        before, self.text, size = [self.text], b"", max(1, len(self.text))
        while size > 0 and self.more():
            size -= len(self.text)
            before.append(self.text)
            self.text = b""
        self.text = b"".join(before)
        return len(before) > 1

    def rest(self) -> bytes:
        """All that is left to read; nothing more is wanted then."""
        parts: list[bytes] = []
        self.text, size = b"", 0
        while size < LONGEST_HEAD_BYTES and self.more():
            parts.append(self.text)
            self.text, size = b"", size + len(self.text)
        self.ended = True
        return b"".join(parts)


def _last_between(text: bytes, end: int) -> tuple[int, int] | None:
    """Where the last event before ``end`` that another follows seems to close, and where that one begins."""
    reach = NEAR_BYTES
    while True:
        begin, found = max(0, end - reach), None
        for found in BETWEEN.finditer(text, begin, end):  # noqa: B007  the last one counts
            pass
        if found is not None:
            return found.start(), found.end() - 1
        if begin == 0 or reach > LONGEST_EVENT_BYTES:
            return None
        reach *= 8


def _past_keys(text: str, at: int) -> tuple[int, int | None]:
    """From where a key of the document may begin: the last such place, and where the events of ``traceEvents`` begin;
    None where the text ends before, or is no JSON. Each value is read once, and no string is taken for a key."""
    while found := KEY.match(text, at):
        if found[1] == '"traceEvents"' and found[2]:
            return at, found.end()
        try:
            end = _skip(text, scan(text, found.start(2))[1])
        except (ValueError, RecursionError):
            break
        if end == len(text):  # a number may go on
            break
        at = end
    return at, None


def _skip(text: str, at: int) -> int:
    found = SEPARATORS.match(text, at)
    return found.end() if found else at
