"""How a command ends: its exit code, and the one ``error:`` that says why."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import knee
from knee.base import signals
from knee.base.errors import ExitCode, InputError, KneeError, RunFailed
from knee.show.terminal.delivery import Delivery

# The examples at the end of each command's ``--help``; a test parses every one of them.

EXAMPLES: dict[str, tuple[str, ...]] = {
    "simulate": (
        "knee simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2",
        "knee simulate llama2-70b --cluster dgx-h100 --gpus 512 --global-batch 1024 --tp 8 --recompute ops --tokens 2T",
    ),
    "plan": (
        "knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512",
        "knee plan llama2-70b --cluster dgx-h100 --gpus 512 --global-batch 1024 --tokens 2T --html plan.html",
    ),
    "scale": (
        "knee scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2",
        "knee scale llama2-7b --cluster dgx-a100,dgx-h100 --gpus 8..1024 --local-batch 2 --plot scale.svg",
    ),
    "budget": ("knee budget --cluster dgx-h100 --gpus 2048 --days 30",),
    "train": (
        "knee train llama-tiny",
        "knee train llama2-7b --nproc 8 --tp 2 --local-batch 2 --out run",
        "knee train llama2-7b --nproc 8 --data shards --steps 10000 --lr-schedule cosine --lr-warmup 200 "
        "--checkpoint-every 500 --out run",
        "knee train llama2-7b --nproc 8 --data shards --resume run",
    ),
    "weights": ("knee weights run --out hf --dtype bf16",),
    "sweep": ("knee sweep run mine.toml --out runs --dry-run",),
    "tune": (
        "knee tune run llama2-7b --cluster dgx-h100 --gpus 64 --global-batch 128 --launcher slurm --out tuned",
        "knee tune status tuned",
        "knee tune run --replay published",
    ),
    "dryrun": ("knee dryrun llama2-7b --gpus 64 --tp 2",),
    "compare": ("knee compare runs/a/record.json runs/b/record.json",),
    "trace": ("knee trace step.json.gz",),
    "report": ("knee report runs/ --out page.html",),
    "study": ("knee study run fig3", "knee study run mine.toml --out out-mine"),
    "validate": (
        "knee validate",
        "knee validate runs.csv",
    ),
    "calibrate": ("knee calibrate runs.csv --out mine.toml",),
    "probe": ("knee probe kernels",),
    "data": ("knee data prepare corpus.jsonl --out shards --tokenizer bytes",),
    "catalog": ("knee catalog", "knee catalog dgx-h100"),
    "serve": ("knee serve", "knee serve --port 0 --records runs --study out"),
    "doctor": ("knee doctor",),
}
"""Command -> lines as a user types them."""


def epilog_of(command: str) -> str | None:
    """The paragraph that click prints last."""
    lines = EXAMPLES.get(command)
    return None if lines is None else "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def example_of(path: str) -> str | None:
    """A hint: how a command such as ``knee study run`` is called; None without an example."""
    lines = [line for examples in EXAMPLES.values() for line in examples if line.startswith(f"{path} ")]
    return f"for example: {lines[0]}; `{path} --help` lists the options" if lines else None


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
        from knee.base.files import cannot_write

        return cannot_write(Path(os.fsdecode(error.filename or "a file")), error)
    if isinstance(error, OSError) and error.filename is not None:
        from knee.base.files import cannot_use

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
    from knee.commands.main import nearest

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
    from knee.show.terminal.table import seen

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
