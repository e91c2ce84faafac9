"""Studies under many profiles: the plans of all questions in a few tables, made once and simulated anew each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any

from knee.errors import SpecError
from knee.simulator import EvaluatedStep, Results, evaluate
from knee.single import comm_loads
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.profile import Profile
from knee.studies.answers import jobs_of, together
from knee.studies.claims import Verdict, judge
from knee.studies.quantities import Row
from knee.studies.questions import Question, StudyPoint, all_points
from knee.studies.rows import step_row
from knee.studies.run_study import sheet_rows
from knee.studies.study_file import Study
from knee.trust.answer_record import asked_of

Specs = tuple[Cluster, Profile]
Change = Callable[[Cluster, Profile], Specs]
BY_COLLECTIVE = ("all_gather_s", "reduce_scatter_s", "gather_bytes", "exchange_s", "exchange_frac", "fsdp_ranks")
"""Columns that need the loads of each collective, which take a while to list."""


def unchanged(cluster: Cluster, profile: Profile) -> Specs:
    """As the catalogue has them."""
    return cluster, profile


class LeanRuns:
    """The points of some studies, ready to be simulated under any profile."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self.studies = tuple(studies)
        self._points = [point for study in studies for point in dict.fromkeys(all_points(study))]
        self._groups = list(together(_jobs(self._points)))
        self._sheets = {study.name: list(sheet_rows(study)) for study in studies}
        self._detailed = {study.name for study in studies if _needs_loads(study)}

    def verdicts(
        self, change: Change = unchanged, *, convention: str = DEFAULT_CONVENTION, bubbles: bool = True
    ) -> dict[str, Verdict]:
        """Every claim of the studies under a changed profile; ``bubbles``: waiting for a stage counts as exposed."""
        records = self._records(change, convention)
        rows = {name: list[Row](sheets) for name, sheets in self._sheets.items()}
        for point in self._points:
            if point.question in records:
                record = records[point.question] | ({} if bubbles else {"bubble_s": 0.0})
                rows[point.study].append(step_row(record, study=point.study, series=point.series))
        return {v.id: v for study in self.studies for v in judge(study.claim, rows, study.name)}

    def _records(self, change: Change, convention: str) -> dict[Question, dict[str, Any]]:
        """What the plan that each question means takes."""
        found = {}
        detailed = {point.question for point in self._points if point.study in self._detailed}
        for group in self._groups:
            model, cluster, profile = group.specs
            step = evaluate(model, *change(cluster, profile), group.table, convention=convention)
            for question, row in group.meant(step.results).items():
                if not isinstance(row, SpecError):
                    found[question] = _record(group.jobs[row], step, row, loads=question in detailed)
        return found


def _jobs(points: Iterable[StudyPoint]) -> dict[Question, list[Job]]:
    """Of the points that can be."""
    found = {}
    for question in dict.fromkeys(point.question for point in points):
        with suppress(SpecError):
            found[question] = jobs_of(question)
    return found


def _needs_loads(study: Study) -> bool:
    metrics = {getattr(getattr(t, "of", t), "metric", "") for claim in study.claim for t in claim.test}
    return bool(metrics & set(BY_COLLECTIVE))


def _record(job: Job, step: EvaluatedStep, row: int, *, loads: bool) -> dict[str, Any]:
    answer = {f.name: getattr(step.results, f.name)[row].item() for f in fields(Results)}
    by_collective = {"comm_loads": [asdict(load) for load in comm_loads(step, row)]} if loads else {}
    return asked_of(job) | {"kind": "simulated", "compute_load_s": answer["compute_s"], **answer, **by_collective}
