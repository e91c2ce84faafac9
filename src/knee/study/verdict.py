"""A claim of the paper and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from knee.errors import KneeError
from knee.study.claim import Claim
from knee.study.runs import Bench

Outcome = Literal["reproduced", "failed", "not testable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim, held against the simulator."""

    id: str
    statement: str
    paper: str
    """What the paper says."""
    bar: str
    """What counts as reproduced."""
    simulated: str
    """What the simulator says, or why it says nothing."""
    verdict: Outcome
    fitted: bool
    """Whether it was fitted on, or shaped the model or its own test; only the others are evidence."""
    note: str = ""
    """Why it failed, where it did."""


def judge(claims: Sequence[Claim], bench: Bench, explained: Mapping[str, str]) -> Iterator[Verdict]:
    """Test claim by claim; one whose runs cannot be is not testable, and says why."""
    for claim in claims:
        outcome: Outcome
        try:
            finding = claim.test(bench)
            outcome, value = ("reproduced" if finding.holds else "failed"), finding.value
        except KneeError as error:
            outcome, value = "not testable", error.message
        yield Verdict(
            id=claim.id,
            statement=claim.statement,
            paper=claim.paper,
            bar=claim.bar,
            simulated=value,
            verdict=outcome,
            fitted=claim.fitted,
            note=explained.get(claim.id, "") if outcome == "failed" else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many claims came out how."""

    reproduced: int
    failed: int
    not_testable: int

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Tally:
        """Count them."""
        outcomes = [v.verdict for v in verdicts]
        return cls(
            reproduced=outcomes.count("reproduced"),
            failed=outcomes.count("failed"),
            not_testable=outcomes.count("not testable"),
        )

    def __str__(self) -> str:
        return f"{self.reproduced} reproduced, {self.failed} failed, {self.not_testable} not testable"
