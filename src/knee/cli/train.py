"""``knee train``: a real run of a plan on this machine or under torchrun, measured as the simulator's answers are."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from knee.cli.options import job_options
from knee.cli.options.plan_options import PLAN, option, plan_of, plan_options
from knee.cli.options.sections import Sectioned, Word
from knee.cli.options.train_options import train_options
from knee.signals import BY_SIGNAL
from knee.specs.choices import DEVICES
from knee.specs.defaults import LEARNING_RATE, TIMEOUT_S, TRACE_STEPS


@click.command("train", cls=Sectioned)
@click.argument("model")
@option(
    "--nproc",
    section="Run",
    type=int,
    metavar="N",
    help="Number of processes to start on this machine, one per GPU; default: as many as the plan needs. Do not use it "
    "under torchrun, which starts the processes itself.",
)
@option(
    "--device",
    section="Run",
    type=Word(DEVICES),
    help="Device to train on; default: the GPUs if there are any, else the CPU.",
)
@option(
    "--steps",
    section="Run",
    type=int,
    metavar="N",
    help="Total number of optimizer steps; default: 60 (as in the paper), or 30 on a CPU.",
)
@option(
    "--warmup",
    section="Run",
    type=int,
    metavar="N",
    help="Number of first steps that are not measured; default: 10, or one sixth of --steps if that is below 60.",
)
@option(
    "--trace-steps",
    section="Run",
    type=int,
    default=TRACE_STEPS,
    show_default=True,
    metavar="N",
    help="Number of steps to profile after the measured steps; 0 means none.",
)
@option(
    "--dtype",
    section="Run",
    type=Word(("fp32", "bf16", "fp16")),
    help="Data type of the matrix products; default: fp32 on a CPU, the plan's precision on GPUs.",
)
@option("--compile", section="Run", is_flag=True, help="Use torch.compile on every block and on the loss.")
@option(
    "--attention",
    section="Run",
    type=Word(("auto", "flash", "cudnn", "math")),
    default="auto",
    show_default=True,
    help="Attention kernels that PyTorch may choose.",
)
@option(
    "--balance-loss",
    section="Run",
    type=float,
    default=0.0,
    show_default=True,
    metavar="COEF",
    help="Coefficient of the auxiliary loss for unequal use of the experts.",
)
@option(
    "--data",
    section="Run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of token shards from `knee data prepare`; default: synthetic tokens.",
)
@option("--seed", section="Run", type=int, help="Random seed of the weights and the data; default: 0.")
@option("--lr", section="Run", type=float, help=f"Highest learning rate; default: {LEARNING_RATE}.")
@option(
    "--timeout",
    "timeout_s",
    section="Run",
    type=float,
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Stop a run that makes no progress for this long.",
)
@option(
    "--out",
    section="Run",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the record, traces and logs; default: runs/MODEL-DATE.",
)
@option("--force", section="Run", is_flag=True, help="Overwrite the record of an earlier run in that folder.")
@option(
    "--job",
    "job_file",
    section="Run",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the job to this file instead of running it. Run it later with `python -m knee.train.worker FILE` on a "
    "machine that has only torch and NumPy.",
)
@train_options
@job_options.local_batch("Sequences per step divided by the number of processes; default: 2.")
@job_options.global_batch("Sequences per step over all processes.")
@job_options.seq_len()
@job_options.cluster("Name of the cluster in the record; default: the catalogue's cluster with this GPU.")
@job_options.profile(
    "Name of the software profile in the record; default: `knee` (`knee-compiled` with --compile), or `eager` and "
    "`compiled` on a CPU."
)
@job_options.sets("Override one value of the model or plan, for example --set model.layers=2. May be repeated.")
@plan_options
@job_options.flop_convention()
@job_options.as_json("Print the record as JSON.")
def command(
    model: str,
    out: Path | None,
    force: bool,
    sets: tuple[str, ...],
    as_json: bool,
    job_file: Path | None,
    **options: Any,
) -> None:
    """Train MODEL on real hardware under a parallel plan, and measure it.

    MODEL and the plan are the same as for `knee simulate`. Only Llama-style decoders can be trained, also with experts
    and latent attention. On one machine, this command starts the processes itself. On several machines, start it with
    torchrun and the same options on each:

    \b
        knee train llama-tiny
        knee train moe-tiny --ep 2
        knee train llama2-7b --nproc 8 --tp 2 --local-batch 2 --out run
        torchrun --nnodes 16 --nproc-per-node 8 ... -m knee train llama2-7b --tp 2 --out run
        knee train llama-tiny --steps 1000 --checkpoint-every 100 --out run
        knee train llama-tiny --nproc 2 --resume run

    The record, OUT/record.json, contains the throughput after the warm-up (tokens of all measured steps divided by
    their time), the memory, and, if NVML is available, power and energy. A few more steps are profiled to find compute
    time and exposed and overlapped communication. `knee compare` shows the record next to a simulation, and `knee
    calibrate` fits a profile to it. A run that stops early also leaves a record, which states the reason.
    """
    from knee.api.train import train, write_train_job
    from knee.cli.options.overrides import parse_sets
    from knee.cli.render.train import print_record, say_job_file

    say = partial(click.echo, err=True)
    settings = {name: value for name, value in options.items() if name not in PLAN} | plan_of(options)
    settings |= {"overrides": parse_sets(sets), "command": ["knee", *sys.argv[1:]]}
    if job_file is not None:
        written = write_train_job(model, job_file, out=out, say=say, **settings)
        if as_json:
            click.echo(json.dumps(written.to_dict(), indent=2))
        say_job_file(written)
        return
    run = train(model, out=out, force=force, say=say, log=sys.stderr, **settings)
    if as_json and run.record:
        click.echo(json.dumps(run.to_dict(), indent=1, allow_nan=False))
    if run.rank_code is not None:
        sys.exit(run.rank_code)
    if not as_json and run.record["window_steps"]:
        print_record(run.record)
    for warning in run.record["warnings"]:
        say(f"warning: {warning}")
    run.check_written()
    say(f"wrote {run.out}/record.json")
    if run.signal is not None:
        say(f"{run.record['error']} after {run.record['steps_done']} steps")
        sys.exit(BY_SIGNAL + run.signal)
    run.check_done()
