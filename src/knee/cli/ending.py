"""How a command ends: its exit code, and the one ``error:`` that says why."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import knee
from knee import signals
from knee.cli.delivery import Delivery
from knee.cli.examples import example_of
from knee.errors import ERROR_FILE, ExitCode, InputError, KneeError, RunFailed

TRACEBACK = "KNEE_TRACEBACK"
"""Set to 1, it shows the traceback of a bug."""
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""What a system says of any file when it takes no more."""


def code_of(run: Callable[[], Any], delivery: Delivery) -> int:
    """Run a command to its exit code. The first thing that goes wrong is said, and counts; after a signal, nothing."""
    try:
        try:
            code = run()
        except SystemExit as end:
            code = end.code
        code = code if isinstance(code, int) and code else delivery.check()
    except (KeyboardInterrupt, click.Abort) as error:
        if not isinstance(error.__cause__, EOFError):
            return signals.heard() or ExitCode.INTERRUPTED
        code = fail(in_words(error.__cause__))  # click takes an end of file for a wish to end
    except BaseException as error:  # a library in Rust panics with what is no Exception
        # nor need a library hand on a signal as what it was
        code = signals.heard() or fail(in_words(error))
    return signals.heard() or code


def fail(error: KneeError) -> ExitCode:
    """Say what is wrong and how to fix it on stderr; the error's exit code."""
    # What was already said on stdout comes first where both go to one terminal.
    sys.stdout.flush()
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error.message}", err=True)
    if error.hint is not None:
        click.echo(f"{click.style('hint:', fg='cyan', bold=True)} {error.hint}", err=True)
    if path := os.environ.get(ERROR_FILE):
        import json

        told = {name: getattr(error, name) for name in ("code", "field", "message", "hint")}
        with suppress(OSError):
            Path(path).write_text(json.dumps(told) + "\n", encoding="utf-8")
    return error.exit_code


def in_words(error: BaseException) -> KneeError:
    """Any exception in the form of ours."""
    if isinstance(error, KneeError):
        return error
    if isinstance(error, click.ClickException):
        return _of_click(error)
    if isinstance(error, MemoryError):
        hint = "reduce the job, or use a machine with more memory"
        return RunFailed("this machine does not have enough memory for this command", hint=hint, code="out-of-memory")
    if isinstance(error, OSError) and error.errno in DISK:
        from knee.files import cannot_write

        return cannot_write(Path(os.fsdecode(error.filename or "a file")), error)
    if isinstance(error, OSError) and error.filename is not None:
        from knee.text_files import cannot_use

        return cannot_use(error) or _bug(error)
    return _bug(error)


def see_help(ctx: click.Context | None) -> str:
    """The hint where there is no better one: the options that the command has."""
    if ctx is None:
        return "run `knee --help` for the list of commands"
    if isinstance(ctx.command, click.Group):
        return f"use one of: {', '.join(ctx.command.list_commands(ctx))}"
    return example_of(ctx.command_path) or f"`{ctx.command_path} --help` lists the arguments and options"


def _of_click(error: click.ClickException) -> KneeError:
    """click's own complaints."""
    from knee.cli import nearest

    message = error.format_message().rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    hint = see_help(ctx)
    if isinstance(error, click.NoSuchOption):
        message = f"there is no option {error.option_name}"
        known = [name for param in (ctx.command.params if ctx else []) for name in (*param.opts, *param.secondary_opts)]
        hint = nearest(error.option_name, known) or hint
    elif isinstance(error, click.BadParameter) and error.param is not None and error.message:
        message = f"{error.param.opts[0]}: {error.message.rstrip('.')}"
    code, field = _kind_of_click(error)
    return InputError(message[:1].lower() + message[1:], hint=hint, code=code, field=field)


def _kind_of_click(error: click.ClickException) -> tuple[str, str | None]:
    """The code and the argument of a complaint of click's."""
    if isinstance(error, click.NoSuchOption):
        return "unknown-option", error.option_name
    param = error.param if isinstance(error, click.BadParameter) else None
    field = None if param is None else param.name
    if isinstance(error, click.MissingParameter):
        return "missing-argument", field
    if isinstance(error, click.BadParameter):
        numbers = (click.types.IntParamType, click.types.FloatParamType)
        return "not-a-number" if param is not None and isinstance(param.type, numbers) else "invalid-value", field
    return "usage", None


def _bug(error: BaseException) -> KneeError:
    """What nobody thought of, in one sentence; the whole of it where it was asked for."""
    from knee.cli.render.table import seen

    if os.environ.get(TRACEBACK) == "1":
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    said = seen(" ".join(traceback.format_exception_only(error)[-1].split()))[:300]
    home = str(Path(knee.__file__).parent)
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(home)]
    where = f" ({Path(ours[-1].filename).relative_to(home)}, line {ours[-1].lineno})" if ours else ""
    return KneeError(
        f"this is a bug in knee: {said}{where}",
        hint=f"please report it; add the output of the same command with {TRACEBACK}=1",
        code="bug",
    )
