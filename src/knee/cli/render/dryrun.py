"""A step on fake ranks on the screen, beside what the simulator has those ranks do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from knee.cli.render.table import print_heading, print_rows
from knee.units import show

if TYPE_CHECKING:
    from knee.api.dryrun import DryRun


def say_traced(done: int, total: int) -> None:
    """How far a trace of several pipeline stages is, on stderr."""
    if total > 1:
        click.echo(f"traced {done} of {total} different pipeline stages", err=True)


def print_dryrun(answer: DryRun) -> None:
    """The answer as tables; stages that do the same are shown once."""
    job = answer.job
    print_heading(
        f"{job.model.name} on {job.gpus:,} fake ranks, one step of {job.global_batch:,} sequences of "
        f"{job.seq_len:,} tokens"
    )
    for stages in answer.equal_stages():
        _print_stages(answer, stages)
    if answer.justified:
        print_heading("known differences between the trainer and the simulator")
        print_rows([[why] for why in answer.justified])
    if answer.differences:
        print_heading("unexplained differences: either the trainer or the simulator is wrong")
        print_rows(
            [
                ["stage", "quantity", "trainer", "simulator"],
                *([str(d.stage), d.what, f"{d.program:,}", f"{d.simulated:,}"] for d in answer.differences),
            ],
            right=(2, 3),
        )


def _print_stages(answer: DryRun, stages: list[int]) -> None:
    first = stages[0]
    program, simulated = answer.program[first], answer.simulated[first]
    if answer.job.plan.pp > 1:
        words = f"stage {first}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
        print_heading(f"{words} of {answer.job.plan.pp} (rank {program.rank:,})")
    print_rows(
        [
            ["FLOP per rank and step", "trainer", "simulator"],
            ["matrix products", f"{program.product_flop:,}", f"{simulated.product_flop:,}"],
            ["attention", f"{program.attention_flop:,}", f"{simulated.attention_flop:,}"],
        ],
        right=(1, 2),
    )
    rows = [
        [
            row["collective"],
            row["group"],
            f"{row['group_size']:,}",
            f"{row['calls']:,}",
            f"{row['simulated_calls']:,}",
            f"{row['message_bytes']:,}",
            show(row["calls"] * row["message_bytes"], "bytes"),
            row["dtype"],
        ]
        for row in answer.rows()
        if row["stage"] == first
    ]
    calls = ["calls (trainer)", "calls (simulator)"]
    head = ["collective", "group", "ranks", *calls, "message bytes", "total", "data type"]
    print_rows([head, *rows] if rows else [["no communication"]], right=(2, 3, 4, 5, 6))
