"""``knee simulate``: one training step, answered and explained."""

from __future__ import annotations

import json
from typing import Any

import click

from knee.cli.options import Sectioned
from knee.cli.plan_options import option, plan_of, plan_options


@click.command("simulate", cls=Sectioned)
@click.argument("model")
@option("--cluster", section="What", metavar="NAME", help="Cluster: a name of `knee catalog`, or a TOML file.")
@option("--gpus", section="What", type=int, metavar="N", help="GPUs in all.")
@option(
    "--local-batch",
    section="What",
    type=float,
    metavar="B",
    help="Sequences a step over all GPUs, divided by all GPUs (not per data-parallel rank); may be a fraction.",
)
@option("--global-batch", section="What", type=int, metavar="G", help="Sequences a step over all GPUs.")
@option(
    "--seq-len",
    section="What",
    type=int,
    metavar="S",
    help="Tokens a sequence; 4,096 or the model's longest if left out.",
)
@option(
    "--profile",
    section="What",
    metavar="NAME",
    help="Software profile: a name of `knee catalog`, or a TOML file; `eager` if left out.",
)
@option(
    "--set",
    "sets",
    section="What",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the model, cluster, profile or plan, for example "
    "--set fabric.nic_bytes_per_s=200Gbit/s. `knee catalog NAME` lists the keys. May be repeated.",
)
@plan_options
@option(
    "--flop-convention",
    section="Output",
    metavar="NAME",
    default="palm",
    show_default=True,
    help="How the model's FLOP are counted for the MFU: palm, 6n, causal or torchtitan.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
@option(
    "--trace",
    section="Output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also write the step as Kineto traces (.json or .json.gz), one per pipeline stage.",
)
@option("--why", section="Output", is_flag=True, help="Also print the formulas, constants and sources behind it.")
def command(
    model: str,
    cluster: str | None,
    profile: str | None,
    sets: tuple[str, ...],
    flop_convention: str,
    as_json: bool,
    trace: str | None,
    why: bool,
    **options: Any,
) -> None:
    """Simulate one training step of MODEL under a parallel plan.

    MODEL is a name of `knee catalog`, a model's TOML file, a Hugging Face config.json or the folder that holds
    one, or a whole job as a TOML file:

    \b
        model = "llama2-7b"          # a name, a path or a table; so are cluster and profile
        cluster = "dgx-h100"
        gpus = 256
        local_batch = 2              # or global_batch
        [plan]
        tp = 2

    A job file needs no option; an option given besides replaces or completes what the file says.

    Every answer says how far it can be trusted: how many published runs are like it, in what range the truth lay in
    four of five (validated) or nine of ten of them, and what of it no published run had.

    A plan that does not fit in memory is answered in full, says what it needs, and exits with 3.
    """
    from knee.api.simulate import simulate
    from knee.cli.overrides import parse_sets
    from knee.cli.render.measurement import print_answer

    sizes = {name: options[name] for name in ("gpus", "global_batch", "local_batch", "seq_len")}
    answer = simulate(
        model,
        cluster=cluster,
        profile=profile,
        overrides=parse_sets(sets),
        flop_convention=flop_convention,
        **sizes,
        **plan_of(options),
    )
    if trace is not None:
        for written in answer.write_trace(trace):
            click.echo(f"wrote {written}", err=True)
    if as_json:
        data = answer.to_dict() | ({"why": answer.why_dicts()} if why else {})
        click.echo(json.dumps(data, indent=2, allow_nan=False))
    else:
        print_answer(answer, answer.why() if why else ())
    answer.check_fits()
