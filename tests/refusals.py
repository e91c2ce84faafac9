"""What a command or a call refuses: the error itself, with its code and field, and the form in which it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from knee.base.errors import InputError, KneeError
from knee.commands import main as ending
from knee.commands.main import main


def ended(*args: str | Path) -> tuple[Result, KneeError]:
    """A command that ends with an error: what it printed, and the error. stderr shows it as one ``error:`` and at most
    one ``hint:``, without a traceback."""
    with mock.patch.object(ending, "fail", wraps=ending.fail) as fail:
        result = CliRunner().invoke(main, [str(word) for word in args])
    assert fail.call_count == 1, (result.exit_code, result.output, result.exception)
    (error,) = fail.call_args.args
    assert isinstance(error, KneeError)
    assert result.exit_code == error.exit_code
    shown = [f"error: {error.message}", *([] if error.hint is None else [f"hint: {error.hint}"])]
    assert result.stderr.endswith("\n".join([*shown, ""]))
    assert re.findall(r"^(error|hint):", result.stderr, re.MULTILINE) == [line.partition(":")[0] for line in shown]
    assert "Traceback" not in result.stderr
    return result, error


def refused(*args: str | Path) -> InputError:
    """The error of a command whose input is wrong: nothing is on stdout, and a hint says what to do."""
    result, error = ended(*args)
    assert isinstance(error, InputError), (result.stdout, error.message)
    assert result.stdout == ""
    assert error.hint
    return error


def caught(ask: Callable[[], Any]) -> KneeError:
    """The error of a call."""
    with pytest.raises(KneeError) as found:
        ask()
    return found.value


def kind(error: KneeError) -> tuple[str, str | None]:
    """What programs read of an error."""
    return error.code, error.field


def numbers(text: str | None) -> list[float]:
    """The numbers in a sentence, in order."""
    return [float(word.replace(",", "")) for word in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?", text or "")]
