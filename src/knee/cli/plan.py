"""``knee plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import option
from knee.cli.options.sections import Sectioned, Word
from knee.cli.render.progress import Patience
from knee.errors import InputError
from knee.specs.choices import OBJECTIVES, TARGETS
from knee.specs.plan import PRECISIONS, RECOMPUTES, REDUCE_DTYPES, SCHEDULES, SHARDINGS, STATE_DTYPES


@click.command("plan", cls=Sectioned)
@click.argument("model")
@job_options.cluster()
@job_options.gpus()
@job_options.global_batch()
@job_options.local_batch("The same divided by all GPUs.")
@job_options.seq_len()
@job_options.profile()
@job_options.sets("Change one value of the model, cluster or profile. May be repeated.")
@option(
    "--precision",
    section="What",
    type=Word(PRECISIONS),
    help="Type of the matrix products; bf16, or the job file's, if left out.",
)
@option(
    "--reduce-dtype",
    section="What",
    type=Word(REDUCE_DTYPES),
    help="Type in which gradients are reduced; fp32, or the job file's, if left out.",
)
@option(
    "--state-dtype",
    section="What",
    type=Word(STATE_DTYPES),
    help="Type of the parameters and moments that the optimizer updates; fp32, or the job file's, if left out.",
)
@option(
    "--sync-every",
    section="What",
    type=int,
    default=1,
    show_default=True,
    metavar="H",
    help="Steps between exchanges of the replicas, in plans that have some (local SGD, DiLoCo).",
)
@option("--max-tp", section="Limits", type=int, metavar="N", help="Largest tensor-parallel degree.")
@option("--max-pp", section="Limits", type=int, metavar="N", help="Most pipeline stages.")
@option("--max-cp", section="Limits", type=int, metavar="N", help="Largest context-parallel degree.")
@option("--sharding", section="Limits", type=Word(SHARDINGS), multiple=True, help="Only this; may be repeated.")
@option("--schedule", section="Limits", type=Word(SCHEDULES), multiple=True, help="Only this; may be repeated.")
@option("--recompute", section="Limits", type=Word(RECOMPUTES), multiple=True, help="Only this; may be repeated.")
@option("--micro-batch", section="Limits", type=int, multiple=True, metavar="M", help="Only this; may be repeated.")
@option(
    "--only",
    section="Limits",
    metavar="CONDITION",
    help='Only plans that meet it, for example "pp == 1 and tp <= 8" or "sharding != \'zero1\'".',
)
@option(
    "--objective",
    section="Output",
    type=Word(OBJECTIVES),
    default="tokens_per_s",
    show_default=True,
    help="What is best: speed, tokens per joule, or dollars per million tokens.",
)
@job_options.training
@option("--top", section="Output", type=int, default=10, show_default=True, metavar="K", help="Plans to list.")
@option(
    "--export",
    "export_to",
    section="Output",
    type=Word(TARGETS),
    help="Print the recommended plan for this tool instead (a knee job file, or launch flags), or the first of the "
    "ranking that it can run.",
)
@option("--html", section="Output", metavar="FILE", help="Also write a page with the ranking and its values.")
@job_options.as_json()
@job_options.wide()
def command(model: str, as_json: bool, top: int, export_to: str | None, html: str | None, **options: Any) -> None:
    """Find the best parallel plan of MODEL on so many GPUs: every one is considered.

    MODEL is what `knee simulate` takes; of a job file the plan is searched anew.

    All splits into dp_replicate x dp_shard x tp x pp x cp, with every sharding, schedule, micro-batch, sequence
    parallelism and recomputation that the model and the batch allow, and virtual stages that cut the model evenly.
    Plans that do not fit in memory are counted by what fills it; of the others a bound shows which cannot come near the
    best, and the rest is simulated.

    \b
        knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512

    The ranking is drawn anew many times from the spread of what is fitted: the recommended plan is the one that is
    within 2% of the best most often. Below it stands what a quarter more of each part of the hardware would bring.

    Exit code 3: no plan fits; the answer then says what is closest.
    """
    if export_to is not None and as_json:
        raise InputError(
            "--export and --json are two forms of one answer", hint="give one of them", code="contradiction"
        )
    if html is not None:
        from knee.cli.options.budget_options import check_files

        check_files(None, html)
    from knee.api.plan import plan
    from knee.cli.overrides import parse_sets
    from knee.cli.render.plan import print_exported, print_search

    overrides = parse_sets(options.pop("sets"))
    answer = plan(model, top=top, overrides=overrides, progress=Patience(), **options)
    if export_to is not None:
        print_exported(answer, export_to)
    elif as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
    else:
        print_search(answer)
    if html is not None:
        answer.write_page(html, command=shlex.join(["knee", *sys.argv[1:]]))
        click.echo(f"wrote {html}", err=True)
