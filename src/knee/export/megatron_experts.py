"""Experts, and the part of a plan that concerns them, as options of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from knee.export.command_line import LaunchCommand, cannot, routing_note
from knee.specs.job import Job
from knee.specs.model.experts import Experts

TOOL = "megatron"
NEAREST = "the nearest plan that it can run has no --ep-overlap"


def add_experts(launch: LaunchCommand, experts: Experts, layers: int) -> None:
    """The experts of a model and their router."""
    launch.option("--num-experts", experts.count)
    launch.option("--moe-router-topk", experts.top_k)
    launch.option("--moe-ffn-hidden-size", experts.ffn)
    if experts.shared_ffn:
        launch.option("--moe-shared-expert-intermediate-size", experts.shared_ffn)
    if experts.shared_gate:
        launch.option("--moe-shared-expert-gate")
    if experts.dense_layers or experts.every > 1:
        launch.option("--moe-layer-freq", layer_pattern(experts, layers))
    launch.option("--moe-router-score-function", experts.scores)
    if experts.top_k == 1 and experts.scores == "softmax":
        launch.option("--moe-router-pre-softmax")
    if experts.groups > 1:
        launch.option("--moe-router-num-groups", experts.groups)
        launch.option("--moe-router-group-topk", experts.top_groups)
    if experts.router_bias and experts.scores == "sigmoid":
        launch.option("--moe-router-enable-expert-bias")
    launch.option("--moe-router-dtype", "fp32")
    launch.option("--moe-grouped-gemm")


def layer_pattern(experts: Experts, layers: int) -> str:
    """Which layers have experts, as the list that Megatron-LM evaluates: 1 with experts, 0 dense."""
    rest = layers - experts.dense_layers
    periods, last = divmod(rest, experts.every)
    parts = [f"[0]*{experts.dense_layers}"] if experts.dense_layers else []
    parts += [f"[1]*{periods}"] if experts.every == 1 else [f"([0]*{experts.every - 1}+[1])*{periods}"]
    parts += [f"[0]*{last}"] if last else []
    return "+".join(parts)


def add_expert_plan(launch: LaunchCommand, job: Job) -> None:
    """How experts are spread over ranks, and how tokens reach them."""
    plan = job.plan
    launch.option("--expert-model-parallel-size", plan.ep)
    # by default it is tp
    launch.option("--expert-tensor-parallel-size", plan.etp)
    flex = plan.ep > 1 and plan.dispatcher != "alltoall"
    launch.option("--moe-token-dispatcher-type", "flex" if flex else "alltoall")
    if flex:
        launch.option("--moe-flex-dispatcher-backend", plan.dispatcher)
        launch.notes.append("older releases have no flex backends, but --moe-enable-deepep")
    if plan.ep_overlap and plan.ep > 1:
        launch.option("--overlap-moe-expert-parallel-comm")
    if plan.capacity_factor is not None:
        launch.option("--moe-expert-capacity-factor", f"{plan.capacity_factor:g}")
    launch.notes.append(routing_note(plan, "--moe-router-force-load-balancing"))
    launch.notes.append(
        "add the options that balance the experts in training: --moe-router-load-balancing-type, --moe-aux-loss-coeff"
    )


def refuse_expert_plan(job: Job) -> None:
    """What Megatron-LM does not do with experts."""
    plan = job.plan
    if plan.sharding == "fsdp_no_reshard" and plan.dp * plan.cp > 1:
        raise cannot(
            TOOL,
            "plan.sharding",
            "its fsdp_no_reshard is not documented to work with experts",
            "the nearest plan that it can run has --sharding zero1",
        )
    if not plan.ep_overlap or plan.ep == 1:
        return
    if plan.sharding in ("fsdp", "hsdp"):
        what = f"it is not documented to overlap the communication of experts with {plan.sharding}"
        raise cannot(TOOL, "plan.ep_overlap", what, f"{NEAREST}, or --sharding zero1")
    if plan.pp > 1 and plan.virtual_stages == 1:
        what = "in a pipeline it overlaps the communication of experts only with virtual stages"
        hint = f"{NEAREST}, or --schedule interleaved with --virtual-stages 2"
        raise cannot(TOOL, "plan.ep_overlap", what, hint)
    if plan.recompute in ("blocks", "full"):
        what = "it does not overlap the communication of experts while it recomputes whole blocks"
        raise cannot(TOOL, "plan.ep_overlap", what, f"{NEAREST}, or --recompute modules")
    if job.model.mtp_layers and (plan.pp == 1 or job.model.mtp_layers > 1):
        what = (
            "it overlaps the communication of experts of a model with multi-token prediction only in a pipeline, and "
            f"only with one such layer, but the plan has pp {plan.pp} and {job.model.name} has {job.model.mtp_layers}"
        )
        raise cannot(TOOL, "plan.ep_overlap", what, NEAREST)
