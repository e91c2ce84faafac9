"""Columns of times, read from their text all at once and exactly: a float64 does not hold microseconds since 1970."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from knee.base.arrays import Bools
from knee.measure.kineto.decode import as_text, raw

Int64 = npt.NDArray[np.int64]
_COMMA, _POINT, _ZERO = b",.0"
DECIMALS = 3
"""Of a microsecond: nanoseconds. Further ones are cut off."""
_TENS = 10 ** np.arange(19, dtype=np.int64)


class NumberText:
    """A column of numbers as they stand in the file, with commas between them."""

    __slots__ = ("_count", "_odd", "_parts")

    def __init__(self, values: list[Any] | None = None) -> None:
        self._parts: list[bytes] = []
        self._odd: dict[int, list[Any]] = {}
        """Values by part, of those that are not this text alone: they have commas in them, or are decoded already."""
        self._count = 0
        if values:
            self.add(values)

    def __len__(self) -> int:
        return self._count

    def add(self, values: list[Any]) -> None:
        """Some more; at least one."""
        try:
            text = b",".join(values)
        except TypeError:  # the last events of a file come from the standard library, which has made numbers and words
            text = b""
        if text.count(b",") != len(values) - 1 or not text:
            self._odd[len(self._parts)] = values
            plain_texts = map(as_text, values)
            text = b",".join(b"" if b"," in one else one for one in plain_texts)
        self._parts.append(text)
        self._count += len(values)

    def text(self) -> bytes:
        """All numbers as text, each followed by a comma."""
        return b",".join((*self._parts, b""))

    def values(self) -> list[Any]:
        """Each as it was before it became text."""
        found: list[Any] = []
        for i, part in enumerate(self._parts):
            found += self._odd[i] if i in self._odd else map(raw, part.split(b","))
        return found


def nanosecond_column(times: NumberText) -> tuple[Int64, Int64]:
    """``nanoseconds`` of all at once, and the rows of those that are not plain digits with a point among them."""
    text = np.frombuffer(times.text(), dtype=np.uint8)
    alike = _alike(text, len(times))
    if alike is not None:
        return alike, np.array([], dtype=np.int64)
    found, read = _ragged(text)
    return found, np.flatnonzero(~read)


def _alike(text: npt.NDArray[np.uint8], count: int) -> Int64 | None:
    """Nanoseconds of times with as many digits before and after the point, as most have them; None for others."""
    width = len(text) // count
    if width * count != len(text) or text[width - 1] != _COMMA:
        return None
    letters = np.ascontiguousarray(text.reshape(count, width).T)
    before, point, after = letters[:-1, 0].tobytes().partition(b".")
    if (letters[-1] != _COMMA).any() or (point and (not after or (letters[len(before)] != _POINT).any())):
        return None
    digits = np.delete(letters[:-1], len(before), axis=0) if point else letters[:-1]
    digits = digits - np.uint8(_ZERO)  # what stands before 0 comes out large
    widest = len(_TENS) - DECIMALS
    if digits.max(initial=0) > 9 or not 0 < len(before) <= widest or (len(before) == widest and digits[0].max() == 9):
        return None
    found = np.zeros(count, dtype=np.int64)
    for digit in digits[: len(before) + DECIMALS]:
        found *= 10
        found += digit
    found *= _TENS[DECIMALS - min(len(after), DECIMALS)]
    return found


def _ragged(text: npt.NDArray[np.uint8]) -> tuple[Int64, Bools]:
    """Nanoseconds, and which were read. Digit by digit for all numbers of one width together: no expression has to
    guess where a number ends, so that the time does not depend on how they are written."""
    digit = text - np.uint8(_ZERO)  # what stands before 0 comes out large
    marks = np.flatnonzero(digit > 9)
    end = marks[text[marks] == _COMMA]
    start = np.concatenate(([0], end[:-1] + 1))
    point, other = _points(text, marks, end)
    width, after = point - start, end - point - 1  # -1 after no point
    widest = len(_TENS) - DECIMALS
    fits = (width < widest) | ((width == widest) & (digit[start] < 9))  # int64 ends between 9 and 10 times 10^18
    read = (other == 0) & (width > 0) & fits & (after != 0)
    found = np.zeros(len(end), dtype=np.int64)
    for digits in np.flatnonzero(np.bincount(width[read])).tolist():
        rows = np.flatnonzero(read & (width == digits))
        at, number = point[rows], np.zeros(len(rows), dtype=np.int64)
        for place in range(1, digits + 1):
            number += digit[at - place] * _TENS[place - 1 + DECIMALS]
        found[rows] = number
    for place in range(1, DECIMALS + 1):
        rows = np.flatnonzero(read & (after >= place))
        found[rows] += digit[point[rows] + place] * _TENS[DECIMALS - place]
    return found, read


def _points(text: npt.NDArray[np.uint8], marks: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Where each number's point stands, its end where it has none; and how many other letters it has that are no
    digits."""
    if len(marks) == len(end):
        return end, np.zeros(len(end), dtype=np.int64)
    points = marks[text[marks] == _POINT]
    point = end.copy()
    point[np.searchsorted(end, points)] = points
    return point, np.diff(np.searchsorted(marks, end), prepend=-1) - 1 - (point < end)
