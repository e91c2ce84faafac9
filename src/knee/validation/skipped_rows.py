"""Reasons for which rows were skipped, those that differ only in a value as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SHOWN = 3
"""Values that are named of a reason."""
MOST_REASONS = 12
"""Reasons that an error lists."""
_VALUE = re.compile(r"'[^']*'|(?<![\w.-])\d[\d,.]*\w*")


def aggregated(skipped: Mapping[str, int]) -> dict[str, int]:
    """Sentence -> rows, most first: values are taken out where several differ in nothing else, and a few are named."""
    alike: dict[str, list[str]] = {}
    for reason in skipped:
        alike.setdefault(_VALUE.sub("...", reason.partition("; ")[0]), []).append(reason)
    found = {
        reasons[0] if len(reasons) == 1 else f"{template} ({_named(reasons)})": sum(skipped[r] for r in reasons)
        for template, reasons in alike.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _named(reasons: Sequence[str]) -> str:
    """The values of the first few."""
    values = list(dict.fromkeys(" and ".join(_VALUE.findall(reason.partition("; ")[0])) for reason in reasons))
    more = f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else ""
    return ", ".join(values[:SHOWN]) + more


def none_used(what: str, skipped: Mapping[str, int]) -> str:
    """The message where no row can be used: all reasons, those that differ in a value only as one."""
    reasons = list(aggregated(skipped).items())
    lines = [f"  - {rows:,} row{'s' if rows > 1 else ''}: {reason}" for reason, rows in reasons[:MOST_REASONS]]
    more = [f"  - and {len(reasons) - MOST_REASONS:,} more reasons"] if len(reasons) > MOST_REASONS else []
    return "\n".join([f"{what}:", *lines, *more])
