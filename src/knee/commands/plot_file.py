"""A picture as a file of its own; the file's ending says how it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knee.base.files import write_bytes, write_text
from knee.commands.budget.charts import budget_figures, concatenated
from knee.commands.scale.chart import ScaleSeries, spec_of, table_of
from knee.show.figures.vega import Spec, standalone, to_png, to_svg
from knee.show.page.page import render


def write_scale_plot(series: Sequence[ScaleSeries], path: str) -> None:
    """The curves of ``knee scale``; as a page with their table."""
    _write(path, spec_of(series), title="knee scale", rows=table_of(series))


def write_budget_plot(data: Mapping[str, Any], path: str) -> None:
    """All charts of ``knee budget --json``'s data; as a page with its sentences."""
    _write(path, standalone(concatenated(budget_figures(data))), title="knee budget", sentences=data["sentences"])


def _write(path: str, spec: Spec, **page: Any) -> None:
    target = Path(path)
    if path.endswith(".json"):
        write_text(target, json.dumps(spec, indent=2) + "\n")
    elif path.endswith(".png"):
        write_bytes(target, to_png(spec))
    elif path.endswith(".html"):
        write_text(target, render("plot.html", svg=to_svg(spec), **page))
    else:
        write_text(target, to_svg(spec))
