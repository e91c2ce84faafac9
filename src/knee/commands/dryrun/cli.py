"""``knee dryrun``: the trainer itself on fake ranks, without hardware: what each rank computes and sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from knee.base.units import show
from knee.commands.options.job_options import job_options
from knee.commands.options.output import print_result, say
from knee.commands.options.plan_options import plan_options
from knee.commands.options.sections import Sectioned, as_json
from knee.show.terminal.table import print_heading, print_rows

if TYPE_CHECKING:
    from knee.commands.dryrun.api import DryRun


# A step on fake ranks on the screen, beside what the simulator has those ranks do.


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


@click.command("dryrun", cls=Sectioned)
@click.argument("model")
@job_options(
    "gpus local_batch global_batch seq_len",
    gpus="Total number of ranks; default: as many as the plan needs.",
    local_batch="Sequences per step divided by the number of GPUs; default: 2.",
    profile="Software profile for the simulation that is compared with the trace; default: `eager`.",
    overrides="Override one value of the model or plan, for example --set model.layers=2. May be repeated.",
)
@plan_options
@as_json()
def command(model: str, as_json: bool, **options: Any) -> None:
    """Trace one step of `knee train MODEL` without any GPU.

    knee runs the trainer's own code under the plan on PyTorch fake tensors, which hold no data. It traces one rank of
    each pipeline stage, because all ranks of a stage do the same work. For each traced rank it lists the FLOP of
    matrix products and attention (with the causal mask) and every collective with its group, calls, bytes and data
    type.

    \b
        knee dryrun llama2-7b --gpus 2048 --tp 2

    The simulator's count for the same rank is shown next to the trace. The two agree except for the differences that
    are listed.
    """
    from knee.commands.dryrun.api import dryrun

    answer = dryrun(model, say=say, progress=say_traced, **options)
    print_result(answer, as_json, print_dryrun, indent=1, allow_nan=True)
    answer.check_equal()
