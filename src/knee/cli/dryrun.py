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
@job_options.gpus("Total number of ranks; default: as many as the plan needs.")
@job_options.local_batch("Sequences per step divided by the number of GPUs; default: 2.")
@job_options.global_batch()
@job_options.seq_len()
@job_options.profile("Software profile for the simulation that is compared with the trace; default: `eager`.")
@job_options.sets("Override one value of the model or plan, for example --set model.layers=2. May be repeated.")
@plan_options
@job_options.as_json()
def command(model: str, profile: str | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
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
    from knee.api.dryrun import dryrun
    from knee.cli.options.overrides import parse_sets
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
