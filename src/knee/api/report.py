"""``knee.read_records``: one's own records, measured beside simulated, as rows and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knee.errors import InputError
from knee.inputs.argument_types import checked_arguments
from knee.report.record_files import gather, predicted, rows_of
from knee.results.records_report import RecordsReport


@checked_arguments
def read_records(
    records: str | Path | Sequence[str | Path], *, by: str | None = None, simulate: bool = False
) -> RecordsReport:
    """Read the records of runs: measured, simulated or published.

    ``records`` are files or folders: the output of ``knee simulate --json``, the folder of a ``knee train`` run or its
    record.json, or the records of a study. A file may contain several records, as a list or one after another. Files
    that are not records are named in ``notes`` and skipped; ``check_whole()`` raises ``Incomplete`` if a file is
    damaged. ``by`` is the column that distinguishes the curves; by default, the column that differs. ``simulate`` adds
    a prediction for every measured record that has no simulated counterpart.

    >>> import knee
    >>> runs = knee.read_records("runs/", simulate=True)  # doctest: +SKIP
    >>> runs.write_page("runs.html")  # doctest: +SKIP
    """
    paths = [Path(records)] if isinstance(records, str | Path) else [Path(path) for path in records]
    if not paths:
        raise InputError(
            "no records are given",
            hint="`knee report runs/` reads all records of a folder",
            code="missing-argument",
            field="records",
        )
    gathered = gather(paths)
    found = list(gathered.found)
    notes = [*gathered.skipped]
    if simulate:
        made, refused = predicted(found)
        found += made
        notes += refused
    return RecordsReport(records=tuple(rows_of(found, by)), notes=tuple(notes), unread=gathered.unread)
