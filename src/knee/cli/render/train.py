"""A real run on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from knee.cli.render.table import print_heading, print_rows
from knee.record.side_by_side import ROWS, shown
from knee.units import counted, show

if TYPE_CHECKING:
    from knee.api.train import TrainJobFile


def say_job_file(answer: TrainJobFile) -> None:
    """How a job that was written is run, on stderr."""
    click.echo(
        f"wrote {answer.path}: run it with `{answer.command}`; the record is written to {answer.job.out}",
        err=True,
    )


def print_record(record: dict[str, Any]) -> None:
    """The record of a run that has measured steps, as tables."""
    print_heading(
        f"{record['model']} on {record['gpus']:,} x {record['device'].get('name')}, measured over "
        f"{counted(record['window_steps'], 'step')}"
    )
    print_rows([[row.title, shown(row, row.value(record))] for row in ROWS if row.value(record) is not None])
    if not record["comm_loads"]:
        return
    print_heading("communication (per process and per step)")
    rows = [["collective", "group", "ranks", "calls", "message size", "kernel time"]]
    rows += [
        [
            load["collective"],
            load["group"],
            str(load["group_size"] or "?"),
            f"{load['calls']:g}",
            show(load["message_bytes"], "bytes") if load["message_bytes"] else "?",
            show(load["load_s"], "s"),
        ]
        for load in record["comm_loads"]
    ]
    print_rows(rows, right=(2, 3, 4, 5))
