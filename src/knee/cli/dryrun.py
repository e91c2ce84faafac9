"""``knee dryrun``: the trainer itself on fake ranks, without hardware: what each rank computes and sends."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import plan_of, plan_options
from knee.cli.options.sections import Sectioned


@click.command("dryrun", cls=Sectioned)
@click.argument("model")
@job_options.gpus("Ranks in all; as many as the plan's degrees ask for if left out.")
@job_options.local_batch("Sequences a step over all GPUs, divided by all GPUs; 2 if left out.")
@job_options.global_batch()
@job_options.seq_len()
@job_options.profile("Software profile of the simulation beside the trace; `eager` if left out.")
@job_options.sets("Change one value of the model or plan, for example --set model.layers=2. May be repeated.")
@plan_options
@job_options.as_json()
def command(model: str, profile: str | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Trace one step of `knee train MODEL` on fake ranks, without any GPU.

    The trainer's own code runs under the plan on tensors that hold nothing. One rank of each pipeline stage is
    traced; ranks of one stage do the same. For each: FLOP of its matrix products and of attention (causal mask
    respected), and every collective with its group, calls, bytes and type.

    \b
        knee dryrun llama2-7b --gpus 2048 --tp 2

    Beside it stands what the simulator has that rank do: the two are equal, but for the differences listed.
    """
    from knee.api.dryrun import dryrun
    from knee.cli.overrides import parse_sets
    from knee.cli.render.dryrun import print_dryrun, say_traced

    sizes = {name: options[name] for name in ("gpus", "global_batch", "local_batch", "seq_len")}
    answer = dryrun(
        model,
        profile=profile,
        overrides=parse_sets(sets),
        say=partial(click.echo, err=True),
        progress=say_traced,
        **sizes,
        **plan_of(options),
    )
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1))
    else:
        print_dryrun(answer)
    answer.check_equal()
