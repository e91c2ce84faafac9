"""A job as a command of Megatron-LM's pretrain_gpt.py: the model's shape, and the plan."""

from __future__ import annotations

from itertools import groupby

from knee.specs.job import Job
from knee.specs.legality import PlanRule
from knee.specs.model import Model
from knee.specs.model.decoder import SLIDING, Experts, departures
from knee.specs.plan import AXES
from knee.specs.schedules import PIPELINE_SCHEDULES
from knee.training.export.command_line import (
    NEAREST,
    ONLY_SIMULATED,
    PREFETCHES,
    LaunchCommand,
    add_torchrun,
    cannot,
    layers_per_chunk,
    placed,
    refuse,
    refuse_processors,
    routing_note,
    tp_overlap_frac,
)

# Experts, and the part of a plan that concerns them, as options of Megatron-LM's pretrain_gpt.py.

TOOL = "megatron"


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


def _overlaps(job: Job) -> bool:
    return job.plan.ep_overlap and job.plan.ep > 1


NO_OVERLAP = f"{NEAREST} no --ep-overlap"
EXPERT_RULES = (
    PlanRule(
        "plan.sharding",
        lambda job: job.plan.sharding == "fsdp_no_reshard" and job.plan.dp * job.plan.cp > 1,
        "its fsdp_no_reshard is not documented to work with experts",
        f"{NEAREST} --sharding zero1",
    ),
    PlanRule(
        "plan.ep_overlap",
        lambda job: _overlaps(job) and job.plan.sharding in ("fsdp", "hsdp"),
        "it is not documented to overlap the communication of experts with {plan.sharding}",
        f"{NO_OVERLAP}, or --sharding zero1",
    ),
    PlanRule(
        "plan.ep_overlap",
        lambda job: _overlaps(job) and job.plan.pp > 1 and job.plan.virtual_stages == 1,
        "in a pipeline it overlaps the communication of experts only with virtual stages",
        f"{NO_OVERLAP}, or --schedule interleaved with --virtual-stages 2",
    ),
    PlanRule(
        "plan.ep_overlap",
        lambda job: _overlaps(job) and job.plan.recompute in ("blocks", "full"),
        "it does not overlap the communication of experts while it recomputes whole blocks",
        f"{NO_OVERLAP}, or --recompute modules",
    ),
    PlanRule(
        "plan.ep_overlap",
        lambda job: _overlaps(job) and job.model.mtp_layers and (job.plan.pp == 1 or job.model.mtp_layers > 1),
        "it overlaps the communication of experts of a model with multi-token prediction only in a pipeline, and only "
        "with one such layer, but the plan has pp {plan.pp} and {model.name} has {model.mtp_layers}",
        NO_OVERLAP,
    ),
)
"""What Megatron-LM does not do with experts."""


# The shape of a model as options of Megatron-LM's pretrain_gpt.py.

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times tp."""
HINT = "simulate it with knee; no option of pretrain_gpt.py describes it"


def refuse_model(job: Job) -> None:
    """Parts of a model for which no option was found."""
    model = job.model
    if model.positions == "alibi":
        raise cannot(
            TOOL, "model.positions", f"{model.name} uses ALiBi positions, which it does not support", "export to knee"
        )
    if model.positions == "rope" and model.rope_base != int(model.rope_base):
        raise cannot(
            TOOL,
            "model.rope_base",
            f"--rotary-base must be a whole number, but {model.name} has {model.rope_base:g}",
            f"the nearest model has --set model.rope_base={model.rope_base:.0f}",
        )
    if model.window_kind == "chunked":
        raise cannot(TOOL, "model.window_kind", f"{model.name} has chunked attention, for which it has no option", HINT)
    every_bias = _every_bias(model)
    runs = {
        "mlp": model.mlp != "geglu",
        "norm": True,
        "positions": True,
        "biases": True,
        "qkv_bias": True,
        "attention_output_bias": every_bias,
        "mlp_bias": every_bias,
        "rope_frac": True,
        "qk_norm": model.qk_norm == "head",
        "window": _full_every(model) is not None,
        "attention_sinks": True,
        "experts": True,
        "latent_attention": True,
        "mtp_layers": True,
    }
    for name, shown in departures(model, job.seq_len).items():
        if not runs.get(name):
            raise cannot(TOOL, f"model.{name}", f"{model.name} has {shown}, for which it has no option", HINT)
    experts = model.experts
    if experts is not None and experts.router_bias and experts.scores == "softmax" and not every_bias:
        raise cannot(
            TOOL,
            "model.experts.router_bias",
            f"{model.name} has a router with a bias, which it has only with sigmoid scores, or if all linear layers "
            "have biases",
            HINT,
        )


def add_model(launch: LaunchCommand, job: Job) -> None:
    """The options that describe the model."""
    model = job.model
    launch.option("--num-layers", model.layers)
    launch.option("--hidden-size", model.hidden)
    launch.option("--ffn-hidden-size", model.ffn)
    _add_attention(launch, job)
    if model.mlp != "gelu":
        launch.option({"swiglu": "--swiglu", "relu2": "--squared-relu"}[model.mlp])
    launch.option("--normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm])
    launch.option("--position-embedding-type", {"rope": "rope", "learned": "learned_absolute"}[model.positions])
    if model.positions == "rope":
        launch.option("--rotary-base", int(model.rope_base))
        if model.rope_frac != 1:
            launch.option("--rotary-percent", model.rope_frac)
    launch.option("--max-position-embeddings", max(model.max_seq_len, job.seq_len))
    if not model.tied_embeddings:
        launch.option("--untie-embeddings-and-output-weights")
    if not _every_bias(model):
        launch.option("--disable-bias-linear")
        if model.qkv_bias:
            launch.option("--add-qkv-bias")
    if model.experts is not None:
        add_experts(launch, model.experts, model.layers)
    if model.mtp_layers:
        launch.option("--mtp-num-layers", model.mtp_layers)
    # Megatron drops out a tenth by default
    launch.option("--attention-dropout", 0.0)
    launch.option("--hidden-dropout", 0.0)
    multiple = VOCAB_MULTIPLE * job.plan.tp
    padded = -(-model.vocab // multiple) * multiple
    words = f", padded to {padded:,}" if padded != model.vocab else ""
    launch.notes.append(f"Megatron takes the vocabulary from the tokenizer; knee assumed {model.vocab:,} tokens{words}")


def _every_bias(model: Model) -> bool:
    """Whether all linear layers of a block have biases, the router's included, as without --disable-bias-linear."""
    by_place = model.qkv_bias and model.attention_output_bias and model.mlp_bias
    router = model.experts is None or model.experts.router_bias
    return model.biases or (by_place and router)


def _full_every(model: Model) -> int | None:
    """One layer of so many has full attention, after those with the window; 0: none, None: another pattern."""
    pattern = model.layer_pattern
    if model.sliding_layers == model.layers:
        return 0
    return len(pattern) if pattern == SLIDING * (len(pattern) - 1) + "f" else None


def _add_attention(launch: LaunchCommand, job: Job) -> None:
    model, latent = job.model, job.model.latent_attention
    launch.option("--num-attention-heads", model.heads)
    if latent is not None:
        launch.option("--multi-latent-attention")
        if latent.q_rank:
            launch.option("--q-lora-rank", latent.q_rank)
        launch.option("--kv-lora-rank", latent.kv_rank)
        launch.option("--qk-head-dim", latent.nope_size)
        launch.option("--qk-pos-emb-head-dim", latent.rope_size)
        launch.option("--v-head-dim", latent.value_size)
        launch.option("--kv-channels", latent.value_size)
    elif model.head_dim * model.heads != model.hidden:
        launch.option("--kv-channels", model.head_dim)
    if model.kv_heads != model.heads:
        launch.option("--group-query-attention")
        launch.option("--num-query-groups", model.kv_heads)
    # with latent attention these are the norms of its narrow vectors
    if model.qk_norm == "head" or latent is not None:
        launch.option("--qk-layernorm")
    if model.slides(job.seq_len):
        # tokens before the query's own, and after it
        launch.option("--window-size", f"{model.window - 1},0")
        if every := _full_every(model):
            launch.option("--window-attn-skip-freq", every)
    if model.attention_sinks:
        launch.option("--softmax-type", "learnable")


PP_BEFORE_DP = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
CP_TYPES = {"allgather": "all_gather", "ring": "p2p"}


def megatron_command(job: Job) -> str:
    """The script; refused where Megatron-LM has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    _refuse(job)
    add_torchrun(launch, job)
    launch.lines.append("pretrain_gpt.py")
    add_model(launch, job)
    _add_batch(launch, job)
    _add_precision(launch, job)
    _add_degrees(launch, job)
    _add_pipeline(launch, job)
    _add_sharding(launch, job)
    _add_recompute(launch, job)
    launch.lines.append('"$@"')
    launch.notes.append(
        "run this script in a checkout of Megatron-LM, and add the options for tokenizer, data, --train-iters and --lr"
    )
    return launch.text(job, before=_environment(launch, job))


def _is_fsdp(job: Job) -> bool:
    return job.plan.sharding in ("fsdp", "fsdp_no_reshard", "hsdp") and job.plan.dp * job.plan.cp > 1


def _environment(launch: LaunchCommand, job: Job) -> str:
    """Hopper and before need one queue to the device for TP and CP; FSDP needs several."""
    plan = job.plan
    if _is_fsdp(job):
        if plan.tp > 1 or plan.cp > 1:
            launch.notes.append(
                "Megatron advises against FSDP with tensor or context parallelism: TP and CP need "
                "CUDA_DEVICE_MAX_CONNECTIONS=1, but FSDP needs more connections"
            )
        return "unset CUDA_DEVICE_MAX_CONNECTIONS\n"
    needs_one = (plan.tp > 1 or plan.cp > 1) and job.cluster.gpu.arch in ("sm70", "sm80", "sm90")
    return "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" if needs_one else ""


ITS_SCHEDULES = [schedule.name for schedule in PIPELINE_SCHEDULES if schedule.megatron]
ITS_ORDERS = f"{'-'.join(AXES)} or {'-'.join(PP_BEFORE_DP)}"
RULES = (
    *ONLY_SIMULATED,
    PlanRule(
        "plan.sharding",
        lambda job: job.plan.sharding == "zero2",
        "its distributed optimizer does not shard gradients before the last microbatch",
        f"{NEAREST} --sharding zero1",
    ),
    PlanRule(
        "plan.schedule",
        lambda job: job.plan.pp > 1 and job.plan.schedule not in ITS_SCHEDULES,
        f"its schedules are {' and '.join(ITS_SCHEDULES)}, but the plan uses {{plan.schedule}}",
        f"{NEAREST} --schedule 1f1b",
    ),
    PlanRule(
        "plan.state_dtype",
        lambda job: job.plan.state_dtype != "fp32",
        "its optimizer updates parameters in fp32, but the plan uses {plan.state_dtype}",
        f"{NEAREST} --state-dtype fp32",
    ),
)
"""What no option of Megatron-LM says."""
PLACEMENT = PlanRule(
    "plan.placement",
    lambda job: not placed(job.plan, AXES) and not placed(job.plan, PP_BEFORE_DP),
    lambda job: (
        f"it supports the axis orders {ITS_ORDERS} (innermost first), but the plan has {'-'.join(job.plan.placement)}"
    ),
    f"{NEAREST} --placement {'-'.join(AXES)}",
)
FSDP_RULES = (
    PlanRule(
        "plan.pp",
        lambda job: job.plan.pp > 1,
        "neither of its FSDP modes is documented to work with a pipeline, but the plan has {plan.sharding} with pp "
        "{plan.pp}",
        f"{NEAREST} --sharding zero1",
    ),
    PREFETCHES,
)
NO_RESHARD_RULES = (
    PlanRule(
        "plan.dp_replicate",
        lambda job: job.plan.dp_replicate > 1,
        "its fsdp_no_reshard does not support replicas",
        f"{NEAREST} --sharding hsdp",
    ),
    PlanRule(
        "plan.reduce_dtype",
        lambda job: job.plan.reduce_dtype != "bf16" or job.plan.precision == "fp16",
        "its fsdp_no_reshard reduces gradients in bf16, but the plan reduces them in {plan.reduce_dtype} and "
        "multiplies matrices in {plan.precision}",
        "the nearest plans that it can run have --reduce-dtype bf16, or --sharding zero1",
    ),
    PlanRule(
        "model.tied_embeddings",
        lambda job: job.model.tied_embeddings,
        "its fsdp_no_reshard needs an untied output projection, but that of {model.name} is tied",
        f"{NEAREST} --sharding zero1",
    ),
)
"""Keeping gathered parameters is an option of torch's FSDP2 alone."""


def _refuse(job: Job) -> None:
    """Refuse what no option of Megatron-LM says."""
    refuse(TOOL, RULES, job)
    refuse_model(job)
    if job.model.experts is not None:
        refuse(TOOL, EXPERT_RULES, job)
    refuse(TOOL, (PLACEMENT,), job)
    if _is_fsdp(job):
        refuse(TOOL, FSDP_RULES, job)
        if job.plan.sharding == "fsdp_no_reshard":
            refuse(TOOL, NO_RESHARD_RULES, job)


def _add_batch(launch: LaunchCommand, job: Job) -> None:
    launch.option("--seq-length", job.seq_len)
    launch.option("--micro-batch-size", job.plan.micro_batch)
    launch.option("--global-batch-size", job.global_batch)
    launch.notes.append(
        f"a data-parallel rank runs {job.microbatches} microbatches of {job.plan.micro_batch} a step; "
        "knee's --local-batch is the global batch divided by all GPUs"
    )


def _add_precision(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.precision == "fp16":
        launch.option("--fp16")
        launch.option("--accumulate-allreduce-grads-in-fp32")
        return
    launch.option("--bf16")
    if plan.precision == "fp8":
        if plan.fp8_recipe == "rowwise":
            raise cannot(
                TOOL,
                "plan.fp8_recipe",
                "it has no fp8 recipe with a scale for each row",
                "the nearest plan that it can run has --fp8-recipe tensorwise",
            )
        launch.option("--fp8-format", "hybrid")
        launch.option("--fp8-recipe", plan.fp8_recipe)
    if plan.precision == "fp4":
        _add_fp4(launch, job)
    if plan.reduce_dtype == "bf16":
        launch.option("--grad-reduce-in-bf16")
        launch.notes.append("Megatron also sums gradients over microbatches in bf16, while knee assumes fp32 sums")
    elif not _is_fsdp(job):
        launch.option("--accumulate-allreduce-grads-in-fp32")


def _add_fp4(launch: LaunchCommand, job: Job) -> None:
    """NVFP4; of the layers that stay in bf16 a fifth are the first ones, as in arXiv 2509.25149."""
    launch.option("--fp4-format", "e2m1")
    launch.option("--fp4-recipe", "nvfp4")
    kept = round(job.profile.bf16_layers_frac * job.model.layers)
    if kept:
        launch.option("--first-last-layers-bf16")
        launch.option("--num-layers-at-start-in-bf16", kept // 5)
        launch.option("--num-layers-at-end-in-bf16", kept - kept // 5)
    launch.notes.append(
        "fp4 uses Transformer Engine's NVFP4, which needs a Blackwell GPU; parameters are gathered in bf16"
    )


def _add_degrees(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    launch.option("--tensor-model-parallel-size", plan.tp)
    if plan.tp > 1 and plan.sequence_parallel:
        launch.option("--sequence-parallel")
    if plan.tp > 1 and tp_overlap_frac(job) > 0:
        if plan.sequence_parallel:
            launch.option("--tp-comm-overlap")
        else:
            launch.notes.append(
                "knee overlaps part of the TP communication; Megatron does so only with sequence parallelism"
            )
    launch.option("--context-parallel-size", plan.cp)
    if plan.cp > 1:
        launch.option("--cp-comm-type", CP_TYPES[plan.cp_method])
    launch.option("--pipeline-model-parallel-size", plan.pp)
    if not placed(plan, AXES):
        launch.option("--use-tp-pp-dp-mapping")
    launch.notes.append(f"data parallelism uses the remaining GPUs: {plan.dp} ranks")
    if job.model.experts is not None:
        add_expert_plan(launch, job)


def _add_pipeline(launch: LaunchCommand, job: Job) -> None:
    """Stages as knee has them: even, with the embedding and the loss counted as layers, or spelled out."""
    plan = job.plan
    if plan.pp == 1:
        return
    layers = layers_per_chunk(job)
    ends_less = (layers[0], *(layers[0] + 1 for _ in layers[2:]), layers[0])
    # without a layout, layers of multi-token prediction would come on top of the last stage's own
    if (len(set(layers)) > 1 and layers != ends_less) or job.model.mtp_layers:
        launch.option("--pipeline-model-parallel-layout", _layout(layers, job.model.mtp_layers))
        return
    if plan.virtual_stages > 1:
        launch.option("--num-virtual-stages-per-pipeline-rank", plan.virtual_stages)
    if len(set(layers)) > 1:
        launch.option("--account-for-embedding-in-pipeline-split")
        launch.option("--account-for-loss-in-pipeline-split")


def _layout(layers: tuple[int, ...], mtp_layers: int = 0) -> str:
    """Stages in Megatron's own notation: E embedding, t layer, m layer of multi-token prediction, L loss."""
    stages: list[str] = []
    further = mtp_layers
    for n in reversed(layers):
        of_mtp = min(n, further)
        further -= of_mtp
        stages.insert(0, _letters("t", n - of_mtp) + _letters("m", of_mtp))
    middle = [(stage, len(list(run))) for stage, run in groupby(stages[1:-1])]
    between = "".join(f"({stage}|)*{n}," if n > 1 else f"{stage}|" for stage, n in middle)
    return f"E{stages[0]}|{between}{stages[-1]}L"


def _letters(letter: str, n: int) -> str:
    return f"{letter}*{n}" if n else ""


def _add_sharding(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.dp * plan.cp == 1:
        return
    if plan.sharding == "fsdp_no_reshard":
        launch.option("--use-torch-fsdp2")
        launch.option("--torch-fsdp2-no-reshard-after-forward")
        launch.option("--no-gradient-accumulation-fusion")
        return
    launch.option("--overlap-grad-reduce")
    if plan.sharding == "ddp":
        return
    launch.option("--use-distributed-optimizer")
    if plan.dp_replicate > 1:
        launch.option("--num-distributed-optimizer-instances", plan.dp_replicate)
    if plan.sharding == "zero1":
        if job.profile.gather_overlap:
            launch.option("--overlap-param-gather")
        return
    launch.option("--overlap-param-gather")
    launch.option("--use-megatron-fsdp")
    launch.option("--data-parallel-sharding-strategy", "optim_grads_params")
    launch.option("--ckpt-format", "fsdp_dtensor")
    if plan.reduce_dtype == "fp32":
        launch.option("--megatron-fsdp-main-grads-dtype", "fp32")
        launch.option("--megatron-fsdp-grad-comm-dtype", "fp32")


def _add_recompute(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.recompute == "none":
        return
    if plan.recompute == "ops":
        raise cannot(
            TOOL,
            "plan.recompute",
            "it cannot recompute every second matrix product",
            "the nearest plans that it can run have --recompute attention, blocks or full",
        )
    if plan.recompute in ("attention", "modules"):
        launch.option("--recompute-granularity", "selective")
        if plan.recompute_modules:
            launch.option("--recompute-modules", plan.recompute_modules)
        return
    launch.option("--recompute-granularity", "full")
    if plan.recompute_frac == 1:
        launch.option("--recompute-method", "uniform")
        launch.option("--recompute-num-layers", 1)
        return
    layers = layers_per_chunk(job)
    again = plan.recompute_frac * layers[0]
    if len(set(layers)) > 1 or abs(again - round(again)) > 1e-9:
        raise cannot(
            TOOL,
            "plan.recompute_frac",
            "it recomputes the same whole number of layers on every stage, but the plan recomputes "
            f"a share of {plan.recompute_frac:g} of {'-'.join(map(str, sorted(set(layers))))} layers",
            "the nearest plan that it can run has --recompute full",
        )
    launch.option("--recompute-method", "block")
    launch.option("--recompute-num-layers", round(again))
