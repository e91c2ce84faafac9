"""The options of a plan, and how options are listed under headings: the same for every command that takes a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from knee.commands.options.sections import Option, Word
from knee.specs.plan import (
    COLLECTIVES,
    CP_METHODS,
    DISPATCHERS,
    FP8_RECIPES,
    PRECISIONS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    REDUCE_DTYPES,
    ROUTINGS,
    SHARDINGS,
    STATE_DTYPES,
    SYNC_DTYPES,
)
from knee.specs.schedules import SCHEDULES

PLAN = (
    "tp",
    "pp",
    "cp",
    "ep",
    "etp",
    "dp_shard",
    "dp_replicate",
    "sharding",
    "schedule",
    "virtual_stages",
    "micro_batch",
    "recompute",
    "recompute_frac",
    "precision",
    "fp8_recipe",
    "prefetch",
    "reduce_dtype",
    "state_dtype",
    "sync_every",
    "sync_fragments",
    "sync_dtype",
    "collectives",
    "cp_method",
    "sequence_parallel",
    "tp_overlap",
    "placement",
    "dispatcher",
    "ep_overlap",
    "routing",
    "imbalance",
    "capacity_factor",
    "recompute_modules",
)


def option(*names: str, section: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option under a heading of ``--help``."""
    return click.option(*names, cls=Option, section=section, **settings)


def plan_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's part of a command's options, under the plan's own names."""
    plan = {name: options[name] for name in PLAN}
    plan["tp_overlap_frac"] = plan.pop("tp_overlap")
    plan["recompute_modules"] = modules_of(plan["recompute_modules"])
    return plan


def modules_of(text: str | None) -> tuple[str, ...] | None:
    """The value of --recompute-modules."""
    return None if text is None else tuple(text.replace(",", "+").split("+"))


def _routed_options(section: str) -> tuple[Callable[..., Any], ...]:
    """How tokens reach experts."""
    return (
        option(
            "--dispatcher",
            type=Word(DISPATCHERS),
            help="What sends tokens to their experts and back; default: alltoall, which is NCCL's all-to-all.",
            section=section,
        ),
        option(
            "--ep-overlap/--no-ep-overlap",
            default=None,
            help="Send tokens to experts while another microbatch computes; default: off.",
            section=section,
        ),
        option(
            "--routing",
            type=Word(ROUTINGS),
            help="How tokens spread over experts. balanced (the default): every expert gets equally many, as "
            "benchmarks force it. dropless: as measured in training on Qwen3-235B. power_law: by a power law with this "
            "exponent.",
            section=section,
        ),
        option(
            "--imbalance",
            type=float,
            metavar="FACTOR",
            help="Tokens of the busiest expert-parallel rank, relative to the mean; default: what --routing means.",
            section=section,
        ),
        option(
            "--capacity-factor",
            type=float,
            metavar="FACTOR",
            help="Maximum number of tokens per expert, relative to the mean; further tokens are dropped; default: no "
            "limit.",
            section=section,
        ),
        option(
            "--recompute-modules",
            metavar="NAMES",
            help="Parts of a block that --recompute modules recomputes, joined by + or commas: "
            f"{', '.join(RECOMPUTE_MODULES)}.",
            section=section,
        ),
    )


_of_plan = partial(option, section="Plan")
OPTIONS = (
    _of_plan("--tp", type=int, metavar="N", help="Tensor-parallel degree."),
    _of_plan("--pp", type=int, metavar="N", help="Number of pipeline stages."),
    _of_plan("--cp", type=int, metavar="N", help="Context-parallel degree."),
    _of_plan(
        "--ep",
        type=int,
        metavar="N",
        help="Expert-parallel degree: number of ranks that hold different experts. They are ranks of --dp-shard, --cp "
        "and --tp; default: 1.",
    ),
    _of_plan("--etp", type=int, metavar="N", help="Tensor-parallel degree of each expert: 1 (the default) or --tp."),
    _of_plan(
        "--dp-shard",
        type=int,
        metavar="N",
        help="Number of data-parallel ranks that one copy of the model is sharded over; default: all GPUs that the "
        "other degrees leave.",
    ),
    _of_plan("--dp-replicate", type=int, metavar="N", help="Number of copies of the sharded group (for hsdp and ddp)."),
    _of_plan(
        "--sharding",
        type=Word(SHARDINGS),
        help="What data parallelism shards. fsdp gathers the parameters again in the backward pass; fsdp_no_reshard "
        "(the default) keeps them after the forward pass.",
    ),
    _of_plan("--schedule", type=Word(SCHEDULES), help="Pipeline schedule; default: 1f1b."),
    _of_plan(
        "--virtual-stages",
        type=int,
        metavar="N",
        help="Model chunks per pipeline stage (for the interleaved schedule).",
    ),
    _of_plan(
        "--micro-batch",
        type=int,
        metavar="M",
        help="Sequences per microbatch on each data-parallel rank; default: all sequences of the rank in one "
        "microbatch, or 1 with a pipeline.",
    ),
    _of_plan(
        "--recompute",
        type=Word(RECOMPUTES),
        help="Which activations the backward pass recomputes instead of storing them; default: none. attention: only "
        "attention (Megatron-LM calls this selective). ops: everything except attention and every second matrix "
        "product (torchtitan calls this selective). blocks: the share of blocks given by --recompute-frac. full: "
        "every block.",
    ),
    _of_plan(
        "--recompute-frac",
        type=float,
        metavar="FRAC",
        help="Share of the blocks that --recompute blocks recomputes; default: 0.5, which is every second block.",
    ),
    _of_plan("--precision", type=Word(PRECISIONS), help="Data type of the matrix products; default: bf16."),
    _of_plan(
        "--fp8-recipe",
        type=Word(FP8_RECIPES),
        help="How --precision fp8 scales its operands; default: tensorwise. tensorwise: one scale for each tensor. "
        "rowwise: one scale for each row that a matrix product sums over.",
    ),
    _of_plan(
        "--prefetch",
        type=int,
        metavar="N",
        help="Number of layers whose parameters FSDP gathers in advance; default: 1.",
    ),
    _of_plan("--reduce-dtype", type=Word(REDUCE_DTYPES), help="Data type of the gradient reduction; default: fp32."),
    _of_plan(
        "--state-dtype",
        type=Word(STATE_DTYPES),
        help="Data type of the parameters and moments in the optimizer; default: fp32.",
    ),
    _of_plan(
        "--sync-every",
        type=int,
        metavar="H",
        help="Number of steps between synchronizations of the replicas (local SGD, DiLoCo); the answer is the mean "
        "over these steps; default: 1.",
    ),
    _of_plan(
        "--sync-fragments",
        type=int,
        metavar="P",
        help="Parts of the model that replicas exchange one after the other beside compute (Streaming DiLoCo), with "
        "--sync-every; default: 1, which blocks.",
    ),
    _of_plan(
        "--sync-dtype",
        type=Word(SYNC_DTYPES),
        help="Data type of the exchange with --sync-every; default: that of the gradient reduction.",
    ),
    _of_plan(
        "--collectives",
        type=Word(COLLECTIVES),
        help="flat: NCCL's algorithms. hierarchical: level by level through the node and the tiers of the network, "
        "if that is faster; default: flat.",
    ),
    _of_plan(
        "--cp-method",
        type=Word(CP_METHODS),
        help="How context parallelism exchanges keys and values; default: allgather.",
    ),
    _of_plan(
        "--sequence-parallel/--no-sequence-parallel",
        default=None,
        help="Shard norms and residuals along the sequence within the tensor-parallel group; default: on.",
    ),
    _of_plan(
        "--tp-overlap",
        metavar="FRAC",
        help="Share of tensor-parallel communication that overlaps with GEMMs, from 0 to 1; default: the profile's "
        "value.",
    ),
    _of_plan(
        "--placement",
        metavar="AXES",
        help="Order of the mesh axes, from neighbouring GPUs outwards; default: tp-cp-dp_shard-dp_replicate-pp.",
    ),
    *_routed_options("Plan"),
)


def plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a plan, under their heading."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function


def routed(section: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say how tokens reach experts, under a heading."""

    def add_all(function: Callable[..., Any]) -> Callable[..., Any]:
        for add in reversed(_routed_options(section)):
            function = add(function)
        return function

    return add_all
