"""``knee train``: a real run of a plan on this machine or under torchrun, measured as the simulator's answers are."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options import Sectioned, Word
from knee.cli.plan_options import option, plan_of, plan_options
from knee.errors import DoesNotFit, InputError, NotWritten, RunFailed
from knee.signals import BY_SIGNAL

if TYPE_CHECKING:
    from knee.specs import Job
    from knee.specs.trainer_job import TrainJob

DEGREES = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
LOCAL_BATCH = 2.0
"""The paper's."""
READ_BYTES = 1 << 30
"""Shards up to so many bytes are held against their checksums before a run."""
PLACEHOLDER = "cpu"
"""A cluster that completes a job where none is named: no plan depends on it."""


@click.command("train", cls=Sectioned)
@click.argument("model")
@option(
    "--nproc",
    section="Run",
    type=int,
    metavar="N",
    help="Processes to start here, one a GPU; as many as the plan's degrees ask for if left out. Not under "
    "torchrun, which starts them itself.",
)
@option("--device", section="Run", type=Word(("cuda", "cpu")), help="The GPUs where there are any, if left out.")
@option(
    "--steps",
    section="Run",
    type=int,
    metavar="N",
    help="Optimizer steps in all; 60, as in the paper, or 30 on a processor if left out.",
)
@option(
    "--warmup",
    section="Run",
    type=int,
    metavar="N",
    help="First steps that are not measured; 10, or a sixth of fewer than 60, if left out.",
)
@option(
    "--trace-steps",
    section="Run",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="Steps under the profiler after the measured ones; 0 for none.",
)
@option(
    "--dtype",
    section="Run",
    type=Word(("fp32", "bf16", "fp16")),
    help="Type of the matrix products: fp32 on a processor, the plan's precision on GPUs if left out.",
)
@option("--compile", "compiles", section="Run", is_flag=True, help="Compile every block and the loss.")
@option(
    "--attention",
    section="Run",
    type=Word(("auto", "flash", "cudnn", "math")),
    default="auto",
    show_default=True,
    help="Which attention kernels may run.",
)
@option(
    "--data",
    section="Run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Shards of `knee data`; synthetic tokens if left out.",
)
@option("--seed", section="Run", type=int, default=0, show_default=True, help="Of the weights and the data.")
@option("--lr", section="Run", type=float, default=3e-4, show_default=True, help="Learning rate.")
@option(
    "--timeout",
    "timeout_s",
    section="Run",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="A run that does not move for so long is ended.",
)
@option(
    "--out",
    section="Run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the record, traces and logs; runs/MODEL-DATE if left out.",
)
@option("--force", section="Run", is_flag=True, help="Replace the record of an earlier run in that folder.")
@option(
    "--job",
    "job_file",
    section="Run",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the job there instead of running it, for `python -m knee.train.worker FILE` on a machine with "
    "torch and NumPy alone.",
)
@option(
    "--local-batch",
    section="What",
    type=float,
    metavar="B",
    help="Sequences a step over all processes, divided by all processes; 2 if left out.",
)
@option("--global-batch", section="What", type=int, metavar="G", help="Sequences a step over all processes.")
@option(
    "--seq-len",
    section="What",
    type=int,
    metavar="S",
    help="Tokens a sequence; 4,096 or the model's longest if left out.",
)
@option(
    "--cluster",
    section="What",
    metavar="NAME",
    help="Named in the record: the catalogue's cluster with this GPU if left out.",
)
@option(
    "--profile",
    section="What",
    metavar="NAME",
    help="Named in the record: `knee`, or `knee-compiled` with --compile, if left out; `eager` and `compiled` on a "
    "processor.",
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
@option(
    "--flop-convention",
    section="Output",
    metavar="NAME",
    default="palm",
    show_default=True,
    help="How the model's FLOP are counted for the MFU: palm, 6n, causal or torchtitan.",
)
@option("--json", "as_json", section="Output", is_flag=True, help="Print the record as JSON.")
def command(model: str, out: Path | None, force: bool, as_json: bool, job_file: Path | None, **options: Any) -> None:
    """Train MODEL for real under a parallel plan, and measure it.

    MODEL and the plan are what `knee simulate` takes; models are Llama decoders. The processes of one machine are
    started by this command; those of several by torchrun, with the same options on each:

    \b
        knee train llama-tiny
        knee train llama2-7b --nproc 8 --tp 2 --local-batch 2 --out run
        torchrun --nnodes 16 --nproc-per-node 8 ... -m knee train llama2-7b --tp 2 --out run

    The record, OUT/record.json, has the throughput of the steps after the warm-up (all their tokens over all their
    time), memory, power and energy where NVML tells them, and, from traces of a few more steps, compute and
    communication, exposed and overlapped. `knee compare` puts it beside a simulation, `knee calibrate` learns from it.
    A run that ends early leaves a record too, which says why.
    """
    from knee.probe.machine_facts import need_torch

    if job_file is not None:
        job = make(model, options, world=_world(options, under_torchrun=False), elsewhere=True)
        _write_job(job, out, job_file, as_json=as_json)
        return
    need_torch("knee train")
    under_torchrun = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    job = make(model, options, world=_world(options, under_torchrun))
    if under_torchrun and out is None:
        raise InputError("--out is missing: torchrun's ranks need to agree on a folder", hint="give --out")
    out = out or Path("runs") / f"{job.model.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if under_torchrun:
        sys.exit(_work(job, out, force=force, as_json=as_json))
    _run(job, out, force=force, as_json=as_json)


def _world(options: dict[str, Any], under_torchrun: bool) -> int:
    """Processes of the run."""
    nproc = options["nproc"]
    if under_torchrun:
        if nproc is not None:
            raise InputError("--nproc starts processes, and torchrun has started them", hint="leave --nproc out")
        try:
            return int(os.environ["WORLD_SIZE"])
        except ValueError:
            raise InputError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}; it should be a whole number") from None
    if nproc is not None and nproc < 1:
        raise InputError(f"--nproc is {nproc}; it must be at least 1")
    return int(nproc or max(1, prod(options[axis] or 1 for axis in DEGREES)))


def make(model: str, options: dict[str, Any], *, world: int, elsewhere: bool = False) -> TrainJob:
    """The job that the command line describes, resolved once. ``elsewhere``: it need not run on this machine."""
    from knee.cli.overrides import parse_sets
    from knee.inputs.request import is_job_file, request
    from knee.specs.notes import code_of
    from knee.specs.trainer_job import TrainJob
    from knee.sweeps.job_for_trainer import STEPS, warmup_of

    device: Any = (options["device"] or "cuda") if elsewhere else _device(options["device"], world)
    plan = plan_of(options)
    dtype: Any = options["dtype"] or ("fp32" if device == "cpu" else plan["precision"])
    if options["dtype"] is not None and plan["precision"] not in (None, options["dtype"]):
        raise InputError(f"--dtype {options['dtype']} and --precision {plan['precision']} contradict each other")
    if options["dtype"] in ("bf16", "fp16"):
        plan["precision"] = options["dtype"]
    sizes = {"gpus": world} | {name: options[name] for name in ("global_batch", "local_batch", "seq_len")}
    in_file = is_job_file(model)
    if not in_file and sizes["global_batch"] is None and sizes["local_batch"] is None:
        sizes["local_batch"] = LOCAL_BATCH
    cluster = options["cluster"] or (None if in_file else PLACEHOLDER)
    asked = request(
        model,
        cluster=cluster,
        profile=options["profile"],
        sizes=sizes,
        plan=plan,
        overrides=parse_sets(options["sets"]),
    )
    job = asked.job
    dtype = dtype or job.plan.precision
    steps = options["steps"] if options["steps"] is not None else STEPS[device]
    warmup = options["warmup"] if options["warmup"] is not None else warmup_of(steps)
    for sentence in asked.assumptions:
        if code_of(sentence) != "default-profile" and os.environ.get("RANK", "0") == "0":
            click.echo(sentence, err=True)
    data = options["data"]
    if data is not None and not elsewhere:
        _check_data(data, job)
    return TrainJob(
        model=job.model,
        plan=job.plan,
        gpus=world,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        steps=steps,
        warmup=warmup,
        seed=options["seed"],
        device=device,
        dtype=dtype,
        compile=options["compiles"],
        attention=options["attention"],
        lr=options["lr"],
        trace_steps=options["trace_steps"],
        data={} if data is None else {"kind": "shards", "path": str(data.resolve())},
        timeout_s=options["timeout_s"],
        facts=_facts(job, options, named=in_file or options["cluster"] is not None),
    )


def _check_data(data: Path, job: Job) -> None:
    """Refuse shards that are not whole, or not of this model, before any process is started."""
    from knee.datasets.token_batches import Shards, Share

    shards = Shards(data, Share(seq_len=job.seq_len, global_batch=job.global_batch), vocab_size=job.model.vocab)
    if sum(path.stat().st_size for path in data.glob("*.bin")) <= READ_BYTES:
        shards.verify()
    elif os.environ.get("RANK", "0") == "0":
        click.echo(f"the shards' content is not checked; `knee data show {data} --verify` does", err=True)


def _write_job(job: TrainJob, out: Path | None, path: Path, *, as_json: bool) -> None:
    from dataclasses import replace

    from knee.files import write_text

    job = replace(job, out=str(out or f"runs/{job.model.name}"))
    write_text(path, json.dumps(job.as_json(), indent=1) + "\n")
    if as_json:
        click.echo(json.dumps({"job": str(path), "record": job.out}, indent=2))
    start = "python" if job.gpus == 1 else f"torchrun --nproc-per-node {job.gpus}"
    click.echo(
        f"wrote {path}: run it with `{start} -m knee.train.worker {path}`; its record goes to {job.out}", err=True
    )


def _device(wanted: str | None, world: int) -> Any:
    """What was asked for, or the GPUs where torch can use them; torch itself is not imported."""
    from knee.probe.inventory import read_inventory

    found = read_inventory()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(found.gpus) if hidden is None else len([name for name in hidden.split(",") if name.strip()])
    usable = bool(count and found.gpus) and (found.software.torch_build or "").startswith(("CUDA", "ROCm"))
    if wanted == "cuda" and not usable:
        why = found.software.driver.trouble or f"torch {found.software.torch} was built for the {'CPU'} alone"
        raise InputError(
            f"--device cuda: {why}", hint="`knee doctor` says what is there; --device cpu trains on the processor"
        )
    device = wanted or ("cuda" if usable else "cpu")
    if device == "cuda" and "RANK" not in os.environ and world > count:
        raise InputError(
            f"{world} processes need {world} GPUs, and {count} can be seen here",
            hint="start several machines with torchrun, or use --device cpu",
        )
    return device


def _facts(job: Job, options: dict[str, Any], *, named: bool) -> dict[str, Any]:
    """What the record says besides, and what workers need of the catalogue."""
    from knee.specs.load import load_profile
    from knee.sweeps.job_for_trainer import facts_of

    profile = options["profile"]
    if profile is not None:
        load_profile(profile)
    return facts_of(
        job,
        cluster=job.cluster.name if named else None,
        profile=profile,
        convention=options["flop_convention"],
        command=["knee", *sys.argv[1:]],
    )


def _work(job: TrainJob, out: Path, *, force: bool, as_json: bool) -> int:
    """One rank of torchrun's; the first prints the record."""
    from dataclasses import replace

    from knee.train.rank_state import Place
    from knee.train.run_record import RECORD
    from knee.train.start_ranks import clear, prepare, write_job
    from knee.train.worker import work

    place = Place.of_environment()
    prepare(out, force=force)
    job = replace(job, out=str(out.resolve()))
    if place.rank == 0:
        clear(out)
        write_job(out, job)
    code = work(job, place)
    if as_json and place.rank == 0 and (out / RECORD).exists():
        click.echo((out / RECORD).read_text(encoding="utf-8").rstrip())
    return code


def _run(job: TrainJob, out: Path, *, force: bool, as_json: bool) -> None:
    """All ranks, on this machine."""
    from dataclasses import replace

    from knee.train.start_ranks import launch, prepare

    prepare(out, force=force)
    click.echo(
        f"{job.gpus} process{'es' if job.gpus > 1 else ''} on {job.device}, {job.dtype}; logs in {out}/logs", err=True
    )
    record, number = launch(replace(job, out=str(out.resolve())), out)
    if as_json:
        click.echo(json.dumps(record, indent=1, allow_nan=False))
    elif record["window_steps"]:
        _print(record)
    for warning in record["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    if not (out / "record.json").exists():
        raise NotWritten(f"{out}/record.json could not be written", hint="--json prints the record all the same")
    click.echo(f"wrote {out}/record.json", err=True)
    if record["status"] == "oom":
        raise DoesNotFit(
            f"rank {record['failed_rank']}: {record['error']}",
            hint="use a smaller --micro-batch, --recompute full, more tp, or more GPUs",
        )
    if number is not None:
        click.echo(f"{record['error']} after {record['steps_done']} steps", err=True)
        sys.exit(BY_SIGNAL + number)
    if record["status"] != "done":
        raise RunFailed(
            f"the run {record['status']} at step {record['steps_done']}: {record['error']}",
            hint=f"{out}/logs has what the ranks said",
        )


def _print(record: dict[str, Any]) -> None:
    """The record as tables."""
    from knee.cli.render.table import print_heading, print_rows
    from knee.record.side_by_side import ROWS, shown

    print_heading(
        f"{record['model']} on {record['gpus']:,} x {record['device'].get('name')}, measured over "
        f"{record['window_steps']} steps"
    )
    print_rows([[row.title, shown(row, row.value(record))] for row in ROWS if row.value(record) is not None])
    if record["comm_loads"]:
        from knee.units import show

        print_heading("communication (per process and step)")
        rows = [["collective", "group", "ranks", "calls", "message", "time"]]
        rows += [
            [
                load["collective"],
                load["group"],
                str(load["group_size"] or "?"),
                f"{load['calls']:g}",
                show(load["message_bytes"], "bytes") if load["message_bytes"] else "?",
                show(load["load_s"], "s"),
            ]
            for load in record["comm_loads"]
        ]
        print_rows(rows, right=(2, 3, 4, 5))
