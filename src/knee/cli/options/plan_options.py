"""The options of a plan, and how options are listed under headings: the same for every command that takes a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from knee.cli.options.sections import Option, Word
from knee.specs.plan import CP_METHODS, PRECISIONS, RECOMPUTES, REDUCE_DTYPES, SCHEDULES, SHARDINGS, STATE_DTYPES

PLAN = (
    "tp",
    "pp",
    "cp",
    "dp_shard",
    "dp_replicate",
    "sharding",
    "schedule",
    "virtual_stages",
    "micro_batch",
    "recompute",
    "recompute_frac",
    "precision",
    "prefetch",
    "reduce_dtype",
    "state_dtype",
    "sync_every",
    "cp_method",
    "sequence_parallel",
    "tp_overlap",
    "placement",
)


def option(*names: str, section: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option under a heading of ``--help``."""
    return click.option(*names, cls=Option, section=section, **settings)


def plan_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's part of a command's options, under the plan's own names."""
    plan = {name: options[name] for name in PLAN}
    plan["tp_overlap_frac"] = plan.pop("tp_overlap")
    return plan


_of_plan = partial(option, section="Plan")
OPTIONS = (
    _of_plan("--tp", type=int, metavar="N", help="Tensor-parallel degree."),
    _of_plan("--pp", type=int, metavar="N", help="Pipeline stages."),
    _of_plan("--cp", type=int, metavar="N", help="Context-parallel degree."),
    _of_plan(
        "--dp-shard",
        type=int,
        metavar="N",
        help="Data-parallel ranks that share one sharded copy; fills the GPUs if left out.",
    ),
    _of_plan("--dp-replicate", type=int, metavar="N", help="Copies of the sharded group (hsdp, ddp)."),
    _of_plan(
        "--sharding",
        type=Word(SHARDINGS),
        help="What data parallelism shards; "
        "fsdp gathers again in backward, fsdp_no_reshard (the default) keeps the parameters.",
    ),
    _of_plan("--schedule", type=Word(SCHEDULES), help="Pipeline schedule; 1f1b if left out."),
    _of_plan("--virtual-stages", type=int, metavar="N", help="Model chunks per stage (interleaved)."),
    _of_plan(
        "--micro-batch",
        type=int,
        metavar="M",
        help="Sequences per microbatch and data-parallel rank; if left out all of a rank's at once, 1 with a pipeline.",
    ),
    _of_plan(
        "--recompute",
        type=Word(RECOMPUTES),
        help="What backward recomputes instead of keeping it; none if left out. attention: attention alone "
        "(Megatron-LM calls it selective); ops: all but attention and every second matrix product (torchtitan calls it "
        "selective); blocks: a share of the blocks; full: every block.",
    ),
    _of_plan(
        "--recompute-frac",
        type=float,
        metavar="FRAC",
        help="Share of the blocks that --recompute blocks recomputes; 0.5, every second block, if left out.",
    ),
    _of_plan("--precision", type=Word(PRECISIONS), help="Type of the matrix products; bf16 if left out."),
    _of_plan("--prefetch", type=int, metavar="N", help="Layers gathered ahead; 1 if left out."),
    _of_plan("--reduce-dtype", type=Word(REDUCE_DTYPES), help="Type in which gradients are reduced; fp32 if left out."),
    _of_plan(
        "--state-dtype",
        type=Word(STATE_DTYPES),
        help="Type of the parameters and moments that the optimizer updates; fp32 if left out.",
    ),
    _of_plan(
        "--sync-every",
        type=int,
        metavar="H",
        help="Replicas exchange every so many steps (local SGD, DiLoCo), "
        "and the answer is the mean of those; in every step if left out.",
    ),
    _of_plan(
        "--cp-method",
        type=Word(CP_METHODS),
        help="How context parallelism shares keys and values; allgather if left out.",
    ),
    _of_plan(
        "--sequence-parallel/--no-sequence-parallel",
        default=None,
        help="Split norms and residuals along the sequence inside the tensor-parallel group; on if left out.",
    ),
    _of_plan(
        "--tp-overlap",
        metavar="FRAC",
        help="Share of tensor-parallel communication hidden beside GEMMs, 0 to 1; the profile's if left out.",
    ),
    _of_plan(
        "--placement",
        metavar="AXES",
        help="Mesh axes from neighbouring GPUs outwards; tp-cp-dp_shard-dp_replicate-pp if left out.",
    ),
)


def plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a plan, under their heading."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function
