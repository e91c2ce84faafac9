"""How a command ends: its exit codes, and the exceptions that lead to them.

KneeError                        anything knee says in words; never shown as a traceback
├── InputError       (exit 2)    what was asked for is wrong: what, where and how to fix it
│   └── SpecError                a spec (file, name or option) that cannot be valid
│       └── FieldError           one value of it
├── DoesNotFit       (exit 3)    a valid question whose answer is "it does not fit"
├── MissingExtra     (exit 4)    a package, driver or device is needed; the message says which
├── Incomplete       (exit 5)    the answer was given, and is about a part of the input
├── NotWritten       (exit 6)    the answer is known and could not be written
└── RunFailed        (exit 7)    what was started or measured did not come to its end

Programs read ``code`` (stable words such as ``missing-option``), ``field`` (the argument or value it is about) and
``hint``; people read the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

CONTROL = re.compile(r"\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What would break a line or be obeyed by a terminal; a list of mistakes has its own lines, which are indented."""


class ExitCode(IntEnum):
    """What every command, and everything that ``knee`` starts, ends with. This is the one table of them.

    ``knee train``, ``knee sweep`` and ``knee study`` start other processes and do not hand their codes on: a run that
    failed is 7 (``train``) or a part of an answer, 5 (``sweep``); the record or the table says what became of each.
    """

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """A number with its line in ``knee --help``."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    ANSWERED = 0, "success"
    BUG = 1, "a bug in knee (set KNEE_TRACEBACK=1 to see the traceback)"
    WRONG_INPUT = 2, "the input is wrong"
    DOES_NOT_FIT = 3, "the plan does not fit in memory, or no plan fits"
    MISSING = 4, "an optional package, driver or device is missing"
    IN_PART = 5, "a partial answer: a file is incomplete or unreadable, or runs of a sweep failed"
    NOT_WRITTEN = 6, "the answer could not be written (no space, no permission, or stdout closed)"
    FAILED = 7, "a run, a measurement or a check failed"
    HUNG_UP = 129, "ended by SIGHUP (the terminal was closed)"
    INTERRUPTED = 130, "ended by SIGINT (Ctrl-C)"
    READER_LEFT = 141, "the reader of stdout closed it early (for example `| head`); output files are still written"
    TERMINATED = 143, "ended by SIGTERM"


class KneeError(Exception):
    """A failure with one sentence for the user and, where there is one, the fix."""

    exit_code = ExitCode.BUG
    code = "error"
    """Stable word for programs; a raise may give a more exact one."""

    def __init__(
        self, message: str, *, hint: str | None = None, code: str | None = None, field: str | None = None
    ) -> None:
        # words of a file or an argument may be in it, and one error is one line
        message = CONTROL.sub(_written_out, message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else CONTROL.sub(_written_out, hint)
        self.code = code or type(self).code
        self.field = field
        """The argument, or the dotted path of the value, that is wrong; None where it is not about one."""

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross processes, whatever their class takes."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[KneeError], args: tuple[object, ...], state: dict[str, object]) -> KneeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def _written_out(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


class InputError(KneeError):
    """The input is wrong; nothing was computed."""

    exit_code = ExitCode.WRONG_INPUT
    code = "invalid-input"


class SpecError(InputError, ValueError):
    """A spec cannot be valid. Also a ValueError, so that the loader collects it with the others."""

    code = "invalid-spec"


class FieldError(SpecError):
    """A value that its field does not take: the field is the subject of the sentence, and ``predicate`` the rest."""

    def __init__(self, field: str, predicate: str, *, code: str) -> None:
        super().__init__(f"{field} {predicate}", code=code, field=field)
        self.predicate = predicate


def out_of_range(field: str, value: object, rule: str) -> FieldError:
    """A number that its field does not take: ``plan.tp is 0; it must be at least 1``."""
    return FieldError(field, f"is {value}; {rule}", code="out-of-range")


class DoesNotFit(KneeError):
    """The question is valid and the answer is that nothing fits."""

    exit_code = ExitCode.DOES_NOT_FIT
    code = "does-not-fit"


class MissingExtra(KneeError):
    """A part of knee that needs an optional package, or a driver or device that is not there."""

    exit_code = ExitCode.MISSING
    code = "missing-extra"


class Incomplete(KneeError):
    """An answer was given, about what of the input could be read."""

    exit_code = ExitCode.IN_PART
    code = "incomplete"


class NotWritten(KneeError):
    """The path is good, and the system does not take the bytes."""

    exit_code = ExitCode.NOT_WRITTEN
    code = "not-written"


class RunFailed(KneeError):
    """Processes that were started, or a device that was measured, did not come to the end."""

    exit_code = ExitCode.FAILED
    code = "run-failed"


_FLAGS: ContextVar[bool] = ContextVar("knee_flags", default=False)
_OTHER_FLAGS = {
    "max_bad_frac": "--max-bad",
    "overrides": "--set",
    "runs": "--run",
    "states": "--status",
    "timeout_s": "--timeout",
    "tp_overlap_frac": "--tp-overlap",
}
"""Arguments whose option has another name."""


@contextmanager
def as_flags() -> Iterator[None]:
    """Errors name arguments as the command line does: ``--local-batch`` instead of ``local_batch``."""
    token = _FLAGS.set(True)
    try:
        yield
    finally:
        _FLAGS.reset(token)


def argument(name: str) -> str:
    """An argument of the API as the reader of an error knows it."""
    if not _FLAGS.get():
        return name
    return _OTHER_FLAGS.get(name) or f"--{name.replace('_', '-')}"


def either(python: str, command: str) -> str:
    """Words for whoever reads the error: a caller in Python, or someone at the command line."""
    return command if _FLAGS.get() else python


def example(python: str, command: str) -> str:
    """A hint that shows how it is asked, in Python or on the command line."""
    return f"for example {either(python, command)}"
