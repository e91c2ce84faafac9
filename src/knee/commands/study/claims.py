"""A statement of the paper, how it is tested, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from knee.base.errors import SpecError
from knee.commands.study.quantities import Finding, NotTestable, Rows
from knee.commands.study.relations import Test

Outcome = Literal["reproduced", "off", "contradicted", "not testable"]
Role = Literal["independent", "implied", "input", "fitted"]
"""What a claim that holds is worth: only an independent one is evidence. docs/studies.md has the rules."""
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper."""

    id: str
    says: str
    paper: str
    """Its value or relation, as the paper has it."""
    test: tuple[Test, ...]
    """All must hold."""
    role: Role = "independent"
    by: tuple[str, ...] = ()
    """Of an implied claim: those that it follows from."""
    because: str = ""
    """How it follows from them, which input it restates, or what was fitted on it."""
    why: str = ""
    """Where it is known to fail: the reason."""

    def __post_init__(self) -> None:
        follows, free = self.role == "implied", self.role == "independent"
        if bool(self.by) is not follows:
            text = "by names the claims that an implied one follows from, and no other role has it"
            raise SpecError(text, code="missing-field" if follows else "contradiction", field="by")
        if bool(self.because) is free:
            text = "because says why a claim is not independent, and is empty of one that is"
            raise SpecError(text, code="contradiction" if free else "missing-field", field="because")
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
    role: Role
    by: str
    """Claims that an implied one follows from."""
    because: str
    """Why it is not independent."""
    why: str
    """Why it failed, where it did."""
    miss_frac: float | None = None
    """Of a number that the paper states: how far the runs' value is from it, relative to it."""

    @property
    def failed(self) -> bool:
        """Whether it was tested and not reproduced."""
        return self.verdict in ("off", "contradicted")

    @property
    def words(self) -> str:
        """Its role, and why, in a line."""
        by = f" by {self.by}" if self.by else ""
        return f"{self.role}{by}" + (f": {self.because}" if self.because else "")


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
        role=claim.role,
        by=", ".join(claim.by),
        because=claim.because,
        why=claim.why if outcome in ("off", "contradicted") else "",
        miss_frac=findings[0].miss_frac if len(findings) == 1 else None,
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

    @classmethod
    def by_role(cls, verdicts: Sequence[Verdict]) -> dict[Role, Tally]:
        """The same of each role: the headline is that of the independent claims."""
        return {role: cls.of([v for v in verdicts if v.role == role]) for role in ROLES}

    def __str__(self) -> str:
        return f"{self.reproduced} reproduced, {self.failed} failed, {self.not_testable} not testable"
