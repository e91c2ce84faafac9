"""One's own records as the rows of a table: those in the folder of a sweep or a run, or in a file of JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from knee.specs import Cluster, Profile
from knee.trust.validation.csv_cells import text_of
from knee.trust.validation.published_runs import CsvRow, RunFile, Setting
from knee.trust.validation.run_to_job import RunJob
from knee.trust.validation.simulated_runs import Ask
from knee.trust.validation.user_records import RecordedRun, read_records, records_in


def records_of(path: Path, text: str | None, profile: Profile | None, cluster: Cluster | None) -> tuple[RunFile, Ask]:
    """Every record as a row, and what finds the job of one; ``text`` is that of a file, None of a folder."""
    found: list[tuple[str, RecordedRun]] = []
    for one in [path] if text is not None else records_in([path]):
        name = None if text is not None else str(one.parent.relative_to(path))
        found += [
            (name or str(recorded.number), recorded)
            for recorded in read_records(one, text_of(one) if text is None else text, profile, cluster)
        ]
    jobs: dict[Setting, RunJob] = {}
    rows = []
    for line, (name, recorded) in enumerate(found, start=1):
        row = CsvRow(line=line, id=name, source=path.resolve().name, reason=recorded.reason)
        if recorded.pair is not None:
            run, asked = recorded.pair
            job = asked.job
            # the words of a table do not tell all plans and stacks apart; the job is known, so these are names only
            setting = replace(
                run.setting,
                source=row.source,
                sharding=repr(job.plan),
                kernel=f"{job.profile.name} on {job.cluster.name}",
            )
            jobs[setting] = asked
            row = replace(
                row,
                setting=setting,
                status=run.status,
                memory_bytes=run.memory_bytes,
                tokens_per_s_per_gpu=run.tokens_per_s_per_gpu,
            )
        rows.append(row)
    return RunFile(rows=tuple(rows), ignored=()), jobs.__getitem__
