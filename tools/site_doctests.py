"""Doctests inside docstrings become code blocks on the site; Markdown would take ``>>>`` for quotations."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from griffe import Extension, Object


class DoctestFences(Extension):
    """Put a fence around every paragraph that begins with ``>>>``."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called once for every module, class, function and attribute."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its doctests in fences."""
    parts = []
    for empty, lines in groupby(text.splitlines(), key=lambda line: not line.strip()):
        rows = list(lines)
        code = not empty and rows[0].lstrip().startswith(">>> ")
        parts += ["```pycon", *(row.strip() for row in rows), "```"] if code else rows
    return "\n".join(parts)
