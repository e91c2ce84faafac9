"""A statement of the paper, how it is tested, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from knee.errors import SpecError
from knee.studies.quantities import Finding, NotTestable, Rows
from knee.studies.relations import Test

Outcome = Literal["reproduced", "off", "contradicted", "not testable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper."""

    id: str
    says: str
    paper: str
    """Its value or relation, as the paper has it."""
    test: tuple[Test, ...]
    """All must hold."""
    fitted: str = ""
    """What was fitted on it, or what of its test was decided after its result was seen; empty: it is evidence."""
    why: str = ""
    """Where it is known to fail: the reason."""

    def __post_init__(self) -> None:
        if not self.test:
            raise SpecError("test is empty: nothing would be tested", code="missing-field", field="test")

    @property
    def bar(self) -> str:
        """What counts as reproduced."""
        return "; ".join(test.bar for test in self.test)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim, held against the runs."""

    id: str
    study: str
    says: str
    paper: str
    bar: str
    found: str
    """What the runs say, or why they say nothing."""
    verdict: Outcome
    off: str
    """By how much a number misses."""
    kind: str
    """Of the runs: simulated, measured, or both."""
    fitted: str
    why: str
    """Why it failed, where it did."""

    @property
    def failed(self) -> bool:
        """Whether it was tested and not reproduced."""
        return self.verdict in ("off", "contradicted")


def judge(claims: Sequence[Claim], rows: Rows, study: str, kind: str = "simulated") -> list[Verdict]:
    """Test each claim against the rows."""
    return [_judged(claim, rows, study, kind) for claim in claims]


def not_testable(claims: Sequence[Claim], study: str, why: str) -> list[Verdict]:
    """Claims that the runs at hand say nothing of."""
    return [_verdict(claim, study, "", "not testable", why) for claim in claims]


def _judged(claim: Claim, rows: Rows, study: str, kind: str) -> Verdict:
    try:
        findings = [test.check(rows, study) for test in claim.test]
    except NotTestable as error:
        return _verdict(claim, study, kind, "not testable", error.message)
    outcome: Outcome = "reproduced"
    if not all(finding.holds for finding in findings):
        # a number misses by so much; an ordering the other way round is contradicted
        outcome = "off" if all(f.holds or f.off for f in findings) else "contradicted"
    return _verdict(claim, study, kind, outcome, "; ".join(f.value for f in findings), findings)


def _verdict(
    claim: Claim, study: str, kind: str, outcome: Outcome, found: str, findings: Sequence[Finding] = ()
) -> Verdict:
    return Verdict(
        id=claim.id,
        study=study,
        says=claim.says,
        paper=claim.paper,
        bar=claim.bar,
        found=found,
        verdict=outcome,
        off="; ".join(f.off for f in findings if not f.holds and f.off),
        kind=kind,
        fitted=claim.fitted,
        why=claim.why if outcome in ("off", "contradicted") else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many claims came out how."""

    reproduced: int
    failed: int
    not_testable: int

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Tally:
        """Count the verdicts by their outcome."""
        return cls(
            reproduced=sum(v.verdict == "reproduced" for v in verdicts),
            failed=sum(v.failed for v in verdicts),
            not_testable=sum(v.verdict == "not testable" for v in verdicts),
        )

    def __str__(self) -> str:
        return f"{self.reproduced} reproduced, {self.failed} failed, {self.not_testable} not testable"
