"""``knee simulate``: one training step, answered and explained."""

from __future__ import annotations

import json
from typing import Any

import click

from knee.commands.options.job_options import flop_convention, job_options, training, wide
from knee.commands.options.plan_options import plan_options
from knee.commands.options.sections import Sectioned, as_json, options


@click.command("simulate", cls=Sectioned)
@click.argument("model")
@job_options(
    "cluster gpus local_batch global_batch seq_len profile",
    local_batch="Sequences per step divided by the number of GPUs (not by data-parallel ranks); may be a fraction.",
    overrides="Override one value of the model, cluster, profile or plan, for example --set "
    "fabric.nic_bytes_per_s=200Gbit/s. `knee catalog NAME` lists the keys. May be repeated.",
)
@plan_options
@training
@flop_convention
@as_json()
@wide
@options(
    "Output",
    {
        ("--trace FILE", click.Path(dir_okay=False)): "Also write the simulated step as Kineto traces (.json or "
        ".json.gz), one file per pipeline stage.",
        ("--why", bool): "Also print the formulas, constants and sources behind each number.",
    },
)
def command(model: str, as_json: bool, trace: str | None, why: bool, **options: Any) -> None:
    """Simulate one training step of MODEL under a parallel plan.

    MODEL is a name from `knee catalog`, a model's TOML file, a Hugging Face config.json (or the folder that contains
    it), or a complete job as a TOML file:

    \b
        model = "llama2-7b"          # a name, a path or a table, as are cluster and profile
        cluster = "dgx-h100"
        gpus = 256
        local_batch = 2              # or global_batch
        [plan]
        tp = 2

    A job file needs no options. An option on the command line overrides the value in the file.

    Every answer states how far you can trust it: the expected range of the measured throughput, the number of
    published runs behind that range, and how your job differs from them.

    If the plan does not fit in memory, knee prints the full answer, reports how much memory is missing, and exits with
    code 3.
    """
    from knee.commands.simulate.api import simulate
    from knee.commands.simulate.text import print_answer

    answer = simulate(model, **options)
    if trace is not None:
        for written in answer.write_trace(trace):
            click.echo(f"wrote {written}", err=True)
    if as_json:
        click.echo(json.dumps(answer.to_dict(why=why), indent=2, allow_nan=False))
    else:
        print_answer(answer, answer.why() if why else ())
    answer.check_fits()
