"""``knee dryrun``: the trainer itself on fake ranks, without hardware: what each rank computes and sends."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned
from knee.cli.plan_options import option, plan_of, plan_options
from knee.errors import RunFailed

if TYPE_CHECKING:
    from knee.record.issued_messages import StageWork
    from knee.specs import Job
    from knee.specs.trainer_job import TrainJob
    from knee.validation.program_messages import Difference

LOCAL_BATCH = 2.0
"""The paper's."""
PLACEHOLDER = "dgx-h100"
"""A cluster that completes a job where none is named: nothing that is counted depends on it."""


@click.command("dryrun", cls=Sectioned)
@click.argument("model")
@option(
    "--gpus",
    section="What",
    type=int,
    metavar="N",
    help="Ranks in all; as many as the plan's degrees ask for if left out.",
)
@option(
    "--local-batch",
    section="What",
    type=float,
    metavar="B",
    help="Sequences a step over all GPUs, divided by all GPUs; 2 if left out.",
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
    help="Software profile of the simulation beside the trace; `eager` if left out.",
)
@option(
    "--set",
    "sets",
    section="What",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the model or plan, for example --set model.layers=2. May be repeated.",
)
@plan_options
@option("--json", "as_json", section="Output", is_flag=True, help="Print JSON; every key carries its unit.")
def command(
    model: str, gpus: int | None, profile: str | None, sets: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Trace one step of `knee train MODEL` on fake ranks, without any GPU.

    The trainer's own code runs under the plan on tensors that hold nothing. One rank of each pipeline stage is
    traced; ranks of one stage do the same. For each: FLOP of its matrix products and of attention (causal mask
    respected), and every collective with its group, calls, bytes and type.

    \b
        knee dryrun llama2-7b --gpus 2048 --tp 2

    Beside it stands what the simulator has that rank do: the two are equal, but for the differences listed.
    """
    from knee.probe.machine_facts import need_torch
    from knee.validation.program_messages import as_trained, differences, simulated_work

    need_torch("knee dryrun")
    job = _job(model, gpus, profile, sets, options)
    trained = train_job(job)
    simulated = simulated_work(job)
    program = _traced(trained)
    expected = [as_trained(job, work) for work in simulated]
    reasons = list(dict.fromkeys(why for _, whys in expected for why in whys))
    found = [d for a, (b, _) in zip(program, expected, strict=True) for d in differences(a, b)]
    if as_json:
        click.echo(json.dumps(_as_data(job, program, simulated, reasons, found), indent=1))
    else:
        _print(job, program, simulated, reasons, found)
    if found:
        raise RunFailed(f"the trainer and the simulator disagree in {len(found)} lines, and no rule says why")


def _job(model: str, gpus: int | None, profile: str | None, sets: tuple[str, ...], options: dict[str, Any]) -> Job:
    from knee.cli.overrides import parse_sets
    from knee.inputs.request import is_job_file, request
    from knee.specs.notes import code_of

    in_file = is_job_file(model)
    plan = plan_of(options)
    sizes = {"gpus": gpus} | {name: options[name] for name in ("global_batch", "local_batch", "seq_len")}
    if not in_file:
        if gpus is None:
            sizes["gpus"] = prod(plan[axis] or 1 for axis in ("tp", "pp", "cp", "dp_shard", "dp_replicate"))
        if sizes["global_batch"] is None and sizes["local_batch"] is None:
            sizes["local_batch"] = LOCAL_BATCH
    asked = request(
        model,
        cluster=None if in_file else PLACEHOLDER,
        profile=profile,
        sizes=sizes,
        plan=plan,
        overrides=parse_sets(sets),
    )
    for sentence in asked.assumptions:
        if code_of(sentence) != "default-profile":
            click.echo(sentence, err=True)
    return asked.job


def train_job(job: Job) -> TrainJob:
    """The same job for the trainer; types as on GPUs."""
    from typing import cast

    from knee.specs.trainer_job import Dtype, TrainJob

    return TrainJob(
        model=job.model,
        plan=job.plan,
        gpus=job.gpus,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=2,
        warmup=0,
        dtype=cast("Dtype", job.plan.precision),
    )


def _traced(job: TrainJob) -> list[StageWork]:
    from knee.train.fake_ranks import trace

    def say(done: int, of: int) -> None:
        click.echo(f"traced {done} of {of} kinds of stages", err=True)

    return trace(job, say if job.plan.pp > 1 else None)


def _as_data(
    job: Job, program: list[StageWork], simulated: list[StageWork], reasons: list[str], found: list[Difference]
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "model": job.model.name,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": asdict(job.plan),
        "stages": [{**a.as_json(), "simulated": b.as_json()} for a, b in zip(program, simulated, strict=True)],
        "justified": reasons,
        "differences": [asdict(d) for d in found],
    }


def _print(
    job: Job, program: list[StageWork], simulated: list[StageWork], reasons: list[str], found: list[Difference]
) -> None:
    from knee.cli.render.table import print_heading, print_rows

    print_heading(
        f"{job.model.name} on {job.gpus:,} fake ranks, one step of {job.global_batch:,} sequences of "
        f"{job.seq_len:,} tokens"
    )
    for same in _alike(program):
        _print_stage(program[same[0]], simulated[same[0]], same, job.plan.pp)
    if reasons:
        print_heading("where the trainer differs from the simulator, and why")
        print_rows([[why] for why in reasons])
    if found:
        print_heading("differences without a reason: the trainer or the simulator is wrong")
        print_rows(
            [
                ["stage", "what", "program", "simulator"],
                *([str(d.stage), d.what, f"{d.program:,}", f"{d.simulated:,}"] for d in found),
            ],
            right=(2, 3),
        )


def _alike(program: list[StageWork]) -> list[list[int]]:
    """Stages that do the same, together."""
    groups: dict[str, list[int]] = {}
    for work in program:
        key = repr((work.product_flop, work.attention_flop, sorted(work.collectives.items())))
        groups.setdefault(key, []).append(work.stage)
    return list(groups.values())


def _print_stage(work: StageWork, simulated: StageWork, same: list[int], stages: int) -> None:
    from knee.cli.render.table import print_heading, print_rows
    from knee.units import show

    if stages > 1:
        words = f"stage {same[0]}" if len(same) == 1 else f"stages {', '.join(map(str, same))}"
        print_heading(f"{words} of {stages} (rank {work.rank:,})")
    print_rows(
        [
            ["FLOP", "program", "simulator"],
            ["matrix products", f"{work.product_flop:,}", f"{simulated.product_flop:,}"],
            ["attention", f"{work.attention_flop:,}", f"{simulated.attention_flop:,}"],
        ],
        right=(1, 2),
    )
    rows = [["collective", "group", "ranks", "calls", "simulator", "message bytes", "in all", "type"]]
    for c in dict.fromkeys((*work.collectives, *simulated.collectives)):
        calls = work.collectives.get(c, 0)
        rows.append(
            [
                c.collective,
                c.group,
                f"{c.group_size:,}",
                f"{calls:,}",
                f"{simulated.collectives.get(c, 0):,}",
                f"{c.message_bytes:,}",
                show(calls * c.message_bytes, "bytes"),
                c.dtype,
            ]
        )
    print_rows(rows if len(rows) > 1 else [["no communication"]], right=(2, 3, 4, 5, 6))
