"""What every result can do: be plain data, be a data frame, and show itself in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from knee.base.errors import MissingExtra
from knee.specs.argument_types import checked_arguments

# Rows of a result as the table that a notebook shows.

SHOWN_ROWS = 40
"""Of a table; the rest is counted."""


def html_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as a table: a single one lies on its side."""
    rows = list(rows)
    if len(rows) == 1:
        cells = "".join(f"<tr><th>{_text(key)}</th><td>{_cell(value)}</td></tr>" for key, value in rows[0].items())
        return f"<table>{cells}</table>"
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>" for row in rows[:SHOWN_ROWS]
    )
    more = f"<p>{len(rows) - SHOWN_ROWS:,} more rows</p>" if len(rows) > SHOWN_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.6g}"
    return _text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _text(value: object) -> str:
    return html.escape(str(value))


Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


class Result:
    """Mixed into every result of the API: a dataclass with ``repr=False``, whose ``to_dict`` is its JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, equal to what the command prints with ``--json``; every key carries its unit."""
        return {key: plain_data(value) for key, value in self._data().items()}

    def _data(self) -> dict[str, Any]:
        """Keys of ``to_dict`` and their values before they are made plain; the fields, where a result has no others."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def rows(self) -> list[dict[str, Any]]:
        """The result as a table: one row an item, nested keys joined by dots."""
        return [flat(self.to_dict())]

    @checked_arguments
    def to_frame(self, library: Library | None = None) -> Any:
        """``rows`` as a data frame of pandas or polars, whichever is installed; pandas where both are."""
        names = [name for name in (LIBRARIES if library is None else (library,)) if find_spec(name)]
        if not names:
            wanted = library or "pandas or polars"
            hint = f"pip install {library or 'pandas'}; rows() gives the same as a list of dictionaries"
            raise MissingExtra(f"a data frame needs {wanted}, which is not installed", hint=hint, field="library")
        return import_module(names[0]).DataFrame(self.rows())

    def __repr__(self) -> str:
        """One line: a dataclass's own would print the catalogue's entries, a million characters for a budget."""
        rows = self.rows()
        size = f"{len(rows):,} rows, " if len(rows) != 1 else ""
        return f"<{type(self).__name__}: {size}values in to_dict(), rows() and to_frame()>"

    def _repr_html_(self) -> str:
        """The table, under the chart where there is one and altair can draw it."""

        return self._chart_svg() + html_table(self.rows())

    def _chart_svg(self) -> str:
        """A picture of the result; empty where it has none, or where what draws it is not installed."""
        return ""


def plain_data(value: Any) -> Any:
    """A value as JSON has it: results and dataclasses as their fields, tuples as lists, paths as texts."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain_data(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level of keys: ``{"plan": {"tp": 2}}`` becomes ``{"plan.tp": 2}``; lists stay as they are."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
