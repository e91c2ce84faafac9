"""The command line: the group of all commands, which are imported when they run, how a command ends, and completion."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, get_args

import click
from click.shell_completion import CompletionItem

import knee
from knee.base import signals
from knee.base.errors import ExitCode, InputError, KneeError, RunFailed, as_flags
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
    "validate": ("knee validate", "knee validate runs.csv"),
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


# How a command ends: its exit code, and the one ``error:`` that says why.

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
    message = error.format_message().rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    hint = see_help(ctx)
    if isinstance(error, click.NoSuchOption):
        message = f"there is no option {error.option_name}"
        from knee.specs.catalog import nearest

        known = [name for param in (ctx.command.params if ctx else []) for name in (*param.opts, *param.secondary_opts)]
        hint = nearest(error.option_name, known) or hint
    elif isinstance(error, click.BadParameter) and error.param is not None and error.message:
        message = f"{error.param.opts[0]}: {error.message.rstrip('.')}"
    code, field = _kind_of_click(error)
    return InputError(message[:1].lower() + message[1:], hint=hint, code=code, field=field)


def _kind_of_click(error: click.ClickException) -> tuple[str, str | None]:
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
    """An error that knee does not expect, in one sentence; ``KNEE_TRACEBACK=1`` also prints the traceback."""
    from knee.show.terminal.table import seen

    if os.environ.get(TRACEBACK) == "1":
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    said = seen(" ".join(traceback.format_exception_only(error)[-1].split()))[:300]
    home = str(Path(knee.__file__).parent)
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(home)]
    where = f" ({Path(ours[-1].filename).relative_to(home)}, line {ours[-1].lineno})" if ours else ""
    text = f"this is a bug in knee: {said}{where}"
    return KneeError(text, hint=f"please report it; add the output of the same command with {TRACEBACK}=1", code="bug")


# What the shell completes beyond options and choices: names of the catalogue, and files beside them.

KINDS = {
    **{"model": "model", "models": "model", "cluster": "cluster", "clusters": "cluster", "profile": "profile"},
    **{"grid": "grid", "names": "study", "name": "any"},
}
"""Parameter -> what it names."""


def names_of(kind: str) -> list[str]:
    """Every name of a kind."""
    from knee.specs.catalog import Kind, entry_names

    if kind == "grid":
        from knee.engine.energy import grid_names

        return grid_names()
    if kind == "study":
        from knee.commands.study.study_file import study_names

        return study_names()
    if kind == "any":
        return [name for one in get_args(Kind) for name in entry_names(one)]
    return entry_names(cast("Kind", kind))


def completes_names(param: click.Parameter) -> None:
    """Give a parameter that names something of the catalogue its names."""
    kind = KINDS.get(param.name or "")
    if kind is not None and isinstance(param.type, click.types.StringParamType):
        param.shell_complete = partial(_complete, kind)  # type: ignore[method-assign]


def _complete(kind: str, ctx: click.Context, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's
    found = [CompletionItem(name) for name in names_of(kind) if name.startswith(incomplete)]
    # a path is accepted wherever a name is; the shell lists files itself
    return found or [CompletionItem(incomplete, type="file")]


COMMANDS = {
    "simulate": "Simulate one training step: time, memory, power and cost.",
    "plan": "Find the best parallel plan for a model, a cluster and a batch.",
    "scale": "Show what more GPUs bring, and where adding GPUs stops paying off (the knee).",
    "budget": "Find the best model that a budget of GPUs, days, dollars or MWh can train.",
    "train": "Train a model on real hardware under a plan, and measure it.",
    "weights": "Write the weights of a run as a Hugging Face folder (safetensors).",
    "sweep": "Train a grid of runs on this machine, on other hosts or on a Slurm cluster.",
    "tune": "Find the fastest plan on the real cluster with a few short runs.",
    "dryrun": "Trace the trainer without GPUs: FLOP and collectives of each rank.",
    "compare": "Compare measured, simulated and published records.",
    "trace": "Show where the time of a PyTorch job went, from its profiler traces.",
    "report": "Write one HTML page about your records: charts of measured and simulated runs, with tables.",
    "study": "Reproduce the paper's experiments on the simulator and check its claims.",
    "validate": "Predict published or your own measured runs, and show the error of the predictions.",
    "calibrate": "Fit a software profile on your own measured runs.",
    "probe": "Measure this machine (kernels, collectives, power) and write a cluster file.",
    "data": "Tokenize text files for `knee train`, and inspect the result.",
    "catalog": "List the models, GPUs, clusters and software profiles that knee knows, with sources.",
    "serve": "Serve the explorer: a page that answers while a job is changed with sliders.",
    "doctor": "Show what works on this machine, and how to install what is missing.",
}
"""Command -> its line in ``knee --help``; ``cli.py`` of its folder has a click command ``command``."""


@cache
def available() -> list[str]:
    """Commands whose module is installed."""
    return [name for name in COMMANDS if find_spec(f"knee.commands.{name}.cli") is not None]


class CommandGroup(click.Group):
    """A group whose misspelt commands get the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command where there is none of that name."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            raise unknown_command(name, known, self.hint_for(ctx, name))
        return super().resolve_command(ctx, args)

    def hint_for(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002 - for groups that know more
        """What to do where no command is close."""
        return see_help(ctx)


class Commands(CommandGroup):
    """Commands that are imported when they are called, and errors in one form."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table above."""
        return available()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module."""
        if cmd_name not in available():
            return None
        command = importlib.import_module(f"knee.commands.{cmd_name}.cli").command
        assert isinstance(command, click.Command)
        command.epilog = command.epilog or epilog_of(cmd_name)
        if ctx.resilient_parsing:  # the shell asks what it may complete
            for param in command.params:
                completes_names(param)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in available()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; wrong input without a hint of its own is sent to that command's help."""
        try:
            with as_flags():
                return super().invoke(ctx)
        except InputError as error:
            if error.hint is None:
                error.hint = example_of(f"knee {ctx.invoked_subcommand}")
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

        def run() -> Any:
            return super(Commands, self).main(args, prog_name or "knee", complete_var, standalone_mode=False, **extra)

        with Delivery() as delivery:
            code = code_of(run, delivery)
            signals.ending(code)
            if signals.heard():  # one between a file's making and its block leaves it to whoever ends last
                signals.clean_up()
        sys.exit(code)


def unknown_command(name: str, known: Sequence[str], hint: str) -> InputError:
    """The error for a command that there is not; the hint is for one that is close to none."""
    from knee.specs.catalog import nearest

    return InputError(f"there is no command {name!r}", hint=nearest(name, known) or hint, code="unknown-command")


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        click.echo(f"knee {knee.__version__}")
        ctx.exit()


HELP = """Find out how many GPUs your training run can use before you rent them.

Answers go to stdout (with --json, as JSON). Progress, warnings and errors go to stderr.

\b
Exit codes:
""" + "\n".join(f"{code:>5}  {code.meaning}" for code in ExitCode)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    help=HELP,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """The command line: without a command, its help."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
