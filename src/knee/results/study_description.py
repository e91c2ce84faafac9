"""Studies before they are run: what each asks, runs, assumes and is judged by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from knee.results.result import Result
from knee.studies.questions import Question, StudyPoint
from knee.studies.study_file import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary(Result):
    """One line about a study."""

    name: str
    kind: str
    """``paper`` or ``beyond``."""
    place: str
    """Where in the paper; empty where it is beyond it."""
    title: str
    points: int
    """Runs of its grid."""
    claims: tuple[str, ...]
    """Ids of the claims that it is judged by."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, one item of what ``knee study list --json`` prints."""
        return asdict(self) | {"claims": list(self.claims)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDescription(Result):
    """A study with every point of its grid."""

    asked: str
    """The study's name or file, as it was given."""
    study: Study
    points: tuple[StudyPoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee study show --json`` prints it."""
        return asdict(self.study) | {"points": [{"series": p.series, **asdict(p.question)} for p in self.points]}

    def rows(self) -> list[dict[str, Any]]:
        """The points of the grid, one per row."""
        names = ("model", "cluster", "profile", "gpus", "global_batch", "seq_len")
        return [
            {"series": point.series}
            | {name: getattr(point.question, name) for name in names}
            | {"plan": _plan_words(point.question)}
            for point in self.points
        ]


def _plan_words(question: Question) -> str:
    """A plan as the grid names it, or how it is picked."""
    if len(question.plans) > 1:
        return f"{question.pick} of {len(question.plans)} that fits"
    words = [f"{name} {value}" for name, value in question.plans[0] if name != "placement"]
    words += [f"{name} {value}" for name, value in question.sets]
    return ", ".join(words) or "FSDP"
