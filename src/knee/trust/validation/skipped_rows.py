"""Reasons for which rows were skipped, those of one kind as one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from knee.base.errors import InputError
from knee.specs.notes import Note

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
    found = {
        reasons[0] + (f" (and {len(reasons) - 1:,} more of this kind)" if len(reasons) > 1 else ""): sum(
            skipped[reason] for reason in reasons
        )
        for reasons in alike.values()
    }
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
