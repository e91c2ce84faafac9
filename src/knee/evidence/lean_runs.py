"""Studies under many profiles: the plans of all questions in a few tables, made once and simulated anew each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from knee.errors import SpecError
from knee.simulator import Results, evaluate
from knee.single import simulate
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.plan_table import PlanTable, table_of
from knee.specs.profile import Profile
from knee.studies.answers import jobs_of, picked
from knee.studies.claims import Verdict, judge
from knee.studies.quantities import Row
from knee.studies.questions import Question, all_points
from knee.studies.rows import step_row
from knee.studies.run_study import sheet_rows
from knee.studies.study_file import Study
from knee.trust.answer_record import asked_of

Specs = tuple[Cluster, Profile]
Change = Callable[[Cluster, Profile], Specs]
BY_COLLECTIVE = ("all_gather_s", "reduce_scatter_s", "gather_bytes", "exchange_s", "exchange_frac", "fsdp_ranks")
"""Columns that need the loads of each collective, which only a step that is simulated alone has."""


def unchanged(cluster: Cluster, profile: Profile) -> Specs:
    """As the catalogue has them."""
    return cluster, profile


@dataclass(frozen=True, slots=True)
class _Plans:
    """Questions about one model on one cluster under one profile: all their plans, one after another."""

    jobs: tuple[Job, ...]
    table: PlanTable
    spans: Mapping[Question, range]


class LeanRuns:
    """The points of some studies, ready to be simulated under any profile."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self.studies = tuple(studies)
        self._points = [point for study in studies for point in dict.fromkeys(all_points(study))]
        self._groups = list(_grouped({point.question: None for point in self._points}))
        self._sheets = {study.name: list(sheet_rows(study)) for study in studies}
        self._detailed = {study.name for study in studies if _needs_loads(study)}

    def verdicts(
        self, change: Change = unchanged, *, convention: str = DEFAULT_CONVENTION, bubbles: bool = True
    ) -> dict[str, Verdict]:
        """Every claim of the studies under a changed profile; ``bubbles``: waiting for a stage counts as exposed."""
        records = {question: _record(*of) for question, of in self._answers(change, convention).items()}
        jobs = {
            p.question: records[p.question][0]
            for p in self._points
            if p.study in self._detailed and p.question in records
        }
        for question, job in jobs.items():
            cluster, profile = change(job.cluster, job.profile)
            step = simulate(replace(job, cluster=cluster, profile=profile))
            records[question][1]["comm_loads"] = step.as_json()["comm_loads"]
        rows = {name: list[Row](sheets) for name, sheets in self._sheets.items()}
        for point in self._points:
            if point.question in records:
                record = records[point.question][1] | ({} if bubbles else {"bubble_s": 0.0})
                rows[point.study].append(step_row(record, study=point.study, series=point.series))
        return {v.id: v for study in self.studies for v in judge(study.claim, rows, study.name)}

    def _answers(self, change: Change, convention: str) -> dict[Question, tuple[Job, dict[str, Any]]]:
        """The plan that each question means, and what it takes."""
        found = {}
        for group in self._groups:
            first = group.jobs[0]
            results = evaluate(
                first.model, *change(first.cluster, first.profile), group.table, convention=convention
            ).results
            for question, span in group.spans.items():
                some = slice(span.start, span.stop)
                try:
                    i = span.start + picked(question, group.jobs[some], results.fits[some], results.step_s[some])
                except SpecError:
                    continue
                found[question] = group.jobs[i], {f.name: getattr(results, f.name)[i].item() for f in fields(Results)}
        return found


def _grouped(questions: Mapping[Question, None]) -> Iterator[_Plans]:
    groups: dict[tuple[object, ...], dict[Question, list[Job]]] = {}
    for question in questions:
        try:
            jobs = jobs_of(question)
        except SpecError:
            continue
        key = (question.model, question.cluster, question.profile, question.sets, jobs[0].plan.placement)
        groups.setdefault(key, {})[question] = jobs
    for group in groups.values():
        every, spans = [job for jobs in group.values() for job in jobs], {}
        start = 0
        for question, jobs in group.items():
            spans[question] = range(start, start := start + len(jobs))
        yield _Plans(tuple(every), table_of(every), spans)


def _needs_loads(study: Study) -> bool:
    metrics = {getattr(getattr(t, "of", t), "metric", "") for claim in study.claim for t in claim.test}
    return bool(metrics & set(BY_COLLECTIVE))


def _record(job: Job, answer: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
    return job, asked_of(job) | {"kind": "simulated", "compute_load_s": answer["compute_s"], **answer}
