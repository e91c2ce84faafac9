"""A chart and what belongs beside it, whatever it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from knee.show.figures.vega import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, its words, and the rows behind it."""

    id: str
    """Unique in a page: ``fig6-1-tokens-per-second-per-gpu``."""
    title: str
    caption: str
    spec: Spec | None
    """None where there is nothing to draw."""
    columns: tuple[str, ...]
    """Of the table behind it."""
    rows: tuple[Mapping[str, Any], ...]
    published: tuple[Mapping[str, Any], ...] = ()
    """What was published, as rows of a table of its own."""
