"""A sentence about an answer or a row, with a stable word for programs."""

from __future__ import annotations


class Note(str):
    """A sentence that is its own text; ``code`` and ``field`` say what it is about, so that nobody has to read it."""

    code: str
    field: str | None

    def __new__(cls, code: str, text: str, field: str | None = None) -> Note:
        """``Note("default-profile", "seq_len defaulted to 4,096")``."""
        note = super().__new__(cls, text)
        note.code, note.field = code, field
        return note

    def __getnewargs__(self) -> tuple[str, str, str | None]:  # type: ignore[override]
        """For copies of what it is part of."""
        return self.code, str(self), self.field


def code_of(note: str) -> str:
    """The code of a sentence that has one."""
    return note.code if isinstance(note, Note) else ""
