"""CSV files that others wrote: a header, rows, and cells that may be anything."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from knee.errors import InputError

LEAST = 1e-12
"""Measurements below it, or above one over it, are typing mistakes."""


def read_table(path: Path, needed: Sequence[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the lines with anything in them by their number; ``needed`` is named where there is no header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, needed)
            return header, [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="name a CSV file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no CSV in UTF-8: {error}", hint="save it as comma-separated text") from None


def _check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    if not any(header):
        raise InputError(f"{path} is empty", hint=f"its first line names columns: {', '.join(needed)}, ...")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InputError(f"{path} has more than one column {', '.join(twice)}", hint="keep one of each")


def number(column: str, text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{column} is {text!r}, not a finite number")
    return value


def count(column: str, text: str) -> int:
    """A whole number of at least 1."""
    value = number(column, text)
    if value != int(value) or value < 1:
        raise InputError(f"{column} is {text}; it must be a whole number of at least 1")
    return int(value)


def positive(column: str, text: str) -> float:
    """A number above 0 that something could measure."""
    value = number(column, text)
    if value <= 0:
        raise InputError(f"{column} is {text}; it must be positive")
    if not LEAST < value < 1 / LEAST:
        raise InputError(f"{column} is {text}, far from any real one")
    return value
