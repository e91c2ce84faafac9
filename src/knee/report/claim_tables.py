"""Claims on the page: how many came out how, and the words beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from knee.report.tables import Table, kind_table
from knee.studies.claims import ROLES, Outcome, Role, Verdict

MARKS: dict[Outcome, str] = {"reproduced": "✓", "off": "≈", "contradicted": "✗", "not testable": "–"}
"""Beside the word, so that neither colour nor a sign alone says it."""


def anchor(claim: str) -> str:
    """Of a claim in the table of all."""
    return "claim-" + re.sub(r"[^A-Za-z0-9]+", "-", claim).lower()


def tally_table(verdicts: Sequence[Verdict]) -> Table:
    """Outcomes of the independent claims, which are the evidence, then of the others, and of all."""
    groups = {role: [v for v in verdicts if v.role == role] for role in ROLES}
    rows = [
        (name, *(sum(v.verdict == one for v in some) for one in MARKS), len(some))
        for name, some in (*groups.items(), ("all", verdicts))
    ]
    kinds = {"role": "words"} | dict.fromkeys((*MARKS, "in all"), "count")
    return kind_table("Claims of the paper by role, and what came of them", kinds, rows, marked=0)


def tested(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Claims that these runs can say something of."""
    return [v for v in verdicts if v.verdict != "not testable"]


def of_role(verdicts: Sequence[Verdict], role: Role) -> list[Verdict]:
    """Claims of a role that these runs can say something of."""
    return [v for v in tested(verdicts) if v.role == role]


def claims_sentence(verdicts: Sequence[Verdict]) -> str:
    """How many of the independent claims hold; how far numbers are off; how many of the others hold."""
    free, others = of_role(verdicts, "independent"), [v for v in tested(verdicts) if v.role != "independent"]
    if not free and not others:
        return "No claim can be tested with these runs."
    held = sum(not v.failed for v in free)
    parts = [f"{held} of {len(free)} independent claims are reproduced ({held / len(free):.0%})."] if free else []
    misses = [v.miss_frac for v in free if v.miss_frac is not None]
    if misses:
        stated = sum(not v.failed for v in free if v.miss_frac is not None)
        parts.append(
            f"Of these, {len(misses)} are numbers, which must be met to the last digit that the paper prints: "
            f"{stated or 'none'} of them {'is' if stated < 2 else 'are'}, and they are off by {median(misses):.1%} in "
            f"the median and by {max(misses):.0%} at most."
        )
    if others:
        kept = sum(not v.failed for v in others)
        parts.append(
            f"Of the {len(others)} others, which follow from another claim, restate an input, or were fitted on, "
            f"{kept} are reproduced."
        )
    return " ".join(parts)
