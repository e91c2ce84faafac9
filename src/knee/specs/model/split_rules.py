"""How a plan may split a model, a sequence and a batch, and what is said where it may not.

Simulated jobs, real runs and the search share these rules.
"""

from __future__ import annotations

from dataclasses import fields, replace

from knee.base.errors import SpecError, argument
from knee.specs.legality import expert_ranks, fills_ranks
from knee.specs.model.decoder import Model
from knee.specs.plan import ROUTED, Plan, RecomputeModule
from knee.specs.schedules import ONE_F_ONE_B, schedule_of

# Fields of a plan that only some models have a use for: the routing of experts, and modules that are recomputed.

DEFAULTS = {field.name: field.default for field in fields(Plan)}


def check_routed(model: Model, plan: Plan) -> None:
    """Refuse a routing of a dense model, which has none."""
    given = [name for name in ROUTED if getattr(plan, name) != DEFAULTS[name]]
    if given and model.experts is None:
        text = f"plan.{given[0]} is {str(getattr(plan, given[0])).lower()}, but {model.name} has no experts"
        hint = f"leave {argument(given[0])} out, or use a mixture of experts"
        raise SpecError(text, hint=hint, code="contradiction", field=f"plan.{given[0]}")


def check_modules(model: Model, plan: Plan) -> None:
    """Refuse to recompute modules that the model does not have."""
    for module in plan.recompute_modules:
        if missing := _missing(model, module):
            text = f"plan.recompute_modules has {module}, but {model.name} has {missing}"
            hint = f"leave {module} out of {argument('recompute_modules')}"
            raise SpecError(text, hint=hint, code="contradiction", field="plan.recompute_modules")


def _missing(model: Model, module: RecomputeModule) -> str | None:
    """What the model would need to have this module."""
    experts = model.experts
    if module == "mla_up_proj" and model.latent_attention is None:
        return "no latent attention"
    if module in ("moe", "moe_act", "shared_experts") and experts is None:
        return "no experts"
    if module == "shared_experts" and experts is not None and not experts.shared_ffn:
        return "no shared experts"
    if module == "mlp" and model.expert_layers == model.layers:
        return "experts in every layer and no dense MLP"
    return None


OWN_STAGES = 2
"""Stages beyond the layers: the embedding and the loss may have one each."""


def splits_heads(model: Model, tp: int) -> bool:
    """Whether ranks of a tensor-parallel group have equally many heads, and whole groups of queries or of keys."""
    return model.heads % tp == 0 and (model.kv_heads % tp == 0 or tp % model.kv_heads == 0)


def splits_tokens(seq_len: int, cp: int, tp: int) -> bool:
    """Whether sequence parallelism gives each rank equally many tokens."""
    return (seq_len // cp) % tp == 0


def splits_sequence(seq_len: int, cp: int) -> bool:
    """Whether context parallelism gives each rank two equal blocks, which balances causal attention."""
    return cp == 1 or seq_len % (2 * cp) == 0


def check_fills(plan: Plan, gpus: int, *, unit: str, shown: str) -> None:
    """Refuse a plan for more or fewer GPUs; ``shown`` is their number in the product."""
    if plan.gpus != gpus:
        text = f"the plan fills {plan.gpus} {unit}, not {gpus}: dp_replicate({plan.dp_replicate}) * "
        text += f"dp_shard({plan.dp_shard}) * tp({plan.tp}) * pp({plan.pp}) * cp({plan.cp}) != {shown}"
        hint = f"make the product {gpus}, for example by leaving {argument('dp_shard')} out"
        raise SpecError(text, hint=hint, code="does-not-fill", field="gpus")


def check_divided(model: Model, size: int, what: str, tp: int) -> None:
    """Refuse a part of a model that ``tp`` does not divide."""
    if size % tp:
        text = f"{model.name} has {size} {what}, which tp {tp} does not divide"
        raise SpecError(text, hint=f"use a tp that divides {size}", code="does-not-divide", field="plan.tp")


def check_stages(model: Model, plan: Plan, *, own_stages: int) -> None:
    """Refuse a pipeline of more stages than the model has layers, and ``own_stages`` besides."""
    stages = plan.pp * plan.virtual_stages
    if stages > model.walked_layers + own_stages:
        more = ", or two more if the embedding and the loss count as layers" if own_stages else ""
        text = f"pp({plan.pp}) * virtual_stages({plan.virtual_stages}) = {stages} stages, but {model.name} has "
        text += f"{model.walked_layers} layers"
        hint = f"use at most {model.walked_layers} stages in total{more}"
        raise SpecError(text, hint=hint, code="out-of-range", field="plan.pp")


def check_sequence(seq_len: int, cp: int) -> None:
    """Refuse a sequence that context parallelism cannot split."""
    if not splits_sequence(seq_len, cp):
        text = f"cp {cp} cuts a sequence into {2 * cp} equal blocks, but seq_len is {seq_len}"
        hint = f"use a seq_len that is a multiple of {2 * cp}"
        raise SpecError(text, hint=hint, code="does-not-divide", field="plan.cp")


def check_microbatches(plan: Plan, microbatches: int) -> None:
    """Refuse microbatches that do not fill the groups of virtual stages, or both directions of a pipeline."""
    schedule = schedule_of(plan.schedule)
    if plan.pp == 1 or schedule.takes_microbatches(plan.pp, microbatches):
        return
    if schedule.directions > 1:
        text = f"{schedule.name} needs an even number of microbatches, at least 2 * pp = {2 * plan.pp}; got"
        text = f"{text} {microbatches}"
    else:
        text = f"the {schedule.name} schedule runs microbatches in groups of pp; {microbatches} is not a multiple"
        text = f"{text} of {plan.pp}"
    raise SpecError(
        text,
        hint=f"change {argument('micro_batch')} or the batch, or use {argument('schedule')} {ONE_F_ONE_B.name}",
        code="out-of-range" if schedule.directions > 1 and microbatches % 2 == 0 else "does-not-divide",
        field="plan.pp",
    )


def check_reduce_dtype(plan: Plan, products: str) -> None:
    """Refuse gradients of fp16 products that would be reduced in bf16."""
    if products == "fp16" and plan.reduce_dtype == "bf16":
        text = "fp16 training cannot reduce gradients in bf16"
        hint = f"use {argument('reduce_dtype')} fp32"
        raise SpecError(text, hint=hint, code="contradiction", field="plan.reduce_dtype")


def check_outer_sync(plan: Plan) -> None:
    """Refuse ways to exchange that the plan never uses, and more fragments than steps."""
    for name, default in (("sync_fragments", 1), ("sync_dtype", None)):
        if plan.sync_every == 1 and getattr(plan, name) != default:
            text = f"{name} is {getattr(plan, name)}, but replicas exchange gradients in every step"
            hint = f"give {argument('sync_every')} 2 or more, or leave {argument(name)} out"
            raise SpecError(text, hint=hint, code="contradiction", field=f"plan.{name}")
    if plan.sync_fragments > plan.sync_every:
        text = f"sync_fragments is {plan.sync_fragments:,}, but replicas exchange every {plan.sync_every:,} steps"
        hint = f"use at most one fragment per step: {argument('sync_fragments')} {plan.sync_every}"
        raise SpecError(text, hint=hint, code="contradiction", field="plan.sync_fragments")


def check_searched_exchanges(fixed: Plan, sync_every: int) -> None:
    """Refuse what no plan with replicas could exchange: for searches, whose plans have replicas or not."""
    check_outer_sync(replace(fixed, sharding="ddp", dp_shard=1, dp_replicate=2, sync_every=sync_every))


def check_experts(model: Model, plan: Plan) -> None:
    """Refuse experts that do not divide, and ranks that they do not fill."""
    experts = model.experts
    if experts is None:
        if plan.ep > 1 or plan.etp > 1:
            degree = "ep" if plan.ep > 1 else "etp"
            text = f"{degree} is {getattr(plan, degree)}, but {model.name} has no experts"
            hint = f"leave {argument(degree)} out, or use a mixture of experts"
            raise SpecError(text, hint=hint, code="contradiction", field=f"plan.{degree}")
        return
    if experts.count % plan.ep:
        text = f"{model.name} has {experts.count} experts, which ep {plan.ep} does not divide"
        raise SpecError(text, hint=f"use an ep that divides {experts.count}", code="does-not-divide", field="plan.ep")
    if plan.etp not in (1, plan.tp):
        text = f"etp is {plan.etp}; it must be 1 (whole experts) or the tp of {plan.tp}"
        hint = f"leave {argument('etp')} out, or use {argument('etp')} {plan.tp}"
        raise SpecError(text, hint=hint, code="out-of-range", field="plan.etp")
    if experts.ffn % plan.etp:
        text = f"the experts of {model.name} have {experts.ffn} columns, which etp {plan.etp} does not divide"
        raise SpecError(text, hint=f"use an etp that divides {experts.ffn}", code="does-not-divide", field="plan.etp")
    ranks = expert_ranks(plan.sharding == "ddp", plan.dp_shard, plan.dp_replicate, plan.cp, plan.tp)
    if not fills_ranks(ranks, plan.ep, plan.etp):
        copies = "dp_replicate" if plan.sharding == "ddp" else "dp_shard"
        text = f"ep({plan.ep}) * etp({plan.etp}) does not divide the {ranks} ranks over which experts are laid "
        text += f"({copies} {getattr(plan, copies)} * cp {plan.cp} * tp {plan.tp})"
        hint = f"make ep * etp a divisor of {ranks}"
        raise SpecError(text, hint=hint, code="does-not-divide", field="plan.ep")
    if plan.tp > 1 and not plan.sequence_parallel:
        text = "experts with tensor parallelism need sequence parallelism, which gives each rank its own tokens"
        hint = "leave sequence_parallel on, or use tp 1"
        raise SpecError(text, hint=hint, code="contradiction", field="plan.sequence_parallel")
