"""The exception tree.

KneeError                    anything knee says in words; never shown as a traceback
├── InputError   (exit 2)    what was asked for is wrong: what, where and how to fix it
│   └── SpecError            a spec (file, name or option) that cannot be valid
├── DoesNotFit   (exit 3)    a valid question whose answer is "it does not fit"
├── MissingExtra (exit 4)    an optional dependency is needed; the message has the install command
└── Incomplete   (exit 5)    the answer was given, and is about a part of the input
"""

from __future__ import annotations

import re

CONTROL = re.compile(r"\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What would break a line or be obeyed by a terminal; a list of mistakes has its own lines, which are indented."""


class KneeError(Exception):
    """A failure with one sentence for the user and, where there is one, the fix."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # words of a file or an argument may be in it, and one error is one line
        message = CONTROL.sub(_written_out, message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else CONTROL.sub(_written_out, hint)


def _written_out(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


class InputError(KneeError):
    """The input is wrong; nothing was computed."""

    exit_code = 2


class SpecError(InputError, ValueError):
    """A spec cannot be valid. Also a ValueError, so that the loader collects it with the others."""


class DoesNotFit(KneeError):
    """The question is valid and the answer is that nothing fits."""

    exit_code = 3


class MissingExtra(KneeError):
    """A part of knee that needs an optional dependency."""

    exit_code = 4


class Incomplete(KneeError):
    """An answer was given, about what of the input could be read."""

    exit_code = 5
