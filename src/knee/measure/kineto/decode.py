"""JSON into events: msgspec where it is installed, the standard library where only torch and NumPy are.

Of an event only what is asked of it is decoded. Times stay text: as a float64, microseconds since 1970 are not exact.
"""

from __future__ import annotations

import json
import re
from decimal import ROUND_DOWN, Context, Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn, Union

try:
    import msgspec
except ImportError:  # a worker on a machine with torch and NumPy alone
    msgspec = None  # type: ignore[assignment]

STRING_OR_NUMBER = re.compile(
    rb'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)[^"\-+ni]*+)++|'
    rb"[-+]?\b(?:nan(?:\(\w*+\))?|inf(?:inity)?)(?=\s*+(?:[,}\]]|$))",
    re.IGNORECASE | re.DOTALL,
)
"""What C++ prints for numbers that JSON does not have. Strings are matched too, so that none is found inside them: as
many as there are with nothing between them that could be one, and one without an end to the end."""
LAUNCHES = ("_runtime", "_driver")
"""How the categories of calls that launch end: CUDA's and HIP's."""
ROLES = {
    "kernel": "kernel",
    "gpu_memcpy": "gpu_memcpy",
    "gpu_memset": "gpu_memset",
    "user_annotation": "annotation",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "launch",
    "operator": "annotation",
}
"""Category -> what it is read as; the last four are torch 1.8's to 1.11's, whose steps are operators."""
DEVICE_ROLES = ("kernel", "gpu_memcpy", "gpu_memset")
FURTHEST_DIGIT = 40
"""A time of more digits is none."""
_CUT_OFF = Context(prec=FURTHEST_DIGIT + 24, rounding=ROUND_DOWN)
"""Enough digits for every time, and no rounding up of those beyond."""


@lru_cache(1024)
def role_of(category: str) -> str | None:
    """What events of a category are read as: kernel, gpu_memcpy, gpu_memset, annotation or launch; None for those that
    are only counted."""
    name = category.lower()
    return ROLES.get(name) or ("launch" if name.endswith(LAUNCHES) else None)


def _role(event: Any) -> str | None:
    return role_of(event.cat) if isinstance(event.cat, str) else None


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

    @property
    def role(self) -> str | None:
        """What it is read as."""
        return _role(self)


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


KINETO_KEYS = (
    *("stream", "device", "correlation", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks"),
    *("Global rank start", "Global rank stride", "Seq"),
)
KEYS = dict(zip(Args._fields, KINETO_KEYS, strict=True))
"""Field of ``Args`` -> Kineto's word for it."""
NO_ARGS = Args(*[None] * len(KEYS))

CATEGORIES = (
    "kernel gpu_memcpy gpu_memset cuda_runtime cuda_driver hip_runtime xpu_runtime mtia_runtime "
    "glow_runtime privateuse1_runtime privateuse1_driver user_annotation gpu_user_annotation cpu_op "
    "cpu_instant_event ac2g fwdbwd async_cpu_gpu async_gpu python_function overhead cuda_sync cuda_event "
    "external_correlation collective_comm hpu_op mtia_ccp_events mtia_insight Trace Kernel Memcpy Memset "
    "Runtime Operator Async"
)
"""Kineto's categories. Events of others are read too, but slower."""

if msgspec is not None:
    _RAW = (msgspec.Raw, msgspec.field(default=msgspec.Raw(b"")))
    _words = [(field, Any, msgspec.field(default=None, name=key)) for field, key in KEYS.items()]
    _Args = msgspec.defstruct("_Args", _words, gc=False)
    _Launch = msgspec.defstruct("_Launch", [("correlation", Any, None)], gc=False)

    def _event(args: Any) -> Any:
        fields = [(name, Any, None) for name in ("ph", "cat", "name", "pid", "tid")]
        return msgspec.defstruct(
            "_Event",
            [*fields, ("ts", *_RAW), ("dur", *_RAW), ("args", args, None)],
            gc=False,
            namespace={"role": property(_role)},
        )

    @cache
    def _of_category(category: str, args: Any) -> Any:
        """Decode only what is asked of this category: nothing is made of the many events that are not read."""
        role = role_of(category)
        fields: list[Any] = []
        if role == "launch":
            fields = [("ts", *_RAW), ("args", _Launch | None, None)]
        elif role == "annotation":
            fields = [("ph", Any, None), ("name", Any, None), ("ts", *_RAW), ("dur", *_RAW)]
        elif role is not None:
            fields = [(name, Any, None) for name in ("ph", "name", "pid", "tid")]
            fields += [("ts", *_RAW), ("dur", *_RAW), ("args", args | None, None)]
        return msgspec.defstruct(
            "_" + category, fields, gc=False, tag_field="cat", tag=category, namespace={"role": role}
        )

    def _by_category(args: Any) -> Any:
        kinds = tuple(_of_category(one, args if role_of(one) in DEVICE_ROLES else None) for one in CATEGORIES.split())
        return msgspec.json.Decoder(list[Union[kinds]])  # type: ignore[valid-type]  # noqa: UP007

    # made when the first file asks for them: most files need one of the four, and making all takes as long as NumPy's
    # smaller modules take to import
    @cache
    def _plain() -> Any:
        """Without the words of collectives, whose names are refused: msgspec compares each key with each field."""
        fields = [("stream", Any, None), ("device", Any, None), ("correlation", Any, None)]
        no_name = ("collective", None, msgspec.field(default=None, name=KEYS["collective"]))
        return _by_category(msgspec.defstruct("_PlainArgs", [*fields, no_name], gc=False))

    @cache
    def _quick() -> Any:
        return _by_category(_Args)

    @cache
    def _typed() -> Any:
        return msgspec.json.Decoder(list[_event(_Args | None)])  # type: ignore[misc]

    @cache
    def _whole() -> Any:
        return msgspec.json.Decoder(list[_event(Any)])  # type: ignore[misc]


class NotJson(Exception):
    """The text is no JSON, or not a list of events."""


class EventDecoder:
    """Decodes the events of one file. ``all_args`` keeps every argument, in a dict."""

    def __init__(self, *, all_args: bool = False) -> None:
        self.all_args = all_args
        self.decoders: list[Any] = []
        if msgspec is not None:
            self.decoders = [_whole] if all_args else [_plain, _quick, _typed]

    def decode(self, text: bytes) -> list[Any]:
        """``text`` is a JSON list of events."""
        for decoder in self.decoders:
            try:
                events: list[Any] = decoder().decode(text)
            except msgspec.ValidationError:  # an event of another category, something that is no event, args no object
                continue
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise NotJson from None
            if decoder is _quick:  # a kernel names its collective: others will too
                self.decoders = [_quick, _typed]
            return events
        try:
            found = _exact.decode(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise NotJson from None
        return [event_of(one, self.all_args) for one in found if isinstance(one, dict)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_exact = json.JSONDecoder(parse_float=str, parse_constant=_refuse_constant)
scan = _exact.raw_decode
"""One value of a text and where it ends, with fractional numbers as text."""


def event_of(one: dict[str, Any], all_args: bool) -> Event:
    """An event from its dict, with fractional numbers as text."""
    args = one.get("args")
    if not all_args:
        args = Args(*(args.get(key) for key in KEYS.values())) if isinstance(args, dict) else None
    return Event(args=args, **{name: one.get(name) for name in Event._fields[:-1]})


def decode_object(text: bytes) -> Any:
    """Decode any JSON value."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NotJson from None


def repaired(text: bytes, *, by: bytes = b"null") -> bytes:
    """The same with null, or another word, for numbers that JSON does not have."""
    plain_text = text.lower()
    if b"nan" not in plain_text and b"inf" not in plain_text:
        return text
    return STRING_OR_NUMBER.sub(lambda one: one[0] if one[0].startswith(b'"') else by.ljust(len(one[0])), text)


_ZEROS = (b"000", b"00", b"0", b"")


def nanoseconds(microseconds: Any) -> int | None:
    """A time as it stands in the file, exactly: three decimals are nanoseconds. None where it is no number."""
    text = as_text(microseconds)
    dot = text.find(b".")
    fraction = text[dot + 1 : dot + 4] if dot >= 0 else b""
    try:
        if dot >= 0 and text[dot + 1 :].isdigit():
            return int(text[:dot] + fraction + _ZEROS[len(fraction)])
        return int(text) * 1000
    except ValueError:
        return _unusual(text)


def raw(text: bytes) -> Any:
    """A value that is text of the file, as events have it."""
    return msgspec.Raw(text)


def as_text(number: Any) -> bytes:
    """A number as it stands in the file; nothing for what is none."""
    if msgspec is not None and type(number) is msgspec.Raw:
        return bytes(number)
    return str(number).encode("utf-8", "replace") if isinstance(number, (int, float, str)) else b""


def _unusual(text: bytes) -> int | None:
    """Numbers in quotes, with an exponent, or without digits before the point."""
    try:
        number = Decimal(text.strip(b'"').decode("utf-8", "replace"))
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > FURTHEST_DIGIT:
        return None
    return int(number.scaleb(3, _CUT_OFF)) if number.adjusted() > -FURTHEST_DIGIT else 0
