"""Claims on the page: how many came out how, and the words beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from knee.report.tables import Table, kind_table
from knee.studies.claims import Outcome, Verdict

MARKS: dict[Outcome, str] = {"reproduced": "✓", "off": "≈", "contradicted": "✗", "not testable": "–"}
"""Beside the word, so that neither colour nor a sign alone says it."""


def anchor(claim: str) -> str:
    """Of a claim in the table of all."""
    return "claim-" + re.sub(r"[^A-Za-z0-9]+", "-", claim).lower()


def tally_table(verdicts: Sequence[Verdict]) -> Table:
    """Outcomes of claims that were not fitted on, of those that were, and of all."""
    groups = {
        "not fitted on": [v for v in verdicts if not v.fitted],
        "fitted on": [v for v in verdicts if v.fitted],
        "all": verdicts,
    }
    rows = [(name, *(sum(v.verdict == one for v in some) for one in MARKS), len(some)) for name, some in groups.items()]
    kinds = {"claims": "words"} | dict.fromkeys((*MARKS, "in all"), "count")
    return kind_table("Claims of the paper, by what came of them", kinds, rows)


def tested(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Claims that these runs can say something of."""
    return [v for v in verdicts if v.verdict != "not testable"]


def claims_sentence(verdicts: Sequence[Verdict]) -> str:
    """How many of the testable claims hold, and how many of those that nothing was fitted on."""
    some, free = tested(verdicts), tested([v for v in verdicts if not v.fitted])
    if not some:
        return "No claim can be tested with these runs."
    held = [sum(v.verdict == "reproduced" for v in group) for group in (some, free)]
    return (
        f"{held[0]} of {len(some)} testable claims are reproduced ({held[0] / len(some):.0%}), and {held[1]} of the "
        f"{len(free)} that nothing was fitted on."
    )
