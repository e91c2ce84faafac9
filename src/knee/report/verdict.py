"""A claim of the paper and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    """Whether a parameter of the profile was fitted on it."""


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
        return cls(reproduced=outcomes.count("reproduced"), failed=outcomes.count("failed"),
                   not_testable=outcomes.count("not testable"))

    def __str__(self) -> str:
        return f"{self.reproduced} reproduced, {self.failed} failed, {self.not_testable} not testable"
