"""``knee probe``: measures this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from knee.base.errors import KneeError, RunFailed
from knee.commands.main import CommandGroup
from knee.commands.options.output import print_result
from knee.commands.options.sections import FILE, PATH, Word, option, options
from knee.measure.machine.collective_grid import COLLECTIVES
from knee.specs.choices import BACKENDS, DEVICES
from knee.specs.defaults import CLUSTER_FILE


class Probes(CommandGroup):
    """Subcommands, listed as probes in the order of this file."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``."""
        with formatter.section("Probes"):
            formatter.write_dl([(name, str(command.short_help)) for name, command in self.commands.items()])


@click.group("probe", cls=Probes, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Measure this machine, and write a cluster file for the simulator.

    Readings are saved next to the --out file while they are taken: for mine.toml in mine.kernels.jsonl and similar
    files. An interrupted probe continues where it stopped. Every probe writes mine.toml again from all saved readings.
    Use the file with `knee simulate --cluster mine.toml`. Values that were not measured come from a similar cluster of
    the catalogue (--base) and are marked as such.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _measure(name: str, as_json: bool, given: dict[str, Any]) -> None:
    """Run the function of a probe and print what it found; ranks but the first of a job find nothing."""
    from knee.commands.probe import api, text

    with text.listening() as listener:
        answer = getattr(api, f"probe_{name}")(**given, listener=listener)
    if name in text.WARNINGS:
        text.WARNINGS[name](answer)
    if answer is not None:
        print_result(answer, as_json, getattr(text, f"print_{name}"), allow_nan=True)


DEVICE = option("--device", Word(DEVICES), "Device to measure; default: the GPU if there is one.")
ANYWAY = option("--anyway", bool, "Measure even if another process uses the GPU.")


def _probe(name: str, short_help: str, *own: Callable[..., Any]) -> Callable[[Callable[..., Any]], click.Command]:
    """A subcommand with the options of every probe, and its own behind them."""
    shared = options(
        "Options",
        {
            ("--out", FILE, CLUSTER_FILE): "Cluster file to write; the readings are saved next to it.",
            ("--base NAME", str): "Cluster that provides the values that are not measured: a name from `knee catalog`, "
            "or the path of a TOML file; default: the catalogue's cluster with this GPU.",
            ("--quick", bool): "Measure only a fraction of the points, for a first look in about a minute.",
            ("--fresh", bool): "Discard earlier readings and measure everything again.",
            ("--replay FILE", PATH): "Read the readings from a file instead of measuring this machine.",
            ("--json as_json", bool): "Print JSON.",
        },
    )

    def decorate(function: Callable[..., Any]) -> click.Command:
        for add in reversed((shared, *own)):
            function = add(function)
        return command.command(name, short_help=short_help)(function)

    return decorate


@_probe(
    "kernels",
    "Measure matrix products, attention and memory-bound kernels of one device, and fit its compute model.",
    DEVICE,
    ANYWAY,
)
def kernels(as_json: bool, **given: Any) -> None:
    """Measure matrix products, attention and memory-bound kernels of one device, and fit its compute model.

    The output shows the error of the fit, also on shapes that were held out. The result is written to the cluster
    file. The full grid takes about eight minutes on an H200; --quick takes one or two.
    """
    _measure("kernels", as_json, given)


@_probe(
    "collectives",
    "Measure collectives between the ranks of a torchrun job, and fit latency and bandwidth per hop.",
    option(
        "--backend", Word(BACKENDS), "Communication backend; default: NCCL if there is a GPU, else gloo on the CPU."
    ),
    option("--collectives A,B", str, "Collectives to measure.", default=",".join(COLLECTIVES)),
    option(
        "--max-size SIZE",
        str,
        "Largest message size; a series stops earlier if memory or time runs out.",
        default="8 GiB",
    ),
)
def collectives(as_json: bool, collectives: str, **given: Any) -> None:
    """Measure collectives between the ranks of this job, and fit latency per hop and bandwidth.

    Start it on every rank, like a training run:

    \b
        torchrun --nproc-per-node 8 -m knee probe collectives --out mine.toml

    Sizes and bandwidths are defined as in nccl-tests. The groups are all ranks, the ranks of each node, and strided
    groups such as TP, DP, CP and PP use; all groups of one kind run at the same time. An all-gather that runs during
    matrix products shows how much the two slow each other down. Each time is the 10th percentile over the repetitions
    of the slowest rank. The probe takes one or two minutes. --replay needs neither torchrun nor torch.
    """
    names = [name.strip().replace("-", "_") for name in collectives.split(",") if name.strip()]
    try:
        _measure("collectives", as_json, given | {"collectives": names})
    except KneeError as error:
        # every rank finds the same mistake, and one says it; that the others are gone is each rank's own to say
        if os.environ.get("RANK", "0") == "0" or isinstance(error, RunFailed):
            raise
        raise SystemExit(error.exit_code) from None


@_probe("power", "Measure the power of one GPU under several loads, and fit its power model.", ANYWAY)
def power(as_json: bool, **given: Any) -> None:
    """Measure the power of one NVIDIA GPU when idle and during matrix products, copies and attention, and fit its
    power model.

    Each load runs for about four seconds, and the GPU's energy counter is read. The probe takes two minutes, or one
    with --quick. The output shows the error of the power model near the power limit and on loads that were held out.
    The result is written to the cluster file.
    """
    _measure("power", as_json, given)


@_probe("steps", "Measure whole training steps on one device, and compare them with the simulator.", DEVICE, ANYWAY)
def steps(as_json: bool, **given: Any) -> None:
    """Measure training steps of Llama 1B and 7B on one device, and simulate the same steps.

    The simulator uses the cluster file (--out) if a probe has written one, else the catalogue's entry. Steps are never
    used for fitting; they show how accurate the cluster file is. The probe takes about five minutes on an H200.
    """
    _measure("steps", as_json, given)
