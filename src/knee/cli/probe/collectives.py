"""``knee probe collectives``: the links between this job's ranks."""

from __future__ import annotations

import os
from typing import Any

import click

from knee.cli.options.sections import Word
from knee.cli.probe.options import options
from knee.errors import KneeError, RunFailed
from knee.probe.collective_grid import COLLECTIVES
from knee.specs.choices import BACKENDS


@click.command("collectives")
@options
@click.option("--backend", type=Word(BACKENDS), help="NCCL where there is a GPU, else gloo on the CPU.")
@click.option(
    "--collectives", metavar="A,B", default=",".join(COLLECTIVES), show_default=True, help="Which to measure."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="8 GiB",
    show_default=True,
    help="Largest message; memory and time may end a series earlier.",
)
def command(as_json: bool, collectives: str, **given: Any) -> None:
    """Measure collectives over this job's ranks, and fit latency per hop and bandwidth.

    Start it on every rank, as a training run is started:

    \b
        torchrun --nproc-per-node 8 -m knee.cli probe collectives --out mine.toml

    Sizes and bandwidths count as nccl-tests do. Groups are all ranks, a node's, and strided ones as TP, DP, CP and PP
    make them; all groups of a kind run at once. An all-gather beside products tells what each costs the other. Times
    are the lowest decile of the slowest rank's. Takes a minute or two; --replay needs neither torchrun nor torch.
    """
    from knee.api.probe import probe_collectives
    from knee.cli.render.probe import listening, print_collectives

    names = [name.strip().replace("-", "_") for name in collectives.split(",") if name.strip()]
    try:
        with listening() as listener:
            answer = probe_collectives(collectives=names, **given, listener=listener)
    except KneeError as error:
        # every rank finds the same mistake, and one says it; that the others are gone is each rank's own to say
        if os.environ.get("RANK", "0") == "0" or isinstance(error, RunFailed):
            raise
        raise SystemExit(error.exit_code) from None
    if answer is not None:
        print_collectives(answer, as_json)
