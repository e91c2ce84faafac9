"""Tables of a page as data: every number in words and in full, what is not known says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from knee.base.units import show
from knee.show.figures.axes import is_number
from knee.show.figures.labels import format_value, heading

UNKNOWN = "unknown"
MAY_BE_BLANK = ("why", "trust", "published_bus_bytes_per_s", "plan")
"""Columns that say something of some rows only."""
LONGEST_NAME = 240
"""Characters of a kernel's name that a table shows."""
KINDS: dict[str, tuple[str, Callable[[Any], str]]] = {
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
STYLES = {"words": "", "name": "name"}
"""Kind of a column -> its class in the page's style; all others are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value of a table, or the heading of a column."""

    text: str
    value: float | None = None
    """The number in full, where it is one."""
    style: str = ""
    """Class in the page's style: number, name, or none."""
    known: bool = True
    """False: the text says that there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose first column heads its rows."""

    block: ClassVar[str] = "table"
    caption: str
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: int | None = None
    """The row that stands out."""


def record_table(caption: str, records: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Table:
    """Records in the units of their columns' names; all columns of the first record where none are named."""
    columns = columns or tuple(records[0] if records else ())
    numbers = {column for column in columns if any(is_number(record.get(column)) for record in records)}
    return Table(
        caption=caption,
        columns=tuple(Cell(text=heading(name), style="number" if name in numbers else "") for name in columns),
        rows=tuple(tuple(_record_cell(name, record.get(name)) for name in columns) for record in records),
    )


def _record_cell(column: str, value: Any) -> Cell:
    if value is None:
        return Cell(text="") if column in MAY_BE_BLANK else Cell(text=UNKNOWN, known=False)
    if is_number(value):
        return Cell(text=format_value(column, value), value=value, style="number")
    return Cell(text=format_value(column, value))


def kind_table(
    caption: str, kinds: Mapping[str, str], rows: Iterable[Sequence[Any]], *, marked: int | None = None
) -> Table:
    """Rows of values under headings, whose kinds say how they are written."""
    return Table(
        caption=caption,
        columns=tuple(
            Cell(text=name + KINDS[kind][0], style="" if kind in STYLES else "number") for name, kind in kinds.items()
        ),
        rows=tuple(
            tuple(_kind_cell(kind, value) for kind, value in zip(kinds.values(), row, strict=True)) for row in rows
        ),
        marked=marked,
    )


def _kind_cell(kind: str, value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    style = STYLES.get(kind, "number")
    if value is None:
        return Cell(text=UNKNOWN, style=style, known=False)
    return Cell(text=KINDS[kind][1](value), value=None if kind in STYLES else value, style=style)


def clipped_name(name: str) -> str:
    """A kernel's name: those of templates go on for pages."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
