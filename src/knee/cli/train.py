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
    help="Processes to start here, one a GPU; as many as the plan's degrees ask for if left out. Not under "
    "torchrun, which starts them itself.",
)
@option("--device", section="Run", type=Word(DEVICES), help="The GPUs where there are any, if left out.")
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
    default=TRACE_STEPS,
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
@option("--compile", section="Run", is_flag=True, help="Compile every block and the loss.")
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
@option("--lr", section="Run", type=float, default=LEARNING_RATE, show_default=True, help="Learning rate.")
@option(
    "--timeout",
    "timeout_s",
    section="Run",
    type=float,
    default=TIMEOUT_S,
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
@job_options.local_batch("Sequences a step over all processes, divided by all processes; 2 if left out.")
@job_options.global_batch("Sequences a step over all processes.")
@job_options.seq_len()
@job_options.cluster("Named in the record: the catalogue's cluster with this GPU if left out.")
@job_options.profile(
    "Named in the record: `knee`, or `knee-compiled` with --compile, if left out; `eager` and `compiled` "
    "on a processor."
)
@job_options.sets("Change one value of the model or plan, for example --set model.layers=2. May be repeated.")
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
    from knee.api.train import train, write_train_job
    from knee.cli.overrides import parse_sets
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
