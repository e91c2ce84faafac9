"""Options of ``knee train`` about the learning rate, validation, checkpoints, weights and metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from knee.cli.options.plan_options import option
from knee.cli.options.sections import Word

RATE, STATE, VALID = "Learning rate", "Checkpoints and weights", "Validation and metrics"
FOLDER = click.Path(path_type=Path)
OPTIONS: tuple[Callable[..., Any], ...] = (
    option(
        "--lr-schedule",
        section=RATE,
        type=Word(("constant", "linear", "cosine", "wsd")),
        help="How the learning rate falls after its warm-up. wsd (warm-up, stable, decay) falls linearly at the end; "
        "default: constant.",
    ),
    option(
        "--lr-warmup",
        section=RATE,
        type=int,
        metavar="N",
        help="Number of first steps in which the learning rate rises to --lr; default: 0.",
    ),
    option(
        "--lr-min-frac",
        section=RATE,
        type=float,
        metavar="FRAC",
        help="Learning rate at the end of a schedule, as a share of --lr; default: 0.",
    ),
    option(
        "--lr-decay-frac",
        section=RATE,
        type=float,
        metavar="FRAC",
        help="Share of the steps after the warm-up in which the schedule wsd falls; default: 0.2.",
    ),
    option(
        "--checkpoint-every",
        section=STATE,
        type=int,
        metavar="N",
        help="Save a checkpoint every N steps and after the last one, beside the training; default: 0, which means none"
        ".",
    ),
    option(
        "--keep",
        section=STATE,
        type=int,
        metavar="N",
        help="Number of newest checkpoints to keep; 0 keeps all; default: 2.",
    ),
    option(
        "--resume",
        section=STATE,
        metavar="DIR|auto",
        help="Go on from the newest checkpoint of this run, or from this checkpoint, also under another plan. Its "
        "batch, sequence length, seed, steps, learning rate and checkpoints are then the defaults. auto: from the "
        "newest checkpoint in --out, or from the start if there is none.",
    ),
    option(
        "--weights",
        section=STATE,
        type=FOLDER,
        metavar="DIR",
        help="First weights: a Hugging Face folder with safetensors, or a checkpoint; default: drawn from the seed.",
    ),
    option(
        "--valid-every",
        section=VALID,
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Compute the loss on held-out data every N steps and after the last one; 0 means never.",
    ),
    option(
        "--valid-data",
        section=VALID,
        type=FOLDER,
        metavar="DIR",
        help="Folder of held-out token shards; default: other synthetic tokens, if --data is left out too.",
    ),
    option(
        "--valid-batches",
        section=VALID,
        type=int,
        default=10,
        show_default=True,
        metavar="N",
        help="Number of held-out global batches for one validation loss.",
    ),
    option(
        "--log-to",
        section=VALID,
        type=Word(("tensorboard", "wandb")),
        multiple=True,
        help="Also send the metrics of steps there, if the package is installed. May be repeated. OUT/metrics.jsonl "
        "always has them.",
    ),
    option(
        "--deterministic",
        section="Run",
        is_flag=True,
        help="Use only kernels that give the same losses for the same seed, bit by bit. This is slower on GPUs.",
    ),
)


def train_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All of them, in this order."""
    for add in reversed(OPTIONS):
        command = add(command)
    return command
