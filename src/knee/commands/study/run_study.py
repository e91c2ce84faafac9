"""Studies run: points -> records -> rows -> verdicts and findings. Measured records stand in where there are any."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.commands.study.budget_rows import budget_rows
from knee.commands.study.claims import Verdict, judge, not_testable
from knee.commands.study.failure_rows import exchange_rows, long_run_rows, wall_rows
from knee.commands.study.quantities import NotTestable, Row, Rows
from knee.commands.study.questions import Question, StudyPoint, check_count, points_of
from knee.commands.study.record_store import IMPOSSIBLE
from knee.commands.study.rows import bandwidth_rows, hardware_row, identity, impossible_row, last_of_each, step_row
from knee.commands.study.study_file import Study, load_study
from knee.trust.bands import Label

LABELS: tuple[Label, ...] = ("validated", "near", "extrapolated")
"""From the most to the least trusted."""

Answers = Callable[[Question], Mapping[str, Any]]
Changes = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A study and what came of it."""

    study: Study
    rows: tuple[Row, ...]
    """Simulated and measured, told apart by ``kind``."""
    impossible: tuple[Row, ...]
    """Points that cannot be, and why."""
    verdicts: tuple[Verdict, ...]
    values: Mapping[str, str]
    finding: str
    again: str
    """The command that runs it so."""
    trust: Label | None
    """The weakest of its runs; None for data sheets and bandwidths."""


def with_needs(names: Iterable[str]) -> list[Study]:
    """The studies and those whose runs their claims are also about."""
    found: dict[str, Study] = {}
    for name in names:
        for study in map(load_study, (name, *load_study(name).needs)):
            if found.setdefault(study.name, study) != study:
                text = f"two studies have the name {study.name}"
                hint = "run them one by one, or rename a file"
                raise InputError(text, hint=hint, code="contradiction", field="study")
    return list(found.values())


def points_to_run(names: Iterable[str], changes: Mapping[str, Any] | None = None) -> list[StudyPoint]:
    """All points of the studies and of what they need, in order."""
    studies = with_needs(names)
    check_count(studies, changes)
    return [point for study in studies for point in points_of(study, changes)]


def recorded(points: Sequence[StudyPoint], answers: Answers) -> Iterator[Row]:
    """The row of each point, as it comes: for bars, and so that an interrupted run keeps what it has. A record is ten
    times as large as its row, and is let go."""
    for point in points:
        record = answers(point.question)
        if IMPOSSIBLE in record:
            yield impossible_row(point, str(record[IMPOSSIBLE]))
        else:
            yield step_row(record, study=point.study, series=point.series)


def results(
    names: Sequence[str],
    answered: Iterable[Row],
    measured: Sequence[tuple[StudyPoint | None, Mapping[str, Any]]] = (),
    changes: Mapping[str, Any] | None = None,
    kept: Path | None = None,
) -> list[Ran]:
    """Rows, verdicts and findings of the studies, of what ``recorded`` gives. A measured record is of a point, or of
    every point that it fits; ``kept`` is a folder in which budgets are, because they take a while."""
    rows: dict[str, list[Row]] = {}
    impossible: dict[str, list[Row]] = {}
    for row in answered:
        (impossible if row["kind"] == IMPOSSIBLE else rows).setdefault(row["study"], []).append(row)
    for study in with_needs(names):
        rows.setdefault(study.name, []).extend(sheet_rows(study))
        for budgets in study.budget:
            rows[study.name].extend(budget_rows(study.name, budgets, kept))
    _add_measured(rows, measured)
    pools = _pools(rows)
    ran = [(name, load_study(name)) for name in names]
    return [_ran(name, study, rows, pools, impossible.get(study.name, []), changes) for name, study in ran]


def strangers(answered: Iterable[Row], measured: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Measured records that are of none of the points."""
    known = {identity(row) for row in answered if row["kind"] != IMPOSSIBLE} if measured else set()
    return [record for record in measured if identity(step_row(record, study="", series="")) not in known]


def sheet_rows(study: Study) -> Iterator[Row]:
    """Rows that are worked out at once: bandwidths of idle links, data sheets, months of training and walls."""
    for grid in study.bandwidths:
        yield from bandwidth_rows(study.name, grid)
    for name in study.hardware:
        yield hardware_row(study.name, name)
    for run in study.long_run:
        yield from long_run_rows(study.name, run)
    yield from exchange_rows(study.name, study.exchange)
    for wall in study.wall:
        yield from wall_rows(study.name, wall)


def _add_measured(rows: dict[str, list[Row]], measured: Sequence[tuple[StudyPoint | None, Mapping[str, Any]]]) -> None:
    at: dict[tuple[Any, ...], list[Row]] = {}
    for row in (row for found in rows.values() for row in found) if measured else ():
        if row["kind"] == "simulated" and "plan" in row:
            at.setdefault(identity(row), []).append(row)
    for point, record in measured:
        if record.get("step_s") is None:
            continue
        if point is not None:
            record = {**record, "question": asdict(point.question)}
            rows.setdefault(point.study, []).append(step_row(record, study=point.study, series=point.series))
            continue
        for row in at.get(identity(step_row(record, study="", series="")), ()):
            rows[row["study"]].append(step_row(record, study=row["study"], series=str(row["series"])))


def _ran(
    asked: str, study: Study, rows: Rows, pools: Mapping[str, Rows], impossible: Sequence[Row], changes: Changes
) -> Ran:
    own = rows.get(study.name, ())
    if changes:
        why = f"the grid was changed: {', '.join(changes)}"
        verdicts = not_testable(study.claim, study.name, why)
    else:
        sheet = bool(study.hardware) and not study.grid
        by_kind = [judge(study.claim, rows, study.name, "catalogue" if sheet else kind) for kind, rows in pools.items()]
        verdicts = [
            next((verdict for verdict in same if verdict.verdict != "not testable"), same[-1])
            for same in zip(*by_kind, strict=True)
        ]
    kind, values, finding = _finding(study, pools)
    labels = [] if kind == "measured" else [row["trust"] for row in own if row.get("trust")]
    options = [f"--set {key}={','.join(map(str, values))}" for key, values in (changes or {}).items()]
    return Ran(
        study=study,
        rows=tuple(own),
        impossible=tuple(impossible),
        verdicts=tuple(verdicts),
        values=values,
        finding=finding,
        again=" ".join([f"knee study run {shlex.quote(asked)}", *options]),
        trust=max(labels, key=LABELS.index) if labels else None,
    )


def _pools(rows: Rows) -> dict[str, Rows]:
    """Rows of one kind each, measured ones first where there are any; of a run's repeats the last."""
    measured = {name: last_of_each([r for r in found if r["kind"] == "measured"]) for name, found in rows.items()}
    others = {name: [row for row in found if row["kind"] != "measured"] for name, found in rows.items()}
    pools: dict[str, Rows] = {"measured": measured} if any(measured.values()) else {}
    return pools | {"simulated": others}


def _finding(study: Study, pools: Mapping[str, Rows]) -> tuple[str, dict[str, str], str]:
    """The study's sentence with its numbers, of one kind of runs; a changed grid may not have them."""
    why = ""
    for kind, rows in pools.items():
        try:
            values = {name: quantity.text(rows, study.name) for name, quantity in study.value.items()}
        except NotTestable as error:
            why = error.message
            continue
        measured = " (Measured.)" if kind == "measured" else ""
        return kind, values, study.finding.format(**values) + measured
    return "", {}, f"No finding for these runs: {why}."
