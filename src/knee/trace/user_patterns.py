"""Users' patterns in time linear in the names that they are tried on.

``re`` backtracks: a name that says ``nccl`` a thousand times keeps ``nccl.*reduce.*f32`` busy for hours. RE2 does not,
and refuses what only backtracking can match. Plain words and choices between them are linear in ``re`` too, and need no
extra; choices in groups are not, as ``(aa|aa)(aa|aa)`` and so on doubles the ways with every group.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any, Protocol

from knee.errors import InputError, MissingExtra

TRIED_AGAIN = frozenset("*+?{(")
"""Letters of patterns that ``re`` may try in many ways."""
SHOWN_LETTERS = 100
"""Of a pattern in a message."""


class Pattern(Protocol):
    """What is looked for in names, case ignored."""

    def search(self, text: str, /) -> Any:
        """Something true where it is found."""


def user_pattern(pattern: str, where: str) -> Pattern:
    """A pattern that is linear in the names; InputError, with ``where`` it stands, for one that cannot be."""
    shown = pattern if len(pattern) < SHOWN_LETTERS else f"{pattern[:SHOWN_LETTERS]}..."
    try:
        if TRIED_AGAIN.isdisjoint(pattern):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about what a bracket may mean one day
                return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: {shown!r} is not a regular expression: {error}") from None
    return _Linear(pattern, where, shown)


class _Linear:
    """A pattern in RE2."""

    def __init__(self, pattern: str, where: str, shown: str) -> None:
        try:
            re2 = importlib.import_module("re2")
        except ImportError:
            hint = "pip install 'knee[trace]', or give a plain part of the names"
            raise MissingExtra(
                f"{where}: {shown!r} has repeats or groups, which need the package RE2", hint=hint
            ) from None
        options = re2.Options()
        options.case_sensitive, options.log_errors = False, False
        try:
            self.compiled = re2.compile(_as_utf8(pattern), options)
        except re2.error as error:
            why = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error.args[0]
            hint = "use RE2 syntax, which has no look-around and no back-references"
            raise InputError(f"{where}: {shown!r} is not a regular expression for RE2: {why}", hint=hint) from None

    def search(self, text: str, /) -> Any:
        """Something true where it is found."""
        return self.compiled.search(_as_utf8(text))


def _as_utf8(text: str) -> str:
    """The same without halves of letters, which JSON may hold and UTF-8 may not."""
    return text.encode("utf-8", "replace").decode("utf-8")
