"""``knee probe``: measures this machine. One small file per subcommand, imported only when it runs."""

from __future__ import annotations

import importlib

import click

from knee.cli import CommandGroup

SUBCOMMANDS: dict[str, str] = {
    "kernels": "Products, attention and memory-bound kernels of one device; fits the GPU's compute model.",
    "collectives": "Collectives over this job's ranks (under torchrun); fits latency and bandwidth per hop.",
    "power": "The draw of one GPU under several loads; fits the power model.",
    "steps": "Whole training steps on one device, held against the simulator.",
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
        command = importlib.import_module(f"knee.cli.probe.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list in ``--help``, without importing any of them."""
        with formatter.section("Probes"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group("probe", cls=Probes, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Measure this machine, and write what the simulator needs to know of it.

    Readings go beside --out, one line each as they are taken: mine.toml has mine.kernels.jsonl and so on. An
    interrupted probe goes on where it stopped. Every probe writes mine.toml anew from all readings that lie beside it;
    `knee simulate --cluster mine.toml` takes it as it is. What was not measured comes from the catalogue's entry for
    this kind of machine (--base), and says so.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
