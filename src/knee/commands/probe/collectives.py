"""``knee probe collectives``: the links between this job's ranks."""

from __future__ import annotations

import os
from typing import Any

import click

from knee.base.errors import KneeError, RunFailed
from knee.commands.options.sections import Word
from knee.commands.probe.options import options
from knee.measure.machine.collective_grid import COLLECTIVES
from knee.specs.choices import BACKENDS


@click.command("collectives")
@options
@click.option(
    "--backend",
    type=Word(BACKENDS),
    help="Communication backend; default: NCCL if there is a GPU, else gloo on the CPU.",
)
@click.option(
    "--collectives", metavar="A,B", default=",".join(COLLECTIVES), show_default=True, help="Collectives to measure."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    default="8 GiB",
    show_default=True,
    help="Largest message size; a series stops earlier if memory or time runs out.",
)
def command(as_json: bool, collectives: str, **given: Any) -> None:
    """Measure collectives between the ranks of this job, and fit latency per hop and bandwidth.

    Start it on every rank, like a training run:

    \b
        torchrun --nproc-per-node 8 -m knee probe collectives --out mine.toml

    Sizes and bandwidths are defined as in nccl-tests. The groups are all ranks, the ranks of each node, and strided
    groups such as TP, DP, CP and PP use; all groups of one kind run at the same time. An all-gather that runs during
    matrix products shows how much the two slow each other down. Each time is the 10th percentile over the repetitions
    of the slowest rank. The probe takes one or two minutes. --replay needs neither torchrun nor torch.
    """
    from knee.commands.probe.api import probe_collectives
    from knee.commands.probe.text import listening, print_collectives

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
