"""``knee plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

from typing import Any

import click

from knee.base.errors import InputError
from knee.commands.options.job_options import job_options, training, wide
from knee.commands.options.output import check_targets, print_result, write_page
from knee.commands.options.plan_options import knob_options, space_limits
from knee.commands.options.sections import Sectioned, Word, as_json, option, options
from knee.show.terminal.progress_bar import Patience
from knee.specs.choices import OBJECTIVES
from knee.specs.plan import KEPT
from knee.training.export.formats import TARGETS


@click.command("plan", cls=Sectioned)
@click.argument("model")
@job_options(
    "cluster gpus global_batch local_batch seq_len profile",
    overrides="Override one value of the model, cluster or profile. May be repeated.",
)
@knob_options(
    KEPT,
    section="Job",
    job_file=True,
    defaults={
        "collectives": "flat, and both where the job crosses a slow tier (oversubscribed, or farther than a hop)"
    },
)
@space_limits
@option(
    "--objective",
    Word(OBJECTIVES),
    "What to optimize: throughput, tokens per joule, or dollars per million tokens.",
    default="tokens_per_s",
    section="Output",
)
@training
@options(
    "Output",
    {
        ("--top K", int, 10): "Number of plans to list.",
        ("--export export_to", Word(tuple(TARGETS))): "Print only the recommended plan in the format of this tool: a "
        "knee job file, or launch flags. If the tool cannot run that plan, the best-ranked plan that it can run is "
        "printed.",
        ("--html FILE", str): "Also write an HTML page with the ranking.",
    },
)
@as_json()
@wide
def command(model: str, as_json: bool, top: int, export_to: str | None, html: str | None, **options: Any) -> None:
    """Find the best parallel plan for MODEL on a given number of GPUs. The search is exhaustive.

    MODEL is the same as for `knee simulate`. If it is a job file, the search replaces the plan in the file.

    The search covers every combination of dp_replicate x dp_shard x tp x pp x cp with every sharding, schedule,
    microbatch size and sequence parallelism that the model and the batch allow; for a mixture of experts, with every
    ep, and with experts that are whole or split like the rest of the model. It covers them without recomputation, with
    full recomputation, and with the smallest share of recomputed blocks that fits. Other policies are searched if
    --recompute names them. Virtual stages are tried if they divide the model evenly.

    Plans are simulated in the order of a lower bound of their step time,
    until no other plan that fits in memory can be among the best. The result is that of simulating every plan.

    \b
        knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512

    The constants of the simulator are uncertain. The ranking is therefore repeated with constants drawn at random from
    their uncertainty. The recommended plan is the one that is within 2% of the best in the largest number of draws. A
    sensitivity table shows what 25% more of each hardware resource would bring.

    If no plan fits, knee shows the plan that comes closest and exits with code 3.
    """
    if export_to is not None and as_json:
        raise InputError(
            "--export and --json are two forms of one answer", hint="give one of them", code="contradiction"
        )
    check_targets(html=html)
    from knee.commands.plan.api import plan
    from knee.commands.plan.text import print_exported, print_search

    answer = plan(model, top=top, progress=Patience(), **options)
    if export_to is not None:
        print_exported(answer, export_to)
    else:
        print_result(answer, as_json, print_search, indent=1)
    write_page(answer, html)
