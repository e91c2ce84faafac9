"""Rows of a result as the table that a notebook shows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

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
