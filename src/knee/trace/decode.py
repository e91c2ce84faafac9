"""JSON into events: msgspec where it is installed, the standard library where only torch and NumPy are.

Of an event only what is asked of it is decoded. Times stay text: as a float64, microseconds since 1970 are not exact.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

try:
    import msgspec
except ImportError:  # a worker on a machine with torch and NumPy alone
    msgspec = None  # type: ignore[assignment]

NUMBERS = re.compile(rb"(:\s*)[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
"""What C++ prints for numbers that JSON does not have."""


class Event(NamedTuple):
    """An event, from the standard library's decoder; msgspec's has the same fields."""

    ph: Any
    cat: Any
    name: Any
    pid: Any
    tid: Any
    ts: Any
    dur: Any
    args: Any


class Args(NamedTuple):
    """What of an event's arguments is read."""

    stream: Any
    device: Any
    correlation: Any
    collective: Any
    in_elements: Any
    out_elements: Any
    group_size: Any
    dtype: Any
    group: Any
    group_description: Any
    group_ranks: Any
    rank_start: Any
    rank_stride: Any
    seq: Any


KEYS = {
    "stream": "stream",
    "device": "device",
    "correlation": "correlation",
    "collective": "Collective name",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "dtype": "dtype",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "rank_start": "Global rank start",
    "rank_stride": "Global rank stride",
    "seq": "Seq",
}
"""Kineto's words for them."""
NO_ARGS = Args(*[None] * len(KEYS))

if msgspec is not None:
    _Args = msgspec.defstruct(
        "_Args", [(field, Any, msgspec.field(default=None, name=key)) for field, key in KEYS.items()], gc=False
    )

    def _event(args: Any) -> Any:
        fields = [(name, Any, None) for name in ("ph", "cat", "name", "pid", "tid")]
        times = [(name, msgspec.Raw, msgspec.field(default=msgspec.Raw(b""))) for name in ("ts", "dur")]
        return msgspec.defstruct("_Event", [*fields, *times, ("args", args, None)], gc=False)

    _typed = msgspec.json.Decoder(list[_event(_Args | None)])  # type: ignore[misc]
    _whole = msgspec.json.Decoder(list[_event(Any)])  # type: ignore[misc]
    _plain = msgspec.json.Decoder()


class NotJson(Exception):
    """The text is no JSON, or not a list of events."""


def decode(text: bytes, *, all_args: bool = False) -> list[Any]:
    """``text`` is a JSON list of events. ``all_args`` keeps every argument, in a dict."""
    if msgspec is None:
        return _standard(text, all_args)
    try:
        return (_whole if all_args else _typed).decode(text)  # type: ignore[no-any-return]
    except msgspec.ValidationError:  # something in the list is no event, or its args are no object
        return _standard(text, all_args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotJson from None


def _standard(text: bytes, all_args: bool) -> list[Any]:
    try:
        found = json.loads(text.decode("utf-8", "replace"), parse_float=str)
    except (ValueError, RecursionError):
        raise NotJson from None
    return [event_of(one, all_args) for one in found if isinstance(one, dict)]


def event_of(one: dict[str, Any], all_args: bool) -> Event:
    """An event from its dict, with fractional numbers as text."""
    args = one.get("args")
    if not all_args:
        args = Args(*(args.get(key) for key in KEYS.values())) if isinstance(args, dict) else None
    return Event(args=args, **{name: one.get(name) for name in Event._fields[:-1]})


def decode_object(text: bytes) -> Any:
    """Any JSON value."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NotJson from None


def repaired(text: bytes) -> bytes:
    """The same with null for numbers that JSON does not have."""
    return NUMBERS.sub(rb"\1null", text)


_ZEROS = (b"000", b"00", b"0", b"")


def nanoseconds(microseconds: Any) -> int | None:
    """A time as it stands in the file, exactly: three decimals are nanoseconds. None where it is no number."""
    try:
        text = bytes(microseconds) if msgspec is not None and type(microseconds) is msgspec.Raw else _text(microseconds)
        dot = text.find(b".")
        if dot < 0:
            return int(text) * 1000
        fraction = text[dot + 1 : dot + 4]
        return int(text[:dot] + fraction + _ZEROS[len(fraction)])
    except ValueError:
        return _unusual(microseconds)


def _text(number: Any) -> bytes:
    return str(number).encode() if isinstance(number, (int, float, str)) else bytes(number or b"")


def _unusual(microseconds: Any) -> int | None:
    """Numbers in quotes, with an exponent, or without digits before the point."""
    text = _text(microseconds)
    if text.startswith(b'"'):
        return nanoseconds(text.strip(b'"').decode("utf-8", "replace"))
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        return None
