"""Rows as tables for people's own plots: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from knee.base.files import csv_text, write_bytes, write_text
from knee.commands.study.quantities import Row
from knee.commands.study.run_study import Ran

KINDS: dict[str, tuple[str, ...]] = {
    "runs": ("plan",),
    "bandwidths": ("bus_bytes_per_s",),
    "budgets": ("loss",),
    "hardware": ("tdp_w",),
    "long_runs": ("run_days", "cause_frac", "span"),
    "exchanges": ("gbit_per_s", "within_frac"),
    "walls": ("run_flop", "knee_flop"),
}
"""Table -> columns of which only its rows have one."""
FIRST = ("study", "series", "kind")
HEADER = ",".join((*FIRST, "")).encode()
"""How each of them begins."""


def write_tables(ran: Sequence[Ran], folder: Path) -> list[Path]:
    """Every table that has rows, in both forms; the files."""
    written = []
    for name, marks in KINDS.items():
        rows = [row for one in ran for row in one.rows if any(mark in row for mark in marks)]
        if rows:
            written += _write(folder / name, rows)
        else:
            _forget(folder / name)
    return written


def _forget(stem: Path) -> None:
    """Remove an earlier run's table, which this one's page would stand beside; a user's own file stays."""
    path = stem.with_suffix(".csv")
    if path.is_file() and path.read_bytes().startswith(HEADER):
        path.unlink()
        stem.with_suffix(".parquet").unlink(missing_ok=True)


def _write(stem: Path, rows: Sequence[Row]) -> list[Path]:
    columns = list(dict.fromkeys((*FIRST, *(column for row in rows for column in row))))
    path = stem.with_suffix(".csv")
    write_text(path, csv_text({column: row.get(column) for column in columns} for row in rows))
    if importlib.util.find_spec("pyarrow") is None:
        return [path]
    import pyarrow
    from pyarrow import parquet

    data = io.BytesIO()
    parquet.write_table(pyarrow.table({column: [row.get(column) for row in rows] for column in columns}), data)
    write_bytes(stem.with_suffix(".parquet"), data.getvalue())
    return [path, stem.with_suffix(".parquet")]
