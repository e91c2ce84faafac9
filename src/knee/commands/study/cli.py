"""``knee study``: the paper's experiments, and questions beyond it, on the simulator or for real."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from knee.base.errors import InputError
from knee.commands.main import CommandGroup
from knee.commands.options.output import print_result, say
from knee.commands.options.sections import KEY_VALUE, PATH, Word, as_json, option, options
from knee.specs.choices import STUDY_LAUNCHERS, StudyLauncher

DEFAULT_OUT = "out"
NAME_WIDTH = 12
"""Of studies beside their bars."""


class StudyGroup(CommandGroup):
    """A group whose commands may have been left out before a study's name."""

    def hint_for(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002
        """The command that takes names."""
        return f"`knee study run {name}` runs a study; `knee study list` lists all studies"


def _out(command: Any) -> Any:
    return option("--out DIR", PATH, "Folder for the page, figures, tables and records.", default=DEFAULT_OUT)(command)


@click.group("study", cls=StudyGroup, invoke_without_command=True)
@_out
@as_json()
@click.pass_context
def study(ctx: click.Context, out: Path, as_json: bool) -> None:
    """Reproduce every figure and claim of the paper, and answer further questions.

    Without a command, knee runs all studies on the simulator and writes the page DIR/index.html, which needs no
    network. Records are stored in DIR/records and reused while their inputs stay the same, so an interrupted study
    continues where it stopped.
    """
    if ctx.invoked_subcommand is None:
        _run((), out=out, as_json=as_json)
    elif str(out) != DEFAULT_OUT or as_json:
        hint = f"for example `knee study {ctx.invoked_subcommand} --json`"
        raise InputError("--out and --json belong behind the command", hint=hint, code="misplaced-option")


command = study


@study.command("list")
@as_json("Print JSON.")
def list_command(as_json: bool) -> None:
    """List all studies: place in the paper, topic, number of runs and claims."""
    from knee.commands.study.api import list_studies
    from knee.commands.study.text import print_studies

    found = list_studies()
    if as_json:
        click.echo(json.dumps([one.to_dict() for one in found], indent=2))
    else:
        print_studies(found)


@study.command("show")
@click.argument("name")
@as_json("Print JSON: the study and every point of its grid.")
def show_command(name: str, as_json: bool) -> None:
    """Show the question, the runs, the assumptions and the claims of a study."""
    from knee.commands.study.api import describe_study
    from knee.commands.study.text import print_description

    # the values of a file may be dates
    print_result(describe_study(name), as_json, print_description, allow_nan=True, default=str)


@study.command("run")
@click.argument("names", nargs=-1, metavar="[STUDY]...")
@_out
@options(
    "Options",
    {
        ("--launcher", Word(STUDY_LAUNCHERS), "simulate"): "local: train the points that this machine can run, and "
        "simulate the others. simulate: simulate all points.",
        ("--records PATH", (PATH,)): "Measured records: a run's folder, its record.json, or a folder of runs. They "
        "replace the simulated points of the same jobs. May be repeated.",
        ("--set overrides KEY=VALUES", (KEY_VALUE,)): "Override a key of the grid: model, cluster, profile, gpus, "
        "local_batch, global_batch or seq_len. Separate values by commas. Claims are then not tested. May be repeated.",
        ("--steps N", int): "Number of steps of each real run; default: the default of `knee train`.",
        ("--no-page", bool): "Write records, tables and verdicts only; no figures and no page.",
        ("--json as_json", bool): "Print JSON; the name of each key ends in its unit.",
    },
)
def run(names: tuple[str, ...], out: Path, **options: Any) -> None:
    """Run the named studies, or all of them if none is named.

    \b
        knee study run fig3
        knee study run fig3 --records runs/                 # use measured records where they exist
        knee study run fig6 --launcher local --set model=llama-tiny --set cluster=cpu --set profile=eager \\
            --set gpus=4 --set seq_len=64
    """
    _run(names, out=out, **options)


def _run(
    names: Sequence[str],
    *,
    out: Path,
    as_json: bool,
    launcher: StudyLauncher = "simulate",
    records: Sequence[Path] = (),
    overrides: Sequence[tuple[str, str]] = (),
    steps: int | None = None,
    no_page: bool = False,
) -> None:
    from knee.commands.study.api import study
    from knee.commands.study.study_file import load_study
    from knee.commands.study.text import print_answer
    from knee.show.terminal.progress_bar import Bars

    for name in names:
        load_study(name)
    if not no_page:  # not after everything has been run
        from knee.show.figures.vega import load

        load("vl_convert"), load("jinja2", "pages")
    with Bars(width=NAME_WIDTH) as bars:
        answer = study(
            *names,
            out=out,
            launcher=launcher,
            records=records,
            overrides=overrides,
            steps=steps,
            progress=bars,
            say=say,
        )
    say(
        f"{answer.points:,} points: {answer.simulated:,} simulated, {answer.reused:,} kept from before"
        + (f", {answer.impossible:,} cannot be" if answer.impossible else "")
        + (f", {answer.measured:,} measured" if answer.measured else "")
    )
    # the answer first, because it needs nothing that may be missing; then figures and the page
    print_result(answer, as_json, print_answer)
    if not no_page:
        say(f"wrote {answer.write_page(command=_given(names, out, launcher, records, overrides))}")
    click.echo(f"independent claims: {answer.independent}", err=as_json)


def _given(
    names: Sequence[str], out: Path, launcher: str, records: Sequence[Path], sets: Sequence[tuple[str, str]]
) -> str:
    from knee.commands.study.study_file import study_names

    words = ["knee", "study"]
    rest = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in sets] + [
        f"--records {shlex.quote(str(path))}" for path in records
    ]
    rest += [] if launcher == "simulate" else [f"--launcher {launcher}"]
    some = list(dict.fromkeys(names))
    some = [] if some == study_names() else some
    words += ["run", *some] if some or rest else []
    rest += [] if str(out) == DEFAULT_OUT else [f"--out {shlex.quote(str(out))}"]
    return " ".join([*words, *rest])
