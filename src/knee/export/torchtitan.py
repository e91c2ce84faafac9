"""A job as a torchtitan command: a registered Llama, and options that change its configuration."""

from __future__ import annotations

from typing import Any

from knee.export.command_line import (
    LaunchCommand,
    add_torchrun,
    cannot,
    layers_per_chunk,
    placed,
    recorded,
    refuse_prefetch,
    refuse_processors,
    refuse_rare_exchange,
    tp_overlap_frac,
)
from knee.specs.job import Job
from knee.specs.plan import AXES, RESHARDING

TOOL = "torchtitan"
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
ITS_CHUNKS = 2
"""Chunks a rank that torchtitan gives an interleaved schedule unless told otherwise."""
LOCAL_BATCH = "knee's --local-batch is the global batch divided by all GPUs"
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "biases": False}

MODULE = """\
cat > knee_plan.py <<'EOF'
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import {base}{imports}


def plan():
    config = {base}()
    config.model_spec = model_registry("{flavor}"{converters})
    return config
EOF
"""
FLOAT8 = "\nfrom torchtitan.components.quantization import Float8LinearConverter"
CONVERTERS = ', converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled={compiled})]'


def torchtitan_command(job: Job) -> str:
    """The script; refused where torchtitan has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    _refuse(launch, job)
    add_torchrun(launch, job)
    launch.option("-m", "torchtitan.train", of="torchrun")
    before = _add_model(launch, job)
    _add_batch(launch, job)
    _add_degrees(launch, job)
    _add_pipeline(launch, job)
    _add_precision(launch, job)
    _add_compile(launch, job)
    launch.notes.append("more options of torchtitan may follow the script's name: steps, data, checkpoints")
    # a choice among kinds of configurations comes after all options
    launch.lines.append('"$@"')
    _add_recompute(launch, job)
    return launch.text(job, before=before)


def _refuse(launch: LaunchCommand, job: Job) -> None:
    """What no option of torchtitan says."""
    plan, model = job.plan, job.model
    _registered(job)  # before the plan: no other plan helps a model that it does not know
    refuse_rare_exchange(launch, plan)
    if plan.sharding in ("zero1", "zero2"):
        raise cannot(
            TOOL,
            "plan.sharding",
            "it has no mode that shards optimizer states, or gradients too, and keeps parameters whole",
            "the nearest plan it can run has --sharding fsdp_no_reshard, which shards gradients too",
        )
    if plan.sharding == "ddp" and plan.cp > 1:
        raise cannot(
            TOOL,
            "plan.sharding",
            "it shards parameters over the ranks of context parallelism, and ddp shards none",
            "the nearest plan it can run has --sharding fsdp_no_reshard",
        )
    if plan.pp > 1 and plan.schedule not in SCHEDULES:
        raise cannot(
            TOOL,
            "plan.schedule",
            f"its {plan.schedule} schedules need two chunks on every rank, and this one has one",
            "the nearest plan it can run has --schedule 1f1b, or interleaved with --virtual-stages 2",
        )
    if plan.cp > 1 and plan.cp_method != "allgather":
        raise cannot(
            TOOL,
            "plan.cp_method",
            f"its context parallelism gathers keys and values, and the plan's is {plan.cp_method}",
            "the nearest plan it can run has --cp-method allgather",
        )
    if plan.precision in ("fp16", "fp4"):
        nearest = "bf16" if plan.precision == "fp16" else "fp8"
        raise cannot(
            TOOL,
            "plan.precision",
            f"it does not train in {plan.precision}",
            f"the nearest plan it can run has --precision {nearest}",
        )
    if plan.reduce_dtype != "fp32":
        raise cannot(
            TOOL,
            "plan.reduce_dtype",
            f"it reduces gradients in fp32, and the plan in {plan.reduce_dtype}",
            "the nearest plan it can run has --reduce-dtype fp32",
        )
    if plan.recompute in ("attention", "blocks"):
        part = "attention alone" if plan.recompute == "attention" else f"{plan.recompute_frac:g} of the blocks"
        raise cannot(
            TOOL,
            "plan.recompute",
            f"it recomputes all blocks, every second product in each, or nothing, and the plan {part}",
            "the nearest plans it can run have --recompute full or ops",
        )
    if not placed(plan, AXES):
        mine, its = "-".join(plan.placement), "-".join(AXES)
        raise cannot(
            TOOL,
            "plan.placement",
            f"its mesh is {its} from the innermost, and the plan's {mine}",
            f"the nearest plan it can run has --placement {its}",
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
            f"{model.name} ties its output projection to its embedding, which a pipeline separates",
            "the nearest plan it can run has --pp 1",
        )
    refuse_prefetch(launch, plan)


def _add_model(launch: LaunchCommand, job: Job) -> str:
    """The model among the registered ones; a module of our own where none is trained in the plan's precision."""
    flavor, entry = _registered(job)
    launch.notes.append(
        "the model is Llama 3.1's, with its scaled rotary angles; tokenizer, optimizer and data are "
        "those of torchtitan's configuration"
    )
    launch.notes.append("torchtitan takes the loss in chunks of the sequence: logits need less memory than knee counts")
    if entry.get("precision") == job.plan.precision:
        launch.option("--module", "llama3")
        launch.option("--config", entry["config"])
        return ""
    launch.option("--module", "knee_plan")
    launch.option("--config", "plan")
    # 405B's own configuration needs torchao even where its products stay in bf16
    base = entry["config"] if entry.get("precision") == "bf16" else "llama3_70b"
    launch.notes.append(
        f"torchtitan has no {job.plan.precision} configuration of this model: knee_plan.py makes it "
        f"of {base}; the learning rate is that one's"
    )
    fp8 = job.plan.precision == "fp8"
    converters = CONVERTERS.format(compiled=_compiles(job)) if fp8 else ""
    return MODULE.format(base=base, imports=FLOAT8 if fp8 else "", flavor=flavor, converters=converters)


def _registered(job: Job) -> tuple[str, dict[str, Any]]:
    model, known = job.model, recorded()[TOOL]["models"]
    for flavor, entry in known.items():
        shape = entry["shape"] | LLAMA
        if (
            all(getattr(model, name) == value for name, value in shape.items())
            and model.head_dim == model.hidden // model.heads
        ):
            return flavor, entry
    raise cannot(
        TOOL,
        "model",
        f"it registers Llama 3 {', '.join(known)}, and {model.name} has the shape of none",
        "export to megatron, whose options say the shape, or to knee",
    )


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
            f"local_batch_size is a data-parallel rank's whole step, {job.microbatches} microbatches "
            f"of {plan.micro_batch}; {LOCAL_BATCH}"
        )
        return
    launch.notes.append(f"local_batch_size is knee's micro_batch; {LOCAL_BATCH}")
    if job.microbatches > 1 and plan.sharding != "fsdp":
        what = {"hsdp": "all-reduces between replicas", "ddp": "all-reduces gradients"}.get(
            plan.sharding, "gathers parameters and reduces gradients"
        )
        launch.notes.append(
            f"torchtitan {what} in each of the {job.microbatches} accumulation steps, and knee once a "
            "step: a step will take longer than knee says"
        )


def _add_degrees(launch: LaunchCommand, job: Job) -> None:
    plan = job.plan
    launch.option("--parallelism.data_parallel_replicate_degree", plan.dp_replicate)
    launch.option("--parallelism.data_parallel_shard_degree", plan.dp_shard)
    launch.option("--parallelism.tensor_parallel_degree", plan.tp)
    launch.option("--parallelism.context_parallel_degree", plan.cp)
    launch.option("--parallelism.pipeline_parallel_degree", plan.pp)
    reshards = plan.sharding in RESHARDING
    launch.option("--parallelism.fsdp_reshard_after_forward", "always" if reshards else "never")
    if plan.pp > 1 and plan.sharding != "ddp":
        launch.notes.append(
            "torchtitan's default under a pipeline is not to reshard after forward; "
            f"{plan.sharding} {'does' if reshards else 'does not either'}"
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
            f"{chunks} stages of {layers} layers leave some without one",
            f"use at most {layers} stages in all",
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
                f"no number of layers a stage makes {chunks} stages of {layers} layers",
                f"the nearest plan it can run has --virtual-stages {ITS_CHUNKS}",
            )
        launch.option("--parallelism.pipeline_parallel_layers_per_stage", per_stage)
    mine = layers_per_chunk(job)
    even = len(set(mine)) == 1 or (
        less and (layers + 2) % chunks == 0 and mine[0] == mine[-1] == min(mine) and len(set(mine[1:-1])) == 1
    )
    if not even:
        counts = ", ".join(map(str, mine))
        launch.notes.append(f"knee has {counts} layers on the stages; torchtitan may deal them otherwise")


def _add_precision(launch: LaunchCommand, job: Job) -> None:
    launch.option("--training.dtype", {"fp32": "float32", "bf16": "bfloat16"}[job.plan.state_dtype])
    launch.option("--training.mixed_precision_param", "bfloat16")
    launch.option("--training.mixed_precision_reduce", "float32")
    if job.plan.precision == "fp8":
        launch.notes.append("fp8 is torchao's float8 (lm_head stays in bf16), and gathers parameters in bf16")


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
            f"knee's profile {job.profile.name} has {job.profile.kernels} kernels; compiled ones are "
            "the nearest that torchtitan has for this plan"
        )
    launch.notes.append("knee models no CUDA graphs, which torchtitan has on by default and never under a pipeline")


def _add_recompute(launch: LaunchCommand, job: Job) -> None:
    launch.option(f"activation_checkpoint:{'selective' if job.plan.recompute == 'ops' else job.plan.recompute}")
