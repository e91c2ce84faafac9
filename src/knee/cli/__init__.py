"""The command line: one small file per command, imported only when that command runs."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NoReturn

import click

import knee
from knee.errors import InputError, KneeError

COMMANDS: dict[str, tuple[str, str]] = {
    "simulate": ("knee.cli.simulate", "One training step of a model, cluster and plan: time, memory, power, cost."),
    "plan": ("knee.cli.plan", "The best parallel plan of a job, out of all there are."),
    "scale": ("knee.cli.scale", "What more GPUs buy, and where they stop to pay: the knee."),
    "budget": ("knee.cli.budget", "The best model that GPUs, days, dollars or MWh can train, communication included."),
    "train": ("knee.cli.train", "Train a model for real under the same plan, and measure it."),
    "sweep": ("knee.cli.sweep", "A grid of real runs, on this machine, on hosts or on a Slurm cluster."),
    "dryrun": ("knee.cli.dryrun", "The trainer on fake ranks, without hardware: FLOP and collectives of each rank."),
    "compare": ("knee.cli.compare", "Measured, simulated and published records side by side."),
    "trace": ("knee.cli.trace", "Where the time of anyone's PyTorch job went, from its traces."),
    "report": ("knee.cli.report", "One page of your own records: measured beside simulated, every value behind."),
    "study": ("knee.cli.study", "The paper's experiments on the simulator, held against its claims."),
    "validate": ("knee.cli.validate", "Predict published runs of a CSV file, and say how far off knee is."),
    "calibrate": ("knee.cli.calibrate", "Fit a software profile on your own measured runs."),
    "probe": ("knee.cli.probe", "Measure this machine: kernels, collectives, power; write it as a cluster file."),
    "data": ("knee.cli.data", "Make tokens of text files for `knee train`, and look at them."),
    "catalog": ("knee.cli.catalog", "What knee knows, and from where: models, GPUs, clusters, software profiles."),
    "doctor": ("knee.cli.doctor", "What works on this machine, and what is missing for the rest."),
}
"""Command -> its module, which has a click command ``command``, and its line in ``knee --help``."""

INTERRUPTED = 130
BROKEN_PIPE = 1


@cache
def available() -> list[str]:
    """Commands whose module is installed."""
    return [name for name, (module, _) in COMMANDS.items() if find_spec(module) is not None]


class Commands(click.Group):
    """Commands that are imported when they are called, and errors in one form."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table above."""
        return available()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command's module."""
        if cmd_name not in available():
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in available()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command where there is none of that name."""
        name = args[0]
        if name not in available() and not name.startswith("-"):
            raise InputError(f"there is no command {name!r}", hint=nearest(name, available()) or _see_help(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; wrong input without a hint of its own is sent to that command's help."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            if error.hint is None:
                error.hint = f"`knee {ctx.invoked_subcommand} --help` says what can be asked"
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line. Bad input ends in words and an exit code, never in a traceback."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by whoever started this
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the process' life
        try:
            code = super().main(args, prog_name or "knee", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except KneeError as error:
            fail(error)
        except click.ClickException as error:
            fail(_in_our_words(error))
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # the reader, `head` say, has seen enough; nothing more is flushed at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                from knee.files import cannot_use

                if (said := cannot_use(error)) is None:
                    raise
                fail(said)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            fail(KneeError("the answer could not be written: no space is left"))
        sys.exit(code if isinstance(code, int) else 0)


def fail(error: KneeError) -> NoReturn:
    """Say what is wrong and how to fix it on stderr, and leave with the error's exit code."""
    # What was already said on stdout comes first where both go to one terminal.
    sys.stdout.flush()
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error.message}", err=True)
    if error.hint is not None:
        click.echo(f"{click.style('hint:', fg='cyan', bold=True)} {error.hint}", err=True)
    sys.exit(error.exit_code)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """``did you mean ...?`` for a misspelt word, if one is close."""
    from difflib import get_close_matches

    close = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else None


def _see_help(ctx: click.Context | None) -> str:
    return f"`{ctx.command_path if ctx else 'knee'} --help` says what can be asked"


def _in_our_words(error: click.ClickException) -> KneeError:
    """click's own complaints in the form of ours."""
    message = error.format_message().rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    hint = _see_help(ctx)
    if isinstance(error, click.NoSuchOption):
        message = f"there is no option {error.option_name}"
        known = [name for param in (ctx.command.params if ctx else []) for name in (*param.opts, *param.secondary_opts)]
        hint = nearest(error.option_name, known) or hint
    return InputError(message[:1].lower() + message[1:], hint=hint)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        click.echo(f"knee {knee.__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """How many GPUs your training run can use, before you rent them.

    Answers are data on stdout (--json for machines); everything else goes to stderr.

    \b
    Exit codes: 0 answered, 2 the input is wrong, 3 the plan does not fit in memory,
    4 an optional part is not installed, 5 answered from a file that is cut off.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
