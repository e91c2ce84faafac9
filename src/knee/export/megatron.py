"""A job as a command of Megatron-LM's pretrain_gpt.py: the model's shape, and the plan."""

from __future__ import annotations

from itertools import groupby

from knee.export.command_line import (
    LaunchCommand,
    add_torchrun,
    cannot,
    layers_per_chunk,
    placed,
    refuse_prefetch,
    refuse_processors,
    refuse_rare_exchange,
    tp_overlap_frac,
)
from knee.export.megatron_experts import add_expert_plan, refuse_expert_plan
from knee.export.megatron_model import add_model, refuse_model
from knee.specs.job import Job
from knee.specs.plan import AXES

TOOL = "megatron"
PP_BEFORE_DP = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
CP_TYPES = {"allgather": "all_gather", "ring": "p2p"}


def megatron_command(job: Job) -> str:
    """The script; refused where Megatron-LM has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    _refuse(launch, job)
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


def _refuse(launch: LaunchCommand, job: Job) -> None:
    """What no option of Megatron-LM says."""
    plan = job.plan
    refuse_rare_exchange(launch, plan)
    if plan.sharding == "zero2":
        raise cannot(
            TOOL,
            "plan.sharding",
            "its distributed optimizer does not shard gradients before the last microbatch",
            "the nearest plan that it can run has --sharding zero1",
        )
    if plan.pp > 1 and plan.schedule not in ("1f1b", "interleaved"):
        raise cannot(
            TOOL,
            "plan.schedule",
            f"its schedules are 1f1b and interleaved, but the plan uses {plan.schedule}",
            "the nearest plan that it can run has --schedule 1f1b",
        )
    if plan.state_dtype != "fp32":
        raise cannot(
            TOOL,
            "plan.state_dtype",
            f"its optimizer updates parameters in fp32, but the plan uses {plan.state_dtype}",
            "the nearest plan that it can run has --state-dtype fp32",
        )
    refuse_model(job)
    if job.model.experts is not None:
        refuse_expert_plan(job)
    if not placed(plan, AXES) and not placed(plan, PP_BEFORE_DP):
        orders = f"{'-'.join(AXES)} or {'-'.join(PP_BEFORE_DP)}"
        raise cannot(
            TOOL,
            "plan.placement",
            f"it supports the axis orders {orders} (innermost first), but the plan has {'-'.join(plan.placement)}",
            f"the nearest plan that it can run has --placement {'-'.join(AXES)}",
        )
    if _is_fsdp(job):
        _refuse_fsdp(launch, job)


def _refuse_fsdp(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    if plan.pp > 1:
        raise cannot(
            TOOL,
            "plan.pp",
            "neither of its FSDP modes is documented to work with a pipeline, but the plan has "
            f"{plan.sharding} with pp {plan.pp}",
            "the nearest plan that it can run has --sharding zero1",
        )
    refuse_prefetch(launch, plan)
    if plan.sharding != "fsdp_no_reshard":
        return
    # keeping gathered parameters is an option of torch's FSDP2 alone
    if plan.dp_replicate > 1:
        raise cannot(
            TOOL,
            "plan.dp_replicate",
            "its fsdp_no_reshard does not support replicas",
            "the nearest plan that it can run has --sharding hsdp",
        )
    if plan.reduce_dtype != "bf16" or plan.precision == "fp16":
        raise cannot(
            TOOL,
            "plan.reduce_dtype",
            "its fsdp_no_reshard reduces gradients in bf16, but the plan reduces them in "
            f"{plan.reduce_dtype} and multiplies matrices in {plan.precision}",
            "the nearest plans that it can run have --reduce-dtype bf16, or --sharding zero1",
        )
    if job.model.tied_embeddings:
        raise cannot(
            TOOL,
            "model.tied_embeddings",
            f"its fsdp_no_reshard needs an untied output projection, but that of {job.model.name} is tied",
            "the nearest plan that it can run has --sharding zero1",
        )


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
