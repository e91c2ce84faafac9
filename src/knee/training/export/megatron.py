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
    grouped, sparse = experts.groups > 1, experts.dense_layers or experts.every > 1
    launch.options(
        {
            "--num-experts": experts.count,
            "--moe-router-topk": experts.top_k,
            "--moe-ffn-hidden-size": experts.ffn,
            "--moe-shared-expert-intermediate-size": experts.shared_ffn or None,
            "--moe-shared-expert-gate": experts.shared_gate,
            "--moe-layer-freq": layer_pattern(experts, layers) if sparse else None,
            "--moe-router-score-function": experts.scores,
            "--moe-router-pre-softmax": experts.top_k == 1 and experts.scores == "softmax",
            "--moe-router-num-groups": experts.groups if grouped else None,
            "--moe-router-group-topk": experts.top_groups if grouped else None,
            "--moe-router-enable-expert-bias": experts.router_bias and experts.scores == "sigmoid",
            "--moe-router-dtype": "fp32",
            "--moe-grouped-gemm": True,
        }
    )


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
    plan, factor = job.plan, job.plan.capacity_factor
    flex = plan.ep > 1 and plan.dispatcher != "alltoall"
    launch.options(
        {
            "--expert-model-parallel-size": plan.ep,
            "--expert-tensor-parallel-size": plan.etp,  # by default it is tp
            "--moe-token-dispatcher-type": "flex" if flex else "alltoall",
            "--moe-flex-dispatcher-backend": plan.dispatcher if flex else None,
            "--overlap-moe-expert-parallel-comm": _overlaps(job),
            "--moe-expert-capacity-factor": None if factor is None else f"{factor:g}",
        }
    )
    if flex:
        launch.notes.append("older releases have no flex backends, but --moe-enable-deepep")
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
    always = ("norm", "positions", "biases", "qkv_bias", "rope_frac", "attention_sinks", "experts", "latent_attention")
    runs = dict.fromkeys((*always, "mtp_layers"), True) | {
        "mlp": model.mlp != "geglu",
        "attention_output_bias": every_bias,
        "mlp_bias": every_bias,
        "qk_norm": model.qk_norm == "head",
        "window": _full_every(model) is not None,
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
    model, turns, biased = job.model, job.model.positions == "rope", _every_bias(job.model)
    launch.options({"--num-layers": model.layers, "--hidden-size": model.hidden, "--ffn-hidden-size": model.ffn})
    _add_attention(launch, job)
    launch.options(
        {
            "--swiglu": model.mlp == "swiglu",
            "--squared-relu": model.mlp == "relu2",
            "--normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm],
            "--position-embedding-type": {"rope": "rope", "learned": "learned_absolute"}[model.positions],
            "--rotary-base": int(model.rope_base) if turns else None,
            "--rotary-percent": model.rope_frac if turns and model.rope_frac != 1 else None,
            "--max-position-embeddings": max(model.max_seq_len, job.seq_len),
            "--untie-embeddings-and-output-weights": not model.tied_embeddings,
            "--disable-bias-linear": not biased,
            "--add-qkv-bias": not biased and model.qkv_bias,
        }
    )
    if model.experts is not None:
        add_experts(launch, model.experts, model.layers)
    # Megatron drops out a tenth by default
    dropout = {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}
    launch.options({"--mtp-num-layers": model.mtp_layers or None, **dropout})
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
        launch.options(
            {
                "--multi-latent-attention": True,
                "--q-lora-rank": latent.q_rank or None,
                "--kv-lora-rank": latent.kv_rank,
                "--qk-head-dim": latent.nope_size,
                "--qk-pos-emb-head-dim": latent.rope_size,
                "--v-head-dim": latent.value_size,
                "--kv-channels": latent.value_size,
            }
        )
    elif model.head_dim * model.heads != model.hidden:
        launch.option("--kv-channels", model.head_dim)
    grouped, slides = model.kv_heads != model.heads, model.slides(job.seq_len)
    launch.options(
        {
            "--group-query-attention": grouped,
            "--num-query-groups": model.kv_heads if grouped else None,
            # with latent attention these are the norms of its narrow vectors
            "--qk-layernorm": model.qk_norm == "head" or latent is not None,
            # tokens before the query's own, and after it
            "--window-size": f"{model.window - 1},0" if slides else None,
            "--window-attn-skip-freq": _full_every(model) or None if slides else None,
            "--softmax-type": "learnable" if model.attention_sinks else None,
        }
    )


PP_BEFORE_DP = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
CP_TYPES = {"allgather": "all_gather", "ring": "p2p"}


def megatron_command(job: Job) -> str:
    """The script; refused where Megatron-LM has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    _refuse(job)
    add_torchrun(launch, job)
    launch.lines.append("pretrain_gpt.py")
    for add in (add_model, _add_batch, _add_precision, _add_degrees, _add_pipeline, _add_sharding, _add_recompute):
        add(launch, job)
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
LAST_RULES = (
    PlanRule(
        "plan.fp8_recipe",
        lambda job: job.plan.precision == "fp8" and job.plan.fp8_recipe == "rowwise",
        "it has no fp8 recipe with a scale for each row",
        f"{NEAREST} --fp8-recipe tensorwise",
    ),
    PlanRule(
        "plan.recompute",
        lambda job: job.plan.recompute == "ops",
        "it cannot recompute every second matrix product",
        "the nearest plans that it can run have --recompute attention, blocks or full",
    ),
)


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
    refuse(TOOL, LAST_RULES, job)


def _add_batch(launch: LaunchCommand, job: Job) -> None:
    sizes = {"--micro-batch-size": job.plan.micro_batch, "--global-batch-size": job.global_batch}
    launch.options({"--seq-length": job.seq_len, **sizes})
    launch.notes.append(
        f"a data-parallel rank runs {job.microbatches} microbatches of {job.plan.micro_batch} a step; "
        "knee's --local-batch is the global batch divided by all GPUs"
    )


def _add_precision(launch: LaunchCommand, job: Job) -> None:
    plan, in_fp8 = job.plan, job.plan.precision == "fp8"
    if plan.precision == "fp16":
        launch.options({"--fp16": True, "--accumulate-allreduce-grads-in-fp32": True})
        return
    launch.options(
        {
            "--bf16": True,
            "--fp8-format": "hybrid" if in_fp8 else None,
            "--fp8-recipe": plan.fp8_recipe if in_fp8 else None,
        }
    )
    if plan.precision == "fp4":
        _add_fp4(launch, job)
    if plan.reduce_dtype == "bf16":
        launch.option("--grad-reduce-in-bf16")
        launch.notes.append("Megatron also sums gradients over microbatches in bf16, while knee assumes fp32 sums")
    elif not _is_fsdp(job):
        launch.option("--accumulate-allreduce-grads-in-fp32")


def _add_fp4(launch: LaunchCommand, job: Job) -> None:
    """NVFP4; of the layers that stay in bf16 a fifth are the first ones, as in arXiv 2509.25149."""
    kept = round(job.profile.bf16_layers_frac * job.model.layers)
    launch.options(
        {
            "--fp4-format": "e2m1",
            "--fp4-recipe": "nvfp4",
            "--first-last-layers-bf16": bool(kept),
            "--num-layers-at-start-in-bf16": kept // 5 if kept else None,
            "--num-layers-at-end-in-bf16": kept - kept // 5 if kept else None,
        }
    )
    launch.notes.append(
        "fp4 uses Transformer Engine's NVFP4, which needs a Blackwell GPU; parameters are gathered in bf16"
    )


def _add_degrees(launch: LaunchCommand, job: Job) -> None:
    plan, overlaps = job.plan, job.plan.tp > 1 and tp_overlap_frac(job) > 0
    launch.options(
        {
            "--tensor-model-parallel-size": plan.tp,
            "--sequence-parallel": plan.tp > 1 and plan.sequence_parallel,
            "--tp-comm-overlap": overlaps and plan.sequence_parallel,
            "--context-parallel-size": plan.cp,
            "--cp-comm-type": CP_TYPES[plan.cp_method] if plan.cp > 1 else None,
            "--pipeline-model-parallel-size": plan.pp,
            "--use-tp-pp-dp-mapping": not placed(plan, AXES),
        }
    )
    if overlaps and not plan.sequence_parallel:
        launch.notes.append(
            "knee overlaps part of the TP communication; Megatron does so only with sequence parallelism"
        )
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
    uneven = len(set(layers)) > 1
    launch.options(
        {
            "--num-virtual-stages-per-pipeline-rank": plan.virtual_stages if plan.virtual_stages > 1 else None,
            "--account-for-embedding-in-pipeline-split": uneven,
            "--account-for-loss-in-pipeline-split": uneven,
        }
    )


def _layout(layers: tuple[int, ...], mtp_layers: int = 0) -> str:
    """Stages in Megatron's own notation: E embedding, t layer, m layer of multi-token prediction, L loss."""
    stages: list[str] = []
    further = mtp_layers
    for n in reversed(layers):
        of_mtp = min(n, further)
        further -= of_mtp
        stages.insert(0, "".join(f"{letter}*{m}" for letter, m in (("t", n - of_mtp), ("m", of_mtp)) if m))
    middle = [(stage, len(list(run))) for stage, run in groupby(stages[1:-1])]
    between = "".join(f"({stage}|)*{n}," if n > 1 else f"{stage}|" for stage, n in middle)
    return f"E{stages[0]}|{between}{stages[-1]}L"


def _add_sharding(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.dp * plan.cp == 1:
        return
    if plan.sharding == "fsdp_no_reshard":
        names = ("--use-torch-fsdp2", "--torch-fsdp2-no-reshard-after-forward", "--no-gradient-accumulation-fusion")
        launch.options(dict.fromkeys(names, True))
        return
    sharded, whole = plan.sharding != "ddp", plan.sharding not in ("ddp", "zero1")
    in_fp32 = "fp32" if whole and plan.reduce_dtype == "fp32" else None
    launch.options(
        {
            "--overlap-grad-reduce": True,
            "--use-distributed-optimizer": sharded,
            "--num-distributed-optimizer-instances": plan.dp_replicate if sharded and plan.dp_replicate > 1 else None,
            "--overlap-param-gather": whole or (sharded and job.profile.gather_overlap),
            "--use-megatron-fsdp": whole,
            "--data-parallel-sharding-strategy": "optim_grads_params" if whole else None,
            "--ckpt-format": "fsdp_dtensor" if whole else None,
            "--megatron-fsdp-main-grads-dtype": in_fp32,
            "--megatron-fsdp-grad-comm-dtype": in_fp32,
        }
    )


def _add_recompute(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.recompute == "none":
        return
    if plan.recompute in ("attention", "modules"):
        modules = plan.recompute_modules or None
        launch.options({"--recompute-granularity": "selective", "--recompute-modules": modules})
        return
    whole, layers = plan.recompute_frac == 1, layers_per_chunk(job)
    again = plan.recompute_frac * layers[0]
    if not whole and (len(set(layers)) > 1 or abs(again - round(again)) > 1e-9):
        raise cannot(
            TOOL,
            "plan.recompute_frac",
            "it recomputes the same whole number of layers on every stage, but the plan recomputes "
            f"a share of {plan.recompute_frac:g} of {'-'.join(map(str, sorted(set(layers))))} layers",
            f"{NEAREST} --recompute full",
        )
    launch.options(
        {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform" if whole else "block",
            "--recompute-num-layers": 1 if whole else round(again),
        }
    )
