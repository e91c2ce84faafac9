"""Counts of GPUs that a budget tries: a ladder that does not hang on the limit, and what the limits themselves name."""

from __future__ import annotations

from collections.abc import Iterable

ODDS = (1, 3)
"""Of the ladder's counts, times doublings of a node: a larger limit only adds to them. Fives and sevens would double
the time of an answer."""


def doublings(node: int, most: int) -> list[int]:
    """From a node to the limit, ascending."""
    least = _least(node, most)
    return [least << k for k in range((most // least).bit_length())]


def ladder(node: int, most: int) -> list[int]:
    """Odd multiples of doublings, ascending: a subset of that of any larger limit."""
    steps = doublings(node, most)
    return sorted({odd * step for step in steps for odd in ODDS if odd * step <= most})


def rounded(node: int, counts: Iterable[float]) -> set[int]:
    """Each count less what does not make whole nodes, pairs of nodes, pairs of those: 201 GPUs divide worse than 200,
    and those than 192."""
    wholes = {int(count) // step * step for count in counts if count >= 1 for step in doublings(node, int(count))}
    return wholes - {0}


def _least(node: int, most: int) -> int:
    return 1 << (min(node, most).bit_length() - 1)
