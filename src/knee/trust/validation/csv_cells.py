"""CSV files that others wrote: a header, rows, and cells that may be anything."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from knee.base.errors import InputError, SpecError
from knee.base.files import TooLarge, read_all, read_bytes
from knee.base.limits import MOST_CSV_BYTES, MOST_JSON_BYTES, MOST_ROWS
from knee.specs.catalog import did_you_mean
from knee.specs.notes import Note

Lines = Iterable[tuple[int, list[str]]]
"""Lines of a table by their number."""
LEAST = 1e-12
"""Measurements below it, or above one over it, are typing mistakes."""
STDIN = "-"
_NUMBER = re.compile(r"[+-]?(\d++(?:\.\d*+)?+|\.\d++)(e[+-]?\d++)?+", re.ASCII | re.IGNORECASE)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def text_of(path: Path, what: str = "a CSV file") -> str:
    """All of a file, or of standard input for ``-``. A pipe can be read once only: pass the text on."""
    try:
        is_stdin = str(path) == STDIN
        raw = read_all(sys.stdin.buffer, path, MOST_CSV_BYTES) if is_stdin else read_bytes(path, MOST_CSV_BYTES)
        if len(raw) > MOST_JSON_BYTES and raw.lstrip()[:1] in (b"{", b"["):
            raise TooLarge(path, MOST_JSON_BYTES, len(raw))
        return raw.decode("utf-8-sig")
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}"
        raise InputError(text, hint=f"name {what}", code="unreadable") from None
    except UnicodeDecodeError as error:
        text = f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}"
        raise InputError(text, hint="save it as comma-separated text in UTF-8", code="not-utf8") from None


def read_table(
    path: Path, needed: Sequence[str], text: str | None = None, *, most: int | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, and the lines with anything in them by their number, one at a time; ``needed`` is named where there
    is no header. ``text`` is the file's, where it was read already; ``most`` is how many rows it may have."""
    text = text_of(path) if text is None else text
    _check_rows(path, text, MOST_ROWS if most is None else most)
    lines = _filled(path, text)
    header = [name.strip() for name in next(lines, (0, []))[1]]
    _check_header(path, header, needed)
    return header, lines


def _filled(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader, done = csv.reader((found[0] for found in _LINE.finditer(text)), strict=True), 0
    try:
        for cells in reader:
            done = reader.line_num
            if any(cell.strip() for cell in cells):
                yield done, cells
    except csv.Error as error:
        trouble = f"line {reader.line_num}: {error}"
        if "end of data" in str(error):
            trouble = f"a quote that opens on line {done + 1} is never closed"
        hint = "save it as comma-separated text"
        raise InputError(f"{path} is not a CSV file: {trouble}", hint=hint, code="not-csv") from None


def _check_rows(path: Path, text: str, most: int) -> None:
    """Refuse too many before any is made a run; a line is counted as a row only where there are many of them."""
    if text.count("\n") + text.count("\r") > most:
        rows = sum(1 for _ in _filled(path, text)) - 1
        if rows > most:
            raise TooManyRows(path, rows, most)


class TooManyRows(InputError):
    """More rows than are taken at once."""

    def __init__(self, path: Path, rows: int, most: int) -> None:
        super().__init__(
            f"{path} has {rows:,} rows, but at most {most:,} can be used at once",
            hint="split the file, or give a sample of its rows",
            code="too-many",
        )
        self.path, self.rows, self.most = path, rows, most


def _check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    if not any(header):
        hint = f"the first line must name the columns: {', '.join(needed)}, ..."
        raise InputError(f"{path} is empty", hint=hint, code="empty")
    if len(header) == 1:
        for mark, name in _SEPARATORS.items():
            if mark in header[0]:
                hint = "save it as comma-separated text, with a point for decimals"
                raise InputError(f"{path} is separated by {name}, not by commas", hint=hint, code="not-csv")
    twice = sorted(name for name, times in Counter(header).items() if name and times > 1)
    if twice:
        text = f"{path} has more than one column {', '.join(twice)}"
        raise InputError(text, hint="keep one of each", code="ambiguous-field", field=twice[0])


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """The columns that a kind of file has."""

    required: tuple[str, ...]
    """Columns without which a row means nothing."""
    measured: tuple[str, ...]
    """Of these one is needed."""
    optional: tuple[str, ...]
    defaults: Mapping[str, str]
    """Column -> what is taken where a file does not have it."""
    each: str
    """What a row is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile(Generic[Row]):
    """A file that was read."""

    rows: tuple[Row, ...]
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing to knee."""
    defaults: str | None = None
    """One sentence for what is taken in place of columns that are missing altogether."""


def read_rows(
    form: TableForm,
    path: Path,
    row_of: Callable[[int, Sequence[str], Sequence[str]], Row],
    text: str | None,
    *,
    most: int | None = None,
    watch: Callable[[Lines], Lines] = iter,
) -> dict[str, Any]:
    """The fields of a ``RowFile``, whose rows ``row_of`` makes of (line, header, cells); ``watch`` sees lines pass."""
    header, lines = read_table(path, form.required, text, most=most)
    check_columns(path, header, form.required, form.measured)
    rows = tuple(row_of(line, header, cells) for line, cells in watch(lines))
    if not rows:
        raise InputError(f"{path} has a header but no rows", hint=f"give one {form.each} per row", code="empty")
    known = {*form.required, *form.measured, *form.optional}
    missing = [words for name, words in form.defaults.items() if name not in header]
    defaults = f"defaults for missing columns: {', '.join(missing)}" if missing else None
    return {"rows": rows, "ignored": tuple(n for n in header if n and n not in known), "defaults": defaults}


def check_columns(path: Path, header: Sequence[str], needed: Sequence[str], measured: Sequence[str]) -> None:
    """Refuse a header without a needed column or without anything measured, and name what may stand for it."""
    missing = [name for name in needed if name not in header]
    lower = {name.lower(): name for name in header}
    if missing:
        close = [f"{name}, instead of {lower[found]}" for name in missing if (found := did_you_mean(name, lower))]
        hint = f"required columns: {', '.join(needed)}, and one of {', '.join(measured)}"
        hint = f"did you mean {'; '.join(close)}?" if close else hint
        if all(name in lower for name in missing):
            hint = f"column names are written in lower case: {', '.join(missing)}"
        text = f"{path} has no column {', '.join(missing)}"
        raise InputError(text, hint=hint, code="missing-field", field=missing[0])
    if not any(name in header for name in measured):
        wrong = [f"{name}, instead of {lower[name.lower()]}" for name in measured if name.lower() in lower]
        hint = f"add a column with a measured value: one of {', '.join(measured)}"
        hint = f"did you mean {'; '.join(wrong)}?" if wrong else hint
        text = f"{path} has no measured value: it has no column {' or '.join(measured)}"
        raise InputError(text, hint=hint, code="missing-field", field="measured")


def check_width(header: Sequence[str], cells: Sequence[str]) -> None:
    """Refuse a row whose cells may stand under the wrong column."""
    if len(cells) != len(header):
        raise InputError("the row has more or fewer cells than the header", code="wrong-width")


def unknown_choice(column: str, text: str, known: Iterable[str]) -> SpecError:
    """What is said of a word that a column does not take."""
    message = f"{column} is {text!r}; it must be one of {', '.join(known)}"
    return SpecError(message, code="unknown-choice", field=column)


def number(column: str, text: str) -> float:
    """A finite number in plain digits."""
    finite = not _NOT_FINITE.fullmatch(text)
    if finite and not _NUMBER.fullmatch(text):
        raise InputError(f"{column} is {text!r}, not a number", code="not-a-number", field=column)
    if not finite or not math.isfinite(value := float(text)):
        raise InputError(f"{column} is {text!r}, not a finite number", code="not-finite", field=column)
    return value


def count(column: str, text: str) -> int:
    """A whole number of at least 1."""
    value = number(column, text)
    if value != int(value) or value < 1:
        raise InputError(
            f"{column} is {text}; it must be a whole number of at least 1", code="not-a-count", field=column
        )
    return int(value)


def positive(column: str, text: str) -> float:
    """A number above 0 that something could measure."""
    value = number(column, text)
    if value <= 0:
        raise InputError(f"{column} is {text}; it must be positive", code="out-of-range", field=column)
    if not LEAST < value < 1 / LEAST:
        raise InputError(f"{column} is {text}, which is not realistic", code="out-of-range", field=column)
    return value


MOST_REASONS = 12
"""Reasons that an error lists."""


def reason_of(error: InputError) -> Note:
    """Why a row is skipped: the error's sentence, with its code and field."""
    return Note(error.code, error.message, field=error.field)


def by_kind(skipped: Mapping[str, int]) -> dict[str, int]:
    """An example of each kind of reason -> rows, most first."""
    alike: dict[Hashable, list[str]] = {}
    for reason in skipped:
        alike.setdefault(_kind(reason), []).append(reason)
    found = {}
    for first, *others in alike.values():
        more = f" (and {len(others):,} more of this kind)" if others else ""
        found[first + more] = sum(skipped[reason] for reason in (first, *others))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kind(reason: str) -> Hashable:
    """Code and field; a reason about no field, or that no error gave, is of a kind of its own."""
    return (reason.code, reason.field) if isinstance(reason, Note) and reason.field else reason


def none_used(what: str, skipped: Mapping[str, int]) -> str:
    """The message where no row can be used: an example of each kind of reason."""
    reasons = list(by_kind(skipped).items())
    lines = [f"  - {rows:,} row{'s' if rows > 1 else ''}: {reason}" for reason, rows in reasons[:MOST_REASONS]]
    more = [f"  - and {len(reasons) - MOST_REASONS:,} more reasons"] if len(reasons) > MOST_REASONS else []
    return "\n".join([f"{what}:", *lines, *more])
