"""Rows as tables for people's own plots: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knee.files import csv_text, write_bytes, write_text
from knee.study.quantities import Row
from knee.study.run import Ran

KINDS = {"runs": "plan", "bandwidths": "bus_bytes_per_s", "budgets": "loss", "hardware": "tdp_w"}
"""Table -> a column that only its rows have."""
HEADER = b"study,series,kind,"
"""How each of them begins."""


def write_tables(ran: Sequence[Ran], folder: Path) -> list[Path]:
    """Every table that has rows, in both forms; the files."""
    written = []
    for name, mark in KINDS.items():
        rows = [row for one in ran for row in one.rows if mark in row]
        if rows:
            written += _write(folder / name, _even(rows))
        else:
            _forget(folder / name)
    return written


def _forget(stem: Path) -> None:
    """Remove an earlier run's table, which this one's page would stand beside; a user's own file stays."""
    path = stem.with_suffix(".csv")
    if path.is_file() and path.read_bytes().startswith(HEADER):
        path.unlink()
        stem.with_suffix(".parquet").unlink(missing_ok=True)


def _even(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every row with every column."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [{column: row.get(column) for column in columns} for row in rows]


def _write(stem: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    path = stem.with_suffix(".csv")
    write_text(path, csv_text(rows))
    if importlib.util.find_spec("pyarrow") is None:
        return [path]
    import pyarrow
    from pyarrow import parquet

    data = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), data)
    write_bytes(stem.with_suffix(".parquet"), data.getvalue())
    return [path, stem.with_suffix(".parquet")]
