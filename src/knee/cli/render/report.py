"""One's own records on the screen."""

from __future__ import annotations

from typing import Any

from knee.cli.render.table import print_rows
from knee.figures.labels import format_value, heading
from knee.results.records_report import RecordsReport

COLUMNS = (
    "series",
    "kind",
    "gpus",
    "tokens_per_s_per_gpu",
    "step_s",
    "mfu_frac",
    "exposed_frac",
    "memory_bytes",
    "power_w_per_gpu",
    "tokens_per_j",
)


def print_records(answer: RecordsReport) -> None:
    """A table of the records' main figures."""
    cells = [[_cell(name, row.get(name)) for name in COLUMNS] for row in answer.records]
    print_rows([[heading(name) for name in COLUMNS], *cells], right=range(2, len(COLUMNS)))


def _cell(name: str, value: Any) -> str:
    return "unknown" if value is None else format_value(name, value)
