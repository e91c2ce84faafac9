"""Pieces of HTML. Text goes through ``text`` or ``tag``, which escape it; ``Markup`` is what already did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NewType

from knee.figures.labels import heading as heading
from knee.figures.labels import shown as shown

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


UNKNOWN = "unknown"


def table(caption: str, columns: Sequence[str], records: Sequence[Mapping[str, Any]]) -> Markup:
    """Records as a table that scrolls sideways where it is too wide; every number also in full, as ``<data>``."""
    head = join(tag("th", heading(column), scope="col", class_=_kind(records, column)) for column in columns)
    body = join(
        tag("tr", join(_cell(column, record, first=i == 0) for i, column in enumerate(columns)), raw=True)
        for record in records
    )
    return scrolling(caption, head, body)


def scrolling(caption: str, head: Markup, body: Markup) -> Markup:
    """A table in a region of its own, which scrolls by touch and by keyboard."""
    inner = join(
        [tag("caption", caption), tag("thead", tag("tr", head, raw=True), raw=True), tag("tbody", body, raw=True)]
    )
    return tag(
        "div", tag("table", inner, raw=True), raw=True, class_="scroll", tabindex="0", role="group", aria_label=caption
    )


def folded(summary: str, *content: Markup, about: str = "", open_: bool = False) -> Markup:
    """Behind a line that opens it; ``about`` is for those who hear the line alone."""
    hidden = tag("span", f" {about}", class_="hidden") if about else Markup("")
    return tag("details", tag("summary", text(summary), hidden, raw=True), *content, raw=True, open=open_)


def bullets(sentences: Iterable[str]) -> Markup:
    """A list of sentences."""
    return tag("ul", *(tag("li", sentence) for sentence in sentences), raw=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(records: Sequence[Mapping[str, Any]], column: str) -> str | None:
    return "number" if any(_is_number(record.get(column)) for record in records) else None


def _cell(column: str, record: Mapping[str, Any], *, first: bool) -> Markup:
    value = record.get(column)
    name, scope = ("th", "row") if first else ("td", None)
    if value is None:
        blank = column in MAY_BE_BLANK
        return tag(name, *([] if blank else [tag("span", UNKNOWN, class_="unknown")]), raw=True, scope=scope)
    words = shown(column, value)
    if _is_number(value):
        return tag(name, tag("data", words, value=repr(value)), raw=True, class_="number", scope=scope)
    return tag(name, words, scope=scope)


MAY_BE_BLANK = ("why", "trust", "published_bus_bytes_per_s", "plan")
"""Columns that say something of some rows only."""
