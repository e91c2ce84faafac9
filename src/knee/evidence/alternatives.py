"""What the paper left open, assumed otherwise: a study with that change, and the verdicts that flip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from knee.evidence.lean_runs import LeanRuns
from knee.specs.catalog import ROOT, read_toml
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.studies.claims import Claim, Verdict
from knee.studies.quantities import NOISE
from knee.studies.study_file import Many, Study, StudyGrid, load_study
from knee.studies.study_layers import BATCHES

FILE = ROOT / "claims" / "alternatives.toml"
MARGINS = ("margin_frac", "noise_frac")
"""By how much an ordering or a trend must show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One assumption, and what would have been as plausible."""

    assumed: str
    instead: str
    studies: tuple[str, ...]
    plan: Mapping[str, Many] = field(default_factory=dict)
    """Laid over the plans of every grid."""
    grid: Mapping[str, Many] = field(default_factory=dict)
    """Laid over every grid."""
    set: Mapping[str, str] = field(default_factory=dict)
    """As ``--set``."""
    convention: str = DEFAULT_CONVENTION
    """Of MFU."""
    bubbles: bool = True
    """Waiting for a pipeline stage counts as exposed communication."""
    beyond: float | None = None
    """By how much orderings and trends must show."""
    test: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Claim -> what its tests have instead."""

    def applied(self, study: Study) -> Study:
        """The study with this assumption."""
        grids = tuple(self._grid(grid) for grid in study.grid)
        return replace(study, grid=grids, claim=tuple(self._claim(claim) for claim in study.claim))

    def _grid(self, grid: StudyGrid) -> StudyGrid:
        laid: dict[str, Any] = dict(self.grid)
        if BATCHES & laid.keys():
            laid = dict.fromkeys(BATCHES) | laid
        return replace(grid, plan={**grid.plan, **self.plan}, set={**grid.set, **self.set}, **laid)

    def _claim(self, claim: Claim) -> Claim:
        given = self.test.get(claim.id, {})
        return replace(claim, test=tuple(_changed(self._loosened(test), given) for test in claim.test))

    def _loosened(self, test: Any) -> Any:
        """Another margin where it is the one of all orderings; what is constant has none."""
        names = {f.name for f in fields(test) if f.name in MARGINS and getattr(test, f.name) == NOISE}
        if self.beyond is None or not names or getattr(test, "goes", "") == "constant":
            return test
        return replace(test, **dict.fromkeys(names, self.beyond))


def _changed(part: Any, given: Mapping[str, Any]) -> Any:
    """A test, or the value that it is about, with some of its fields changed."""
    inner = {name: _changed(getattr(part, name), value) for name, value in given.items() if name == "of"}
    return replace(part, **{name: _tuples(value) for name, value in given.items()} | inner)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """What an alternative changes of one study's verdicts."""

    study: str
    assumed: str
    instead: str
    holds: tuple[str, ...] = ()
    """Claims that would hold, and do not now."""
    fails: tuple[str, ...] = ()
    """Claims that hold now, and would not."""


@cache
def alternatives() -> tuple[Alternative, ...]:
    """All that are tried."""
    return TypeAdapter(tuple[Alternative, ...]).validate_python(read_toml(FILE)["alternative"])


def flips(of: Mapping[str, Verdict]) -> Iterator[Flip]:
    """Every study under every alternative to one of its assumptions, against the verdicts as they are."""
    for alternative in alternatives():
        studies = [alternative.applied(load_study(name)) for name in alternative.studies]
        named = {study.name for study in studies}
        needed = dict.fromkeys(name for study in studies for name in study.needs if name not in named)
        found = LeanRuns([*studies, *map(load_study, needed)]).verdicts(
            convention=alternative.convention, bubbles=alternative.bubbles
        )
        for study in studies:
            flipped = [c.id for c in study.claim if _holds(found[c.id]) is not _holds(of[c.id])]
            yield Flip(
                study=study.name,
                assumed=alternative.assumed,
                instead=alternative.instead,
                holds=tuple(id for id in flipped if not _holds(of[id])),
                fails=tuple(id for id in flipped if _holds(of[id])),
            )


def _holds(verdict: Verdict) -> bool:
    return verdict.verdict == "reproduced"
