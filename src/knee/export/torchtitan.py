"""A job as a torchtitan command: a registered model, and options that change its configuration."""

from __future__ import annotations

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
from knee.export.torchtitan_models import add_model, refuse_expert_plan, registered
from knee.specs.job import Job
from knee.specs.plan import AXES, RESHARDING

TOOL = "torchtitan"
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
ITS_CHUNKS = 2
"""Chunks a rank that torchtitan gives an interleaved schedule unless told otherwise."""
LOCAL_BATCH = "knee's --local-batch is the global batch divided by all GPUs"


def torchtitan_command(job: Job) -> str:
    """The script; refused where torchtitan has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    _refuse(launch, job)
    add_torchrun(launch, job)
    launch.option("-m", "torchtitan.train", of="torchrun")
    before = add_model(launch, job, compiled=_compiles(job))
    _add_batch(launch, job)
    _add_degrees(launch, job)
    _add_pipeline(launch, job)
    _add_precision(launch, job)
    _add_compile(launch, job)
    launch.notes.append("you can add more torchtitan options to this script: steps, data, checkpoints")
    # a choice among kinds of configurations comes after all options
    launch.lines.append('"$@"')
    _add_recompute(launch, job)
    return launch.text(job, before=before)


def _refuse(launch: LaunchCommand, job: Job) -> None:
    """What no option of torchtitan says."""
    plan, model = job.plan, job.model
    registered(job)  # before the plan: no other plan helps a model that it does not know
    refuse_rare_exchange(launch, plan)
    if plan.sharding in ("zero1", "zero2"):
        raise cannot(
            TOOL,
            "plan.sharding",
            "it has no mode that shards optimizer states or gradients but not parameters",
            "the nearest plan that it can run has --sharding fsdp_no_reshard, which shards gradients too",
        )
    if plan.sharding == "ddp" and plan.cp > 1:
        raise cannot(
            TOOL,
            "plan.sharding",
            "it shards parameters over the context-parallel ranks, but ddp shards nothing",
            "the nearest plan that it can run has --sharding fsdp_no_reshard",
        )
    if plan.pp > 1 and plan.schedule not in SCHEDULES:
        raise cannot(
            TOOL,
            "plan.schedule",
            "its DualPipeV has one copy of each stage, but this plan has two"
            if plan.schedule == "dualpipe"
            else f"its {plan.schedule} schedules need two chunks per rank, but this plan has one",
            "the nearest plan that it can run has --schedule 1f1b, or interleaved with --virtual-stages 2",
        )
    if plan.cp > 1 and plan.cp_method != "allgather":
        raise cannot(
            TOOL,
            "plan.cp_method",
            f"its context parallelism gathers keys and values, but the plan uses {plan.cp_method}",
            "the nearest plan that it can run has --cp-method allgather",
        )
    if plan.precision in ("fp16", "fp4"):
        nearest = "bf16" if plan.precision == "fp16" else "fp8"
        raise cannot(
            TOOL,
            "plan.precision",
            f"it cannot train in {plan.precision}",
            f"the nearest plan that it can run has --precision {nearest}",
        )
    if plan.reduce_dtype != "fp32":
        raise cannot(
            TOOL,
            "plan.reduce_dtype",
            f"it reduces gradients in fp32, but the plan uses {plan.reduce_dtype}",
            "the nearest plan that it can run has --reduce-dtype fp32",
        )
    if plan.recompute in ("attention", "blocks", "modules"):
        part = {"attention": "only attention", "modules": f"only {', '.join(plan.recompute_modules)}"}.get(
            plan.recompute, f"{plan.recompute_frac:g} of the blocks"
        )
        raise cannot(
            TOOL,
            "plan.recompute",
            f"it recomputes all blocks, every second matrix product in each, or nothing, but the plan "
            f"recomputes {part}",
            "the nearest plans that it can run have --recompute full or ops",
        )
    if not placed(plan, AXES):
        mine, its = "-".join(plan.placement), "-".join(AXES)
        raise cannot(
            TOOL,
            "plan.placement",
            f"its mesh is {its} (innermost first), but the plan has {mine}",
            f"the nearest plan that it can run has --placement {its}",
        )
    if model.kv_heads % plan.tp:
        raise cannot(
            TOOL,
            "plan.tp",
            f"tp {plan.tp} does not divide the {model.kv_heads} key-value heads of {model.name}",
            f"use a tp that divides {model.kv_heads}",
        )
    if model.tied_embeddings and plan.pp > 1:
        raise cannot(
            TOOL,
            "plan.pp",
            f"{model.name} ties its output projection to its embedding, but a pipeline puts them on different ranks",
            "the nearest plan that it can run has --pp 1",
        )
    refuse_prefetch(launch, plan)
    if model.experts is not None:
        refuse_expert_plan(job)


def _add_batch(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    in_pipeline = plan.pp > 1
    local = plan.micro_batch * (job.microbatches if in_pipeline else 1)
    launch.option("--training.seq_len", job.seq_len)
    launch.option("--training.local_batch_size", local)
    launch.option("--training.global_batch_size", job.global_batch)
    if in_pipeline:
        launch.option("--parallelism.pipeline_parallel_microbatch_size", plan.micro_batch)
        launch.notes.append(
            f"local_batch_size is the batch of a data-parallel rank per step: {job.microbatches} microbatches "
            f"of {plan.micro_batch}; {LOCAL_BATCH}"
        )
        return
    launch.notes.append(f"local_batch_size is knee's micro_batch; {LOCAL_BATCH}")
    if job.microbatches > 1 and plan.sharding != "fsdp":
        what = {"hsdp": "all-reduces between replicas", "ddp": "all-reduces gradients"}.get(
            plan.sharding, "gathers parameters and reduces gradients"
        )
        launch.notes.append(
            f"torchtitan {what} in each of the {job.microbatches} accumulation steps, but knee assumes "
            "once per step, so a real step takes longer than knee predicts"
        )


def _add_degrees(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    launch.option("--parallelism.data_parallel_replicate_degree", plan.dp_replicate)
    launch.option("--parallelism.data_parallel_shard_degree", plan.dp_shard)
    launch.option("--parallelism.tensor_parallel_degree", plan.tp)
    launch.option("--parallelism.context_parallel_degree", plan.cp)
    launch.option("--parallelism.pipeline_parallel_degree", plan.pp)
    if job.model.experts is not None:
        launch.option("--parallelism.expert_parallel_degree", plan.ep)
    reshards = plan.sharding in RESHARDING
    launch.option("--parallelism.fsdp_reshard_after_forward", "always" if reshards else "never")
    if plan.pp > 1 and plan.sharding != "ddp":
        launch.notes.append(
            "by default, torchtitan does not reshard after the forward pass in a pipeline; "
            f"{plan.sharding} {'does' if reshards else 'does not reshard either'}"
        )
    if plan.tp > 1:
        switch = "enable_sequence_parallel" if plan.sequence_parallel else "no-enable_sequence_parallel"
        launch.option(f"--parallelism.{switch}")


def _add_pipeline(launch: LaunchCommand, job: Job) -> None:
    plan, layers = job.plan, job.model.layers
    if plan.pp == 1:
        return
    chunks = plan.pp * plan.virtual_stages
    if chunks > layers:
        raise cannot(
            TOOL,
            "plan.pp",
            f"{chunks} stages of {layers} layers leave some stages without a layer",
            f"use at most {layers} stages in total",
        )
    launch.option("--parallelism.pipeline_parallel_schedule", SCHEDULES[plan.schedule])
    # torchtitan deals the layers with the embedding and the head each counted as so many layers
    less = 0 if layers % chunks == 0 else 1
    launch.option("--parallelism.pipeline_parallel_first_stage_less_layers", less)
    launch.option("--parallelism.pipeline_parallel_last_stage_less_layers", less)
    if plan.virtual_stages > 1 and plan.virtual_stages != ITS_CHUNKS:
        per_stage = -(-(layers + 2 * less) // chunks)
        if -(-(layers + 2 * less) // per_stage) != chunks:
            raise cannot(
                TOOL,
                "plan.virtual_stages",
                f"{layers} layers cannot be split into {chunks} stages with the same number of layers per stage",
                f"the nearest plan that it can run has --virtual-stages {ITS_CHUNKS}",
            )
        launch.option("--parallelism.pipeline_parallel_layers_per_stage", per_stage)
    mine = layers_per_chunk(job)
    even = len(set(mine)) == 1 or (
        less and (layers + 2) % chunks == 0 and mine[0] == mine[-1] == min(mine) and len(set(mine[1:-1])) == 1
    )
    if not even:
        counts = ", ".join(map(str, mine))
        launch.notes.append(f"knee has {counts} layers on the stages; torchtitan may distribute them differently")


def _add_precision(launch: LaunchCommand, job: Job) -> None:
    launch.option("--training.dtype", {"fp32": "float32", "bf16": "bfloat16"}[job.plan.state_dtype])
    launch.option("--training.mixed_precision_param", "bfloat16")
    launch.option("--training.mixed_precision_reduce", "float32")
    if job.plan.precision == "fp8":
        launch.notes.append("fp8 uses torchao's float8 (lm_head stays in bf16) and gathers parameters in bf16")
        if job.plan.fp8_recipe != "rowwise":
            launch.notes.append(
                f"torchtitan scales fp8 operands by rows, but the plan has the recipe {job.plan.fp8_recipe}; "
                "--fp8-recipe rowwise simulates what torchtitan does"
            )


def _compiles(job: Job) -> bool:
    """Async TP and quick fp8 need torch.compile, whatever the profile's kernels are."""
    return job.profile.kernels != "eager" or job.plan.precision == "fp8" or _hides_tp(job)


def _hides_tp(job: Job) -> bool:
    return job.plan.tp > 1 and job.plan.sequence_parallel and tp_overlap_frac(job) > 0


def _add_compile(launch: LaunchCommand, job: Job) -> None:
    launch.option("--compile.enable" if _compiles(job) else "--compile.no-enable")
    launch.option(f"--compile.{'' if _hides_tp(job) else 'no-'}enable_async_tensor_parallel")
    launch.option("--training.disable_cuda_graphs")
    if _compiles(job) and job.profile.kernels != "compiled":
        launch.notes.append(
            f"knee's profile {job.profile.name} has {job.profile.kernels} kernels; the nearest "
            "that torchtitan has for this plan are compiled kernels"
        )
    launch.notes.append(
        "CUDA graphs are disabled because knee does not model them; torchtitan uses them by default, except "
        "in a pipeline"
    )


def _add_recompute(launch: LaunchCommand, job: Job) -> None:
    launch.option(f"activation_checkpoint:{'selective' if job.plan.recompute == 'ops' else job.plan.recompute}")
