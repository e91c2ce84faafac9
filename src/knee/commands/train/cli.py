"""``knee train``: a real run of a plan on this machine or under torchrun, measured as the simulator's answers are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from knee.base.signals import BY_SIGNAL
from knee.base.units import counted, show
from knee.commands.compare.side_by_side import ROWS
from knee.commands.options.job_options import flop_convention, job_options
from knee.commands.options.output import say
from knee.commands.options.plan_options import plan_options
from knee.commands.options.sections import FILE, PATH, Sectioned, Word, as_json, options
from knee.show.terminal.table import print_heading, print_rows
from knee.specs.choices import DEVICES
from knee.specs.defaults import LEARNING_RATE, TIMEOUT_S, TRACE_STEPS


def print_record(record: dict[str, Any]) -> None:
    """The record of a run that has measured steps, as tables."""
    print_heading(
        f"{record['model']} on {record['gpus']:,} x {record['device'].get('name')}, measured over "
        f"{counted(record['window_steps'], 'step')}"
    )
    print_rows([[row.title, row.metric.text(row.value(record))] for row in ROWS if row.value(record) is not None])
    if not record["comm_loads"]:
        return
    print_heading("communication (per process and per step)")
    rows = [["collective", "group", "ranks", "calls", "message size", "kernel time"]]
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


@click.command("train", cls=Sectioned)
@click.argument("model")
@options(
    "Run",
    {
        ("--nproc N", int): "Number of processes to start on this machine, one per GPU; default: as many as the plan "
        "needs. Do not use it under torchrun, which starts the processes itself.",
        ("--device", Word(DEVICES)): "Device to train on; default: the GPUs if there are any, else the CPU.",
        ("--steps N", int): "Total number of optimizer steps; default: 60 (as in the paper), or 30 on a CPU.",
        ("--warmup N", int): "Number of first steps that are not measured; default: 10, or one sixth of --steps if "
        "that is below 60.",
        ("--trace-steps N", int, TRACE_STEPS): "Number of steps to profile after the measured steps; 0 means none.",
        ("--dtype", Word(("fp32", "bf16", "fp16"))): "Data type of the matrix products; default: fp32 on a CPU, the "
        "plan's precision on GPUs.",
        ("--compile", bool): "Use torch.compile on every block and on the loss.",
        ("--attention", Word(("auto", "flash", "cudnn", "math")), "auto"): "Attention kernels that PyTorch may choose.",
        ("--balance-loss COEF", float, 0.0): "Coefficient of the auxiliary loss for unequal use of the experts.",
        ("--data DIR", PATH): "Folder of token shards from `knee data prepare`; default: synthetic tokens.",
        ("--seed", int): "Random seed of the weights and the data; default: 0.",
        ("--lr", float): f"Highest learning rate; default: {LEARNING_RATE}.",
        ("--timeout timeout_s SECONDS", float, TIMEOUT_S): "Stop a run that makes no progress for this long.",
        ("--out DIR", PATH): "Folder for the record, traces and logs; default: runs/MODEL-DATE.",
        ("--force", bool): "Overwrite the record of an earlier run in that folder.",
        ("--job job_file FILE", FILE): "Write the job to this file instead of running it. Run it later with `python "
        "-m knee.training.run.worker FILE` on a machine that has only torch and NumPy.",
        ("--deterministic", bool): "Use only kernels that give the same losses for the same seed, bit by bit. This is "
        "slower on GPUs.",
    },
)
@options(
    "Learning rate",
    {
        ("--lr-schedule", Word(("constant", "linear", "cosine", "wsd"))): "How the learning rate falls after its "
        "warm-up. wsd (warm-up, stable, decay) falls linearly at the end; default: constant.",
        ("--lr-warmup N", int): "Number of first steps in which the learning rate rises to --lr; default: 0.",
        ("--lr-min-frac FRAC", float): "Learning rate at the end of a schedule, as a share of --lr; default: 0.",
        ("--lr-decay-frac FRAC", float): "Share of the steps after the warm-up in which the schedule wsd falls; "
        "default: 0.2.",
    },
)
@options(
    "Checkpoints and weights",
    {
        ("--checkpoint-every N", int): "Save a checkpoint every N steps and after the last one, beside the training; "
        "default: 0, which means none.",
        ("--keep N", int): "Number of newest checkpoints to keep; 0 keeps all; default: 2.",
        ("--resume DIR|auto", str): "Go on from the newest checkpoint of this run, or from this checkpoint, also "
        "under another plan. Its batch, sequence length, seed, steps, learning rate and checkpoints are then the "
        "defaults. auto: from the newest checkpoint in --out, or from the start if there is none.",
        ("--weights DIR", PATH): "First weights: a Hugging Face folder with safetensors, or a checkpoint; default: "
        "drawn from the seed.",
    },
)
@options(
    "Validation and metrics",
    {
        ("--valid-every N", int, 0): "Compute the loss on held-out data every N steps and after the last one; 0 means "
        "never.",
        ("--valid-data DIR", PATH): "Folder of held-out token shards; default: other synthetic tokens, if --data is "
        "left out too.",
        ("--valid-batches N", int, 10): "Number of held-out global batches for one validation loss.",
        ("--log-to", (Word(("tensorboard", "wandb")),)): "Also send the metrics of steps there, if the package is "
        "installed. May be repeated. OUT/metrics.jsonl always has them.",
    },
)
@job_options(
    "local_batch global_batch seq_len",
    local_batch="Sequences per step divided by the number of processes; default: 2.",
    global_batch="Sequences per step over all processes.",
    cluster="Name of the cluster in the record; default: the catalogue's cluster with this GPU.",
    profile="Name of the software profile in the record; default: `knee` (`knee-compiled` with --compile), or "
    "`eager` and `compiled` on a CPU.",
    overrides="Override one value of the model or plan, for example --set model.layers=2. May be repeated.",
)
@plan_options
@flop_convention
@as_json("Print the record as JSON.")
def command(model: str, out: Path | None, force: bool, as_json: bool, job_file: Path | None, **options: Any) -> None:
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
    from knee.commands.train.api import train, write_train_job

    settings = options | {"command": ["knee", *sys.argv[1:]]}
    if job_file is not None:
        written = write_train_job(model, job_file, out=out, say=say, **settings)
        if as_json:
            click.echo(json.dumps(written.to_dict(), indent=2))
        say(f"wrote {written.path}: run it with `{written.command}`; the record is written to {written.job.out}")
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
