"""One's own records, as rows and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.errors import Incomplete
from knee.files import write_text
from knee.inputs.argument_types import checked_arguments
from knee.results.result import Result
from knee.specs.notes import Note

TITLE = "Training runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsReport(Result):
    """Records of steps, curve by curve."""

    records: tuple[dict[str, Any], ...]
    """One row a record; what a record does not say is None."""
    notes: tuple[Note, ...]
    """What is no record or could not be predicted, and why."""
    unread: tuple[Note, ...] = ()
    """Files that are damaged or cannot be read, and why: records may be missing."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee report --json`` prints it."""
        return {"rows": self.rows(), "notes": list(self.notes)}

    def rows(self) -> list[dict[str, Any]]:
        """One row per record."""
        return list(self.records)

    def check_whole(self) -> None:
        """Raise ``Incomplete`` if a file is damaged or unreadable; the answer covers the others."""
        if self.unread:
            more = f", and {len(self.unread) - 1} more" if len(self.unread) > 1 else ""
            raise Incomplete(
                f"some files could not be read: {self.unread[0]}{more}",
                hint="the answer covers the other files; the run may have been killed while it wrote its record",
                code=self.unread[0].code,
            )

    @checked_arguments
    def write_page(self, out: str | Path, *, title: str = TITLE, command: str = "") -> None:
        """Write one HTML file that needs no network, with every chart and its values; the page shows ``command``
        as the command that created it."""
        from knee.report.records_page import runs_page

        page = runs_page(self.records, title=title, command=command, notes=self.notes)
        # a name in a record may hold half of a character, which no file can
        write_text(Path(out), page.encode("utf-8", "replace").decode("utf-8"))
