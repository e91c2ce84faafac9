"""``knee.read_records``: one's own records, measured beside simulated, as rows and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.base.errors import Incomplete, InputError
from knee.base.files import write_text
from knee.commands.report.record_files import gather, predicted, rows_of
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.specs.notes import Note


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordsReport(Result):
    """Records of steps, curve by curve."""

    records: tuple[dict[str, Any], ...]
    """One row a record; what a record does not say is None."""
    notes: tuple[Note, ...]
    """What is no record or could not be predicted, and why."""
    unread: tuple[Note, ...] = ()
    """Files that are damaged or cannot be read, and why: records may be missing."""

    def _data(self) -> dict[str, Any]:
        return {"rows": self.rows(), "notes": self.notes}

    def rows(self) -> list[dict[str, Any]]:
        """One row per record."""
        return list(self.records)

    def check_whole(self) -> None:
        """Raise ``Incomplete`` if a file is damaged or unreadable; the answer covers the others."""
        if self.unread:
            more = f", and {len(self.unread) - 1} more" if len(self.unread) > 1 else ""
            text = f"some files could not be read: {self.unread[0]}{more}"
            hint = "the answer covers the other files; the run may have been killed while it wrote its record"
            raise Incomplete(text, hint=hint, code=self.unread[0].code)

    @checked_arguments
    def write_page(self, out: str | Path, *, title: str = "Training runs", command: str = "") -> None:
        """Write one HTML file that needs no network, with every chart and its values; the page shows ``command``
        as the command that created it."""
        from knee.commands.report.page import runs_page

        page = runs_page(self.records, title=title, command=command, notes=self.notes)
        # a name in a record may hold half of a character, which no file can
        write_text(Path(out), page.encode("utf-8", "replace").decode("utf-8"))


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
        hint = "`knee report runs/` reads all records of a folder"
        raise InputError("no records are given", hint=hint, code="missing-argument", field="records")
    gathered = gather(paths)
    found = list(gathered.found)
    notes = [*gathered.skipped]
    if simulate:
        made, refused = predicted(found)
        found += made
        notes += refused
    return RecordsReport(records=tuple(rows_of(found, by)), notes=tuple(notes), unread=gathered.unread)
