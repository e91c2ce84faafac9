"""The command line: one small file per command, imported only when that command runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import click

import knee
from knee.base import signals
from knee.base.errors import ExitCode, InputError, as_flags
from knee.commands.ending import code_of, epilog_of, example_of, see_help
from knee.show.terminal.delivery import Delivery

COMMANDS: dict[str, tuple[str, str]] = {
    "simulate": ("knee.commands.simulate.cli", "Simulate one training step: time, memory, power and cost."),
    "plan": ("knee.commands.plan.cli", "Find the best parallel plan for a model, a cluster and a batch."),
    "scale": (
        "knee.commands.scale.cli",
        "Show what more GPUs bring, and where adding GPUs stops paying off (the knee).",
    ),
    "budget": (
        "knee.commands.budget.cli",
        "Find the best model that a budget of GPUs, days, dollars or MWh can train.",
    ),
    "train": ("knee.commands.train.cli", "Train a model on real hardware under a plan, and measure it."),
    "weights": ("knee.commands.weights.cli", "Write the weights of a run as a Hugging Face folder (safetensors)."),
    "sweep": ("knee.commands.sweep.cli", "Train a grid of runs on this machine, on other hosts or on a Slurm cluster."),
    "tune": ("knee.commands.tune.cli", "Find the fastest plan on the real cluster with a few short runs."),
    "dryrun": ("knee.commands.dryrun.cli", "Trace the trainer without GPUs: FLOP and collectives of each rank."),
    "compare": ("knee.commands.compare.cli", "Compare measured, simulated and published records."),
    "trace": ("knee.commands.trace.cli", "Show where the time of a PyTorch job went, from its profiler traces."),
    "report": (
        "knee.commands.report.cli",
        "Write one HTML page about your records: charts of measured and simulated runs, with tables.",
    ),
    "study": ("knee.commands.study.cli", "Reproduce the paper's experiments on the simulator and check its claims."),
    "validate": (
        "knee.commands.validate.cli",
        "Predict published or your own measured runs, and show the error of the predictions.",
    ),
    "calibrate": ("knee.commands.calibrate.cli", "Fit a software profile on your own measured runs."),
    "probe": (
        "knee.commands.probe.cli",
        "Measure this machine (kernels, collectives, power) and write a cluster file.",
    ),
    "data": ("knee.commands.data.cli", "Tokenize text files for `knee train`, and inspect the result."),
    "catalog": (
        "knee.commands.catalog.cli",
        "List the models, GPUs, clusters and software profiles that knee knows, with sources.",
    ),
    "serve": (
        "knee.commands.serve.cli",
        "Serve the explorer: a page that answers while a job is changed with sliders.",
    ),
    "doctor": ("knee.commands.doctor.cli", "Show what works on this machine, and how to install what is missing."),
}
"""Command -> its module, which has a click command ``command``, and its line in ``knee --help``."""


@cache
def available() -> list[str]:
    """Commands whose module is installed."""
    return [name for name, (module, _) in COMMANDS.items() if find_spec(module) is not None]


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
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        command.epilog = command.epilog or epilog_of(cmd_name)
        if ctx.resilient_parsing:  # the shell asks what it may complete
            from knee.commands.options.completion import completes_names

            for param in command.params:
                completes_names(param)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in available()])

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
    return InputError(f"there is no command {name!r}", hint=nearest(name, known) or hint, code="unknown-command")


def nearest(word: str, known: Sequence[str]) -> str | None:
    """``did you mean ...?`` for a misspelt word, if one is close."""
    from knee.specs.catalog import did_you_mean

    close = did_you_mean(word, known)
    return f"did you mean {close}?" if close else None


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
