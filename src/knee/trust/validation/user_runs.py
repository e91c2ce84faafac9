"""A user's own files -> runs with their jobs, all of one software stack, and what could not be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from knee.base.errors import InputError
from knee.base.limits import MOST_FITTED_ROWS
from knee.specs.hardware import Cluster
from knee.specs.profile import Profile
from knee.trust.validation.csv_cells import TooManyRows, text_of
from knee.trust.validation.published_runs import CsvRow, RunFile, read_runs
from knee.trust.validation.run_errors import NO_ANSWER
from knee.trust.validation.run_to_job import check_memory, job_of
from knee.trust.validation.simulated_runs import grouped, predicted
from knee.trust.validation.skipped_rows import reason_of
from knee.trust.validation.user_records import Pair, RecordedRun, is_json, merged, read_records, records_in

NOT_RUN = "the run ended early (oom or failed), so no time was measured"
STATUS_ONLY = "the run finished, but neither its throughput nor its memory is given"
DIFFER = 1.25
"""Repeats of one setting whose slowest and fastest are further apart contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRuns:
    """What the files have."""

    pairs: tuple[Pair, ...]
    """Runs to fit, repeats as one."""
    oom: tuple[Pair, ...] = ()
    """Runs that were out of a GPU's memory: no time was measured, but they say that it was not enough."""
    rows: int
    """Rows and records in all."""
    rows_used: int
    skipped: dict[str, int]
    """Reason -> rows."""
    notes: dict[str, int]
    """Assumption -> rows."""
    ignored: tuple[str, ...]
    """Columns that mean nothing to knee."""
    simulated: int
    """Records that are simulated, not measured."""
    probed: bool
    """Whether steps of a probe are among them, which have no data, no log and no stragglers."""
    differ: float
    """Fastest over slowest of the repeats that differ most."""

    @property
    def profiles(self) -> dict[str, int]:
        """Profiles that the runs are of -> runs."""
        return dict(Counter(asked.job.profile.name for _, asked in self.pairs).most_common())


def read_user_runs(paths: Sequence[Path], profile: Profile | None, cluster: Cluster | None) -> UserRuns:
    """Read all files; a profile or cluster that is given stands in place of what they say."""
    rows: list[CsvRow] = []
    records: list[RecordedRun] = []
    ignored: list[str] = []
    defaults: list[str] = []
    for path in records_in(paths):
        text = text_of(path, "files of runs: CSV, or JSON of knee's own records")
        if is_json(text):
            records += read_records(path, text, profile, cluster)
        else:
            file = read_runs(path, text, most=MOST_FITTED_ROWS)
            rows += file.rows
            defaults += [file.defaults] * len(file.rows) if file.defaults else []
            ignored += file.ignored
        if len(rows) + len(records) > MOST_FITTED_ROWS:
            raise TooManyRows(path, len(rows) + len(records), MOST_FITTED_ROWS)
    skipped = Counter(row.reason for row in rows if row.reason is not None)
    skipped.update(record.reason for record in records if record.reason is not None)
    pairs: list[Pair] = []
    ask = partial(job_of, profile=profile, cluster=cluster)
    for run in RunFile(rows=tuple(rows), ignored=()).runs:
        try:
            asked = ask(run.setting)
            check_memory(run, asked)
            pairs.append((run, asked))
        except InputError as error:
            skipped[reason_of(error)] += len(run.lines)
    pairs += merged([record.pair for record in records if record.pair is not None])
    # a processor shares its host's memory with others, and may be limited to a part of it
    oom = [pair for pair in pairs if pair[0].status == "oom" and pair[1].job.cluster.gpu.vendor != "generic"]
    used = _answered(_measured(pairs, skipped), skipped)
    return UserRuns(
        pairs=tuple(used),
        oom=tuple(oom),
        rows=len(rows) + len(records),
        rows_used=sum(len(run.lines) for run, _ in used),
        skipped=dict(skipped.most_common()),
        notes=dict(
            (
                Counter(note for run, asked in used for note in asked.notes for _ in run.lines)
                + Counter(note for row in rows for note in row.remarks)
                + Counter(defaults)
            ).most_common()
        ),
        ignored=tuple(dict.fromkeys(ignored)),
        simulated=sum(record.simulated for record in records),
        probed=any(record.probed and record.pair is not None for record in records),
        differ=_differ(rows),
    )


def _measured(pairs: Sequence[Pair], skipped: Counter[str]) -> list[Pair]:
    """Runs of which something was measured."""
    kept = []
    for run, asked in pairs:
        if run.status != "ok":
            skipped[NOT_RUN] += len(run.lines)
        elif run.tokens_per_s_per_gpu is None and run.memory_bytes is None:
            skipped[STATUS_ONLY] += len(run.lines)
        else:
            kept.append((run, asked))
    return kept


def _answered(pairs: Sequence[Pair], skipped: Counter[str]) -> list[Pair]:
    """Runs that have a finite answer: a fit needs one at every step."""
    cases = grouped(pairs)
    answer = predicted(cases)
    known = np.isfinite(answer.tokens_per_s_per_gpu) & np.isfinite(answer.memory_bytes)
    known &= (answer.tokens_per_s_per_gpu > 0) & (answer.memory_bytes > 0)
    ordered = [pair for case in cases for pair in zip(case.runs, case.asked, strict=True)]
    for (run, _), good in zip(ordered, known, strict=True):
        if not good:
            skipped[NO_ANSWER] += len(run.lines)
    return [pair for pair, good in zip(ordered, known, strict=True) if good]


def _differ(rows: Sequence[CsvRow]) -> float:
    repeats: dict[object, list[float]] = {}
    for row in rows:
        if row.tokens_per_s_per_gpu is not None:
            repeats.setdefault(row.setting, []).append(row.tokens_per_s_per_gpu)
    return max((max(rates) / min(rates) for rates in repeats.values()), default=1.0)
