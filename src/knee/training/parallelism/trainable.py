"""What the simulator takes and the trainer does not, each with the field, a sentence and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from knee.base.errors import SpecError, argument
from knee.specs.model import Model
from knee.specs.model.decoder import departures
from knee.specs.plan import Plan
from knee.specs.plan_words import simulated_only
from knee.specs.schedules import schedule_of

SPLITS_EXPERTS = (2, 12)
"""Release of torch whose Functions have the ``_input_metadata`` that a split backward asks them for; 2.11 has not."""


def torch_release() -> tuple[int, ...]:
    """(major, minor) of the installed torch, which is not imported for it; of the newest where there is none."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (sys.maxsize,)


class NotTrained(NamedTuple):
    """One reason why a job cannot be trained."""

    field: str
    text: str
    hint: str

    def error(self) -> SpecError:
        """As an error."""
        return SpecError(self.text, hint=self.hint, code="not-trained", field=self.field)


def of_model(model: Model, seq_len: int) -> Iterator[NotTrained]:
    """Parts of models that the trainer lacks."""
    if model.mtp_layers:
        yield NotTrained(
            "model.mtp_layers",
            f"model.mtp_layers of {model.name} is {model.mtp_layers}; the trainer predicts one token",
            f"use {argument('overrides')} model.mtp_layers=0",
        )
    trained = {"experts", "latent_attention", "attention_output_bias"}
    trained |= {"qk_norm"} if model.qk_norm == "head" else set()
    trained |= {"qkv_bias"} if model.latent_attention is None else set()
    trained |= {"mlp_bias"} if model.experts is None else set()
    other = {name: shown for name, shown in departures(model, seq_len).items() if name not in trained}
    if other:
        yield NotTrained(
            f"model.{next(iter(other))}",
            f"{model.name} has {', '.join(other.values())}: the trainer trains Llama decoders (swiglu, rmsnorm, rope, "
            "no windows), also with biases of linear layers, experts, latent attention or norms of heads",
            "simulate it, or train a Llama model of its size",
        )


def of_precision(model: Model, plan: Plan, dtype: str) -> Iterator[NotTrained]:
    """Types of numbers."""
    if plan.precision == "fp4":
        text = "fp4 matrix products can be simulated but not trained"
        yield NotTrained("plan.precision", text, f"use {argument('precision')} fp8 or bf16")
    if plan.precision == "fp8" and (model.experts or model.latent_attention):
        part = "experts" if model.experts else "latent attention"
        text = f"{model.name} has {part}, whose fp8 products can be simulated but not trained"
        yield NotTrained("plan.precision", text, f"use {argument('precision')} bf16")
    if plan.precision == "fp8" and dtype == "fp16":
        text = "fp8 products read and write bf16, not fp16"
        yield NotTrained("dtype", text, f"use {argument('dtype')} bf16")
    if dtype == "fp16" and plan.state_dtype == "bf16":
        text = "fp16 training keeps fp32 parameters"
        yield NotTrained("plan.state_dtype", text, f"use {argument('state_dtype')} fp32")


def of_plan(plan: Plan) -> Iterator[NotTrained]:
    """Techniques of data and context parallelism, and recomputation."""
    if plan.sharding in ("zero1", "zero2"):
        yield NotTrained(
            "plan.sharding",
            f"{plan.sharding} can be simulated but not trained: FSDP2 has no mode with unsharded 16-bit parameters",
            f"use {argument('sharding')} fsdp_no_reshard, which shards gradients too, or ddp",
        )
    if plan.sharding == "fsdp_no_reshard" and plan.dp_replicate > 1 and plan.dp_shard * plan.cp == 1:
        text = "nothing is sharded: dp_shard and cp are 1"
        yield NotTrained("plan.sharding", text, f"use {argument('sharding')} ddp")
    if plan.recompute == "ops":
        text = "recompute ops can be simulated but not trained"
        yield NotTrained("plan.recompute", text, f"use {argument('recompute')} blocks or full")
    for name, words in simulated_only(plan):
        text = f"{words} can be simulated but not trained"
        yield NotTrained(f"plan.{name}", text, f"leave {argument(name)} out")
    if plan.cp > 1 and plan.cp_method == "ring":
        text = "ring attention can be simulated but not trained"
        yield NotTrained("plan.cp_method", text, f"use {argument('cp_method')} allgather")


def of_pipeline(model: Model, plan: Plan) -> Iterator[NotTrained]:
    """Pipelines."""
    if plan.pp == 1:
        return
    schedule = schedule_of(plan.schedule)
    if not schedule.trained:
        text = f"{schedule.name} can be simulated but not trained: torch's pipelines have one copy of each stage"
        yield NotTrained("plan.schedule", text, f"use {argument('schedule')} zero_bubble or 1f1b")
    splits = schedule.trained and schedule.splits_backward
    if splits and plan.recompute in ("blocks", "full"):
        yield NotTrained(
            "plan.schedule",
            f"{schedule.name} with {argument('recompute')} {plan.recompute} can be simulated but not trained: torch's "
            "split backward would recompute a block once for every weight",
            f"use {argument('schedule')} 1f1b, or {argument('recompute')} attention or none",
        )
    if splits and plan.ep > 1 and torch_release() < SPLITS_EXPERTS:
        text = "this torch cannot split the backward of layers whose tokens go to experts on other ranks"
        hint = f"install torch {'.'.join(map(str, SPLITS_EXPERTS))} or later, or use {argument('schedule')} 1f1b"
        yield NotTrained("plan.schedule", text, hint)
    if model.tied_embeddings:
        yield NotTrained(
            "plan.pp",
            f"{model.name} ties its output projection to its embedding, but a pipeline puts them on different ranks",
            "use pp 1, or an untied model",
        )
