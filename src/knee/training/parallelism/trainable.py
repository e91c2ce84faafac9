"""What the simulator takes and the trainer does not: a table of rules for a ``TrainJob``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from knee.specs.legality import PlanRule, check
from knee.specs.model.decoder import departures
from knee.specs.plan import Plan
from knee.specs.plan_words import only_simulated
from knee.specs.schedules import schedule_of

SPLITS_EXPERTS = (2, 12)
"""Release of torch whose Functions have the ``_input_metadata`` that a split backward asks them for; 2.11 has not."""


def torch_release() -> tuple[int, ...]:
    """(major, minor) of the installed torch, which is not imported for it; of the newest where there is none."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (sys.maxsize,)


def _untrained(job: Any) -> dict[str, str]:
    """Fields of the model that the trainer's decoder does not have, and what is said of each."""
    model = job.model
    trained = {"experts", "latent_attention", "attention_output_bias"}
    trained |= {"qk_norm"} if model.qk_norm == "head" else set()
    trained |= {"qkv_bias"} if model.latent_attention is None else set()
    trained |= {"mlp_bias"} if model.experts is None else set()
    return {name: shown for name, shown in departures(model, job.seq_len).items() if name not in trained}


def not_trained(field: str, breaks: Callable[[Any], Any], text: str | Callable[[Any], str], hint: str) -> PlanRule:
    """One thing that the trainer does not do."""
    return PlanRule(field, breaks, text, hint, "not-trained")


def model_rule(job: Any) -> PlanRule:
    """The rule of the model's decoder, which names the first field that breaks it."""
    other = _untrained(job)
    return not_trained(
        f"model.{next(iter(other), '')}",
        lambda _: other,
        lambda job: (
            f"{job.model.name} has {', '.join(other.values())}: the trainer trains Llama decoders (swiglu, "
            "rmsnorm, rope, no windows), also with biases of linear layers, experts, latent attention or norms of heads"
        ),
        "simulate it, or train a Llama model of its size",
    )


MTP = not_trained(
    "model.mtp_layers",
    lambda job: job.model.mtp_layers,
    "model.mtp_layers of {model.name} is {model.mtp_layers}; the trainer predicts one token",
    "use {--overrides} model.mtp_layers=0",
)
RULES = (
    # types of numbers
    not_trained(
        "plan.precision",
        lambda job: job.plan.precision == "fp4",
        "fp4 matrix products can be simulated but not trained",
        "use {--precision} fp8 or bf16",
    ),
    not_trained(
        "plan.precision",
        lambda job: job.plan.precision == "fp8" and (job.model.experts or job.model.latent_attention),
        lambda job: (
            f"{job.model.name} has {'experts' if job.model.experts else 'latent attention'}, whose fp8 products "
            "can be simulated but not trained"
        ),
        "use {--precision} bf16",
    ),
    not_trained(
        "dtype",
        lambda job: job.plan.precision == "fp8" and job.dtype == "fp16",
        "fp8 products read and write bf16, not fp16",
        "use {--dtype} bf16",
    ),
    not_trained(
        "plan.state_dtype",
        lambda job: job.dtype == "fp16" and job.plan.state_dtype == "bf16",
        "fp16 training keeps fp32 parameters",
        "use {--state-dtype} fp32",
    ),
    # data and context parallelism, recomputation
    not_trained(
        "plan.sharding",
        lambda job: job.plan.sharding in ("zero1", "zero2"),
        "{plan.sharding} can be simulated but not trained: FSDP2 has no mode with unsharded 16-bit parameters",
        "use {--sharding} fsdp_no_reshard, which shards gradients too, or ddp",
    ),
    not_trained(
        "plan.sharding",
        lambda job: (
            job.plan.sharding == "fsdp_no_reshard"
            and job.plan.dp_replicate > 1
            and job.plan.dp_shard * job.plan.cp == 1
        ),
        "nothing is sharded: dp_shard and cp are 1",
        "use {--sharding} ddp",
    ),
    not_trained(
        "plan.recompute",
        lambda job: job.plan.recompute == "ops",
        "recompute ops can be simulated but not trained",
        "use {--recompute} blocks or full",
    ),
    *only_simulated("{words} can be simulated but not trained", "leave {argument} out", code="not-trained"),
    not_trained(
        "plan.cp_method",
        lambda job: job.plan.cp > 1 and job.plan.cp_method == "ring",
        "ring attention can be simulated but not trained",
        "use {--cp-method} allgather",
    ),
    # pipelines
    not_trained(
        "plan.schedule",
        lambda job: job.plan.pp > 1 and not schedule_of(job.plan.schedule).trained,
        "{plan.schedule} can be simulated but not trained: torch's pipelines have one copy of each stage",
        "use {--schedule} zero_bubble or 1f1b",
    ),
    not_trained(
        "plan.schedule",
        lambda job: _splits_backward(job.plan) and job.plan.recompute in ("blocks", "full"),
        "{plan.schedule} with {--recompute} {plan.recompute} can be simulated but not trained: torch's split backward "
        "would recompute a block once for every weight",
        "use {--schedule} 1f1b, or {--recompute} attention or none",
    ),
    not_trained(
        "plan.schedule",
        lambda job: _splits_backward(job.plan) and job.plan.ep > 1 and torch_release() < SPLITS_EXPERTS,
        "this torch cannot split the backward of layers whose tokens go to experts on other ranks",
        f"install torch {'.'.join(map(str, SPLITS_EXPERTS))} or later, or use {{--schedule}} 1f1b",
    ),
    not_trained(
        "plan.pp",
        lambda job: job.plan.pp > 1 and job.model.tied_embeddings,
        "{model.name} ties its output projection to its embedding, but a pipeline puts them on different ranks",
        "use pp 1, or an untied model",
    ),
    not_trained(
        "attention",
        lambda job: job.device == "cpu" and job.attention in ("flash", "cudnn"),
        "attention {attention} is a kernel for GPUs",
        "use {--attention} auto on a CPU",
    ),
)
EXPERT_RULES = (
    not_trained(
        "plan.etp",
        lambda job: job.plan.ep * job.plan.etp % job.plan.tp,
        "ep {plan.ep} * etp {plan.etp} is not a multiple of tp {plan.tp}: tensor-parallel ranks would hold copies of "
        "the same experts",
        "use {--etp} {plan.tp}, or an ep that is a multiple of {plan.tp}",
    ),
)


def _splits_backward(plan: Plan) -> bool:
    return plan.pp > 1 and schedule_of(plan.schedule).splits_backward


def check_trained(job: Any) -> None:
    """Refuse a job that the trainer cannot run."""
    check((MTP, model_rule(job), *RULES), job)
