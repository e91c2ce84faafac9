"""``knee plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned, Word
from knee.cli.plan_options import option
from knee.cli.progress import Patience
from knee.errors import DoesNotFit, InputError
from knee.specs.plan import PRECISIONS, RECOMPUTES, REDUCE_DTYPES, SCHEDULES, SHARDINGS, STATE_DTYPES

if TYPE_CHECKING:
    from knee.search.best import Found
    from knee.specs.table import PlanTable

OBJECTIVES = ("tokens_per_s", "tokens_per_j", "usd_per_mtoken")
TOOLS = ("knee", "torchtitan", "megatron")
TRIED = 500
"""Plans of the ranking that are tried where a tool cannot run the recommended one."""


@click.command("plan", cls=Sectioned)
@click.argument("model")
@option(
    "--cluster",
    section="What",
    required=True,
    metavar="NAME",
    help="Cluster: a name of `knee catalog`, or a TOML file.",
)
@option("--gpus", section="What", type=int, required=True, metavar="N", help="GPUs in all.")
@option("--global-batch", section="What", type=int, metavar="G", help="Sequences a step over all GPUs.")
@option("--local-batch", section="What", type=float, metavar="B", help="The same divided by all GPUs.")
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
    help="Change one value of the model, cluster or profile. May be repeated.",
)
@option(
    "--precision",
    section="What",
    type=Word(PRECISIONS),
    default="bf16",
    show_default=True,
    help="Type of the matrix products.",
)
@option(
    "--reduce-dtype",
    section="What",
    type=Word(REDUCE_DTYPES),
    default="fp32",
    show_default=True,
    help="Type in which gradients are reduced.",
)
@option(
    "--state-dtype",
    section="What",
    type=Word(STATE_DTYPES),
    default="fp32",
    show_default=True,
    help="Type of the parameters and moments that the optimizer updates.",
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
@option("--top", section="Output", type=int, default=10, show_default=True, metavar="K", help="Plans to list.")
@option(
    "--export",
    "export_to",
    section="Output",
    type=Word(TOOLS),
    help="Print the recommended plan for this tool instead (a knee job file, or launch flags), or the first of the "
    "ranking that it can run.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
def command(model: str, as_json: bool, top: int, export_to: str | None, **options: Any) -> None:
    """Find the best parallel plan of MODEL on so many GPUs: every one is considered.

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
    if top < 1:
        raise InputError(f"--top is {top}; it must be at least 1")
    if export_to is not None and as_json:
        raise InputError("--export and --json are two forms of one answer", hint="give one of them")
    found = _search(model, options)
    from knee.search.robust import robust

    drawn = robust(found)
    if export_to is not None:
        click.echo(_exported(found, drawn.recommended, export_to))
        return
    from knee.cli.plan_answer import Answer

    answer = Answer.of(found, drawn, top)
    if as_json:
        click.echo(json.dumps(answer.as_json(), indent=1, allow_nan=False))
    else:
        answer.print()


def _exported(found: Found, recommended: int, to: str) -> str:
    """The recommended plan for a tool, or the first of the ranking that it can run."""
    from knee.search.export import export

    refused: InputError | None = None
    for row in dict.fromkeys((recommended, *range(min(TRIED, len(found))))):
        try:
            text = export(found.job(row), to).rstrip()
        except InputError as error:
            refused = refused or error
            continue
        if refused is not None:
            slower = 1 - float(found.scores[row] / found.scores[recommended])
            click.echo(
                f"{refused.message}; this is plan {row + 1}, {abs(slower):.1%} behind by {found.objective}", err=True
            )
        return text
    assert refused is not None
    raise refused


def _search(model: str, options: dict[str, Any]) -> Found:
    from dataclasses import replace

    from knee.api.request import named_model
    from knee.cli.overrides import parse_sets
    from knee.search.best import search
    from knee.search.closest import no_plan, nothing_fits
    from knee.search.space import Space, whole_table
    from knee.specs.load import DEFAULT_PROFILE, load_cluster, load_profile, split_overrides
    from knee.specs.plan import Plan

    for_model, for_cluster, for_profile, for_plan = split_overrides(parse_sets(options["sets"]))
    if for_plan:
        raise InputError(f"--set {for_plan[0][0]}: plans are what is searched", hint="limit them with --only")
    shape = named_model(model, for_model).spec
    cluster = load_cluster(options["cluster"], for_cluster).spec
    profile = load_profile(options["profile"] or DEFAULT_PROFILE, for_profile).spec
    gpus = options["gpus"]
    seq_len = options["seq_len"] if options["seq_len"] is not None else min(4096, shape.max_seq_len)
    space = Space(
        model=shape,
        gpus=gpus,
        global_batch=_batch(options, gpus),
        seq_len=seq_len,
        fixed=Plan(
            precision=options["precision"], reduce_dtype=options["reduce_dtype"], state_dtype=options["state_dtype"]
        ),
        sync_every=options["sync_every"],
        max_tp=options["max_tp"],
        max_pp=options["max_pp"],
        max_cp=options["max_cp"],
        shardings=options["sharding"],
        schedules=options["schedule"],
        recomputes=options["recompute"],
        micro_batches=options["micro_batch"],
        selective=profile.attention == "unfused",
    )
    found = search(
        space, cluster, profile, objective=options["objective"], only=options["only"], progress=Patience().of()
    )
    if len(found):
        return found
    if found.plans:
        words, hint = nothing_fits(found)
        raise DoesNotFit(words, hint=hint)
    whole = replace(
        space, max_tp=None, max_pp=None, max_cp=None, shardings=(), schedules=(), recomputes=(), micro_batches=()
    )
    table = whole_table(whole)
    if len(table):
        raise DoesNotFit(f"the limits leave none of {len(table):,} plans", hint=_values(table, options["only"]))
    words, hint = no_plan(whole)
    raise DoesNotFit(words, hint=hint)


def _batch(options: dict[str, Any], gpus: int) -> int:
    both = options["global_batch"], options["local_batch"]
    if both == (None, None):
        raise InputError(
            "missing: --global-batch (or --local-batch)",
            hint="for example knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512",
        )
    if None not in both:
        raise InputError("--global-batch and --local-batch are both given", hint="give one of them")
    if both[0] is not None:
        return int(both[0])
    batch = both[1] * gpus
    if not math.isfinite(batch) or batch != int(batch) or batch < 1:
        raise InputError(f"--local-batch {both[1]:g} times {gpus} GPUs is {batch:g} sequences, not a whole number")
    return int(batch)


def _values(table: PlanTable, only: str | None) -> str:
    """What the columns of a condition can be."""
    import numpy as np

    from knee.search.only import NUMBERS, WORDS

    said_words = set(re.findall(r"[a-z_]+", only or ""))
    named = [name for name in (*NUMBERS, *WORDS) if name in said_words]
    said = []
    for name in named or ["tp", "pp", "cp", "sharding"]:
        values = np.unique(getattr(table, name)).tolist()
        words = [WORDS[name][v] if name in WORDS else f"{int(v):,}" for v in values]
        said.append(f"{name} is one of {', '.join(words[:16])}{', ...' if len(words) > 16 else ''}")
    return "; ".join(said)
