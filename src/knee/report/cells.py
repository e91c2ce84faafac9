"""Tables whose columns have one unit each: times in ms or µs, sizes, rates, shares. What is not known says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from knee.report.html import UNKNOWN, Markup, join, scrolling, tag
from knee.report.html import folded as folded
from knee.units import show

LONGEST_NAME = 240
"""Characters of a kernel's name that a table shows."""

SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ms": (" (ms)", lambda v: f"{v * 1e3:,.3f}"),
    "us": (" (µs)", lambda v: f"{v * 1e6:,.1f}"),
    "share": (" (%)", lambda v: f"{100 * v:.1f}"),
    "rate": (" (GB/s)", lambda v: f"{v / 1e9:,.2f}"),
    "bytes": ("", lambda v: show(v, "bytes")),
    "count": ("", lambda v: f"{v:,.0f}" if float(v).is_integer() else f"{v:,.1f}"),
    "words": ("", str),
    "name": ("", lambda v: clipped_name(str(v))),
}
"""Kind of a column -> what its heading adds, and a value in words."""
WORDS = ("words", "name")


def clipped_name(name: str) -> str:
    """A kernel's name: those of templates go on for pages."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def cells(caption: str, kinds: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table of ``kinds`` (heading -> kind), whose first column heads its rows; every number also in full."""
    head = join(
        tag("th", name + SHOWN[kind][0], scope="col", class_=None if kind in WORDS else "number")
        for name, kind in kinds.items()
    )
    body = join(
        tag(
            "tr",
            *(_cell(kind, value, head=i == 0) for i, (kind, value) in enumerate(zip(kinds.values(), row, strict=True))),
            raw=True,
        )
        for row in rows
    )
    return scrolling(caption, head, body)


def _cell(kind: str, value: Any, *, head: bool) -> Markup:
    name, scope = ("th", "row") if head else ("td", None)
    kind_class = {"words": None, "name": "name"}.get(kind, "number")
    if value is None:
        return tag(name, tag("span", UNKNOWN, class_="unknown"), raw=True, class_=kind_class, scope=scope)
    words = SHOWN[kind][1](value)
    if kind in WORDS:
        return tag(name, words, class_=kind_class, scope=scope)
    return tag(name, tag("data", words, value=repr(value)), raw=True, class_=kind_class, scope=scope)
