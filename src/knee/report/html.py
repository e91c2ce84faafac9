"""Pieces of HTML. Text goes through ``text`` or ``tag``, which escape it; ``Markup`` is what already did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NewType

Markup = NewType("Markup", str)
"""HTML that is safe to put into a page as it is."""


def text(words: object) -> Markup:
    """Escaped text."""
    return Markup(escape(str(words)))


def join(parts: Iterable[Markup]) -> Markup:
    """One after another."""
    return Markup("".join(parts))


def tag(name: str, *content: str | Markup, raw: bool = False, **attributes: str | bool | None) -> Markup:
    """An element. Content is escaped unless ``raw``; ``class_`` is ``class``, ``_`` in a name is ``-``.

    A false or missing attribute is left out.
    """
    inner = "".join(content if raw else map(escape, content))
    return Markup(f"<{name}{_attributes(attributes)}>{inner}</{name}>")


def _attributes(attributes: Mapping[str, str | bool | None]) -> str:
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return "".join(
        f" {name}" if value is True else f' {name}="{escape(str(value))}"'
        for name, value in named.items()
        if value is not None and value is not False
    )


UNITS = {
    "_s_per_gpu": "tokens/s per GPU",
    "_w_per_gpu": "W per GPU",
    "_per_s": "tokens/s",
    "_per_j": "tokens/J",
    "_frac": "%",
    "_bytes": "GiB",
    "_s": "s",
}


def heading(column: str) -> str:
    """A column's name as people read it, with its unit: ``exposed_comm_s`` is ``exposed comm (s)``."""
    for suffix, unit in UNITS.items():
        if column.endswith(suffix) and unit.startswith("tokens"):
            return ("ideal " if column.startswith("ideal_") else "") + unit
        if column.endswith(suffix):
            name = column.removesuffix(suffix).replace("_", " ")
            return f"{'MFU' if name == 'mfu' else name} ({unit})"
    return column.replace("_", " ").replace("gpus", "GPUs")


def shown(column: str, value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if column.endswith("_frac"):
        return f"{100 * value:.1f}"
    if column.endswith("_bytes"):
        return f"{value / 2**30:.1f}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.4g}".rstrip(".") if value else "0"


def table(caption: str, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> Markup:
    """Records as a table that scrolls sideways where it is too wide; every number also in full, as ``<data>``."""
    head = join(tag("th", heading(column), scope="col", class_=_kind(records, column)) for column in columns)
    body = join(
        tag("tr", join(_cell(column, record, first=i == 0) for i, column in enumerate(columns)), raw=True)
        for record in records
    )
    inner = join(
        [tag("caption", caption), tag("thead", tag("tr", head, raw=True), raw=True), tag("tbody", body, raw=True)]
    )
    return tag(
        "div", tag("table", inner, raw=True), raw=True, class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(records: Sequence[Mapping[str, Any]], column: str) -> str | None:
    return "number" if records and _is_number(records[0][column]) else None


def _cell(column: str, record: Mapping[str, Any], *, first: bool) -> Markup:
    value = record[column]
    words = shown(column, value)
    name, scope = ("th", "row") if first else ("td", None)
    if _is_number(value):
        return tag(name, tag("data", words, value=repr(value)), raw=True, class_="number", scope=scope)
    return tag(name, words, scope=scope)
