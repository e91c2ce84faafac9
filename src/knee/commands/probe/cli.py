"""``knee probe``: measures this machine. One small file per subcommand, imported only when it runs."""

from __future__ import annotations

import importlib

import click

from knee.commands.main import CommandGroup

SUBCOMMANDS: dict[str, str] = {
    "kernels": (
        "Measure matrix products, attention and memory-bound kernels of one device, and fit its compute model."
    ),
    "collectives": "Measure collectives between the ranks of a torchrun job, and fit latency and bandwidth per hop.",
    "power": "Measure the power of one GPU under several loads, and fit its power model.",
    "steps": "Measure whole training steps on one device, and compare them with the simulator.",
}


class Probes(CommandGroup):
    """Subcommands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order of the table above."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a subcommand's module."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = importlib.import_module(f"knee.commands.probe.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Probes"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


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
