"""A job as a torchtitan command: a registered model, and options that change its configuration."""

from __future__ import annotations

from typing import Any

from knee.specs.job import Job
from knee.specs.legality import PlanRule
from knee.specs.model.decoder import departures
from knee.specs.plan import AXES, RESHARDING
from knee.specs.schedules import schedule_of
from knee.training.export.command_line import (
    NEAREST,
    ONLY_SIMULATED,
    PREFETCHES,
    LaunchCommand,
    add_torchrun,
    cannot,
    layers_per_chunk,
    placed,
    recorded,
    refuse,
    refuse_processors,
    routing_note,
    tp_overlap_frac,
)

# The models that torchtitan registers, and a module of our own where no configuration of theirs fits a plan.

TOOL = "torchtitan"
LLAMA = "llama3"

MODULE = """\
cat > knee_plan.py <<'EOF'
from torchtitan.models.{module} import model_registry
from torchtitan.models.{module}.config_registry import {base}{imports}


def plan():
    config = {base}()
    config.model_spec = model_registry("{flavor}"{arguments})
{loss}    return config
EOF
"""
FLOAT8 = "\nfrom torchtitan.components.quantization import {names}"
LINEAR = "Float8LinearConverter.Config(filter_fqns=[{kept}], model_compile_enabled={compiled})"
GROUPED = "Float8GroupedExpertsConverter.Config(model_compile_enabled={compiled})"
MTP_IMPORTS = """
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.deepseek_v3.mtp import MTPLoss"""
MTP_LOSS = "    config.loss = MTPLoss.Config(global_vocab_size=decoder_vocab_size(config.model_spec))\n"
BACKENDS = {"alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep"}


def registered(job: Job) -> tuple[str, dict[str, Any]]:
    """The flavor that has the model's shape, and its entry; refused if there is none."""
    model, known = job.model, recorded()[TOOL]["models"]
    for flavor, entry in known.items():
        if _has_shape(job, entry["shape"]):
            return flavor, entry
    if model.experts is not None:
        sparse = [f"{entry['module']} {flavor}" for flavor, entry in known.items() if "experts" in entry["shape"]]
        raise cannot(
            TOOL,
            "model",
            f"of models with experts it registers {', '.join(sparse)}, but {model.name} has another shape",
            "export to megatron or knee",
        )
    dense = [flavor for flavor, entry in known.items() if "experts" not in entry["shape"]]
    for name, shown in departures(model, job.seq_len).items():
        text = f"it registers Llama 3, but {model.name} has {shown}"
        raise cannot(TOOL, f"model.{name}", text, "export a Llama 3 model, or simulate this one")
    raise cannot(
        TOOL,
        "model",
        f"it registers Llama 3 {', '.join(dense)}, but {model.name} has another shape",
        "export to megatron or knee, which support any shape",
    )


def _has_shape(job: Job, shape: dict[str, Any]) -> bool:
    """Whether the fields named have these values, and every other field that changes a block has Llama's."""
    model = job.model
    more = set(departures(model, job.seq_len)) - set(shape) - {"mtp_layers"}
    plain_heads = model.latent_attention is not None or model.head_dim == model.hidden // model.heads
    if more or ("head_size" not in shape and not plain_heads):
        return False
    return all(_same(getattr(model, name), value) for name, value in shape.items())


def _same(own: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return own is not None and all(getattr(own, name) == inner for name, inner in value.items())
    return bool(own == value)


def add_model(launch: LaunchCommand, job: Job, *, compiled: bool) -> str:
    """The model among the registered ones; a module of our own where none is trained as the plan says."""
    flavor, entry = registered(job)
    module, plan = entry.get("module", LLAMA), job.plan
    _add_notes(launch, job, module)
    plain = (plan.dispatcher == "alltoall" or plan.ep == 1) and not job.model.mtp_layers
    if entry.get("precision") == plan.precision and plain:
        launch.option("--module", module)
        launch.option("--config", entry["config"])
        return ""
    launch.option("--module", "knee_plan")
    launch.option("--config", "plan")
    names = [*(["Float8GroupedExpertsConverter"] if job.model.experts else []), "Float8LinearConverter"]
    quantized = FLOAT8.format(names=", ".join(names)) if plan.precision == "fp8" else ""
    base = entry["base"]
    what = f"{plan.precision} configuration of this model" if plain else "configuration of this model for this plan"
    launch.notes.append(f"torchtitan has no {what}: knee_plan.py derives it from {base} and keeps its learning rate")
    return MODULE.format(
        module=module,
        base=base,
        imports=quantized + (MTP_IMPORTS if job.model.mtp_layers else ""),
        flavor=flavor,
        arguments=_arguments(job, compiled),
        loss=MTP_LOSS if job.model.mtp_layers else "",
    )


def _arguments(job: Job, compiled: bool) -> str:
    """What the registry is called with besides the flavor."""
    found, experts = [], job.model.experts is not None
    if experts and job.plan.ep > 1:
        found.append(f'moe_comm_backend="{BACKENDS[job.plan.dispatcher]}"')
    if job.model.mtp_layers:
        found.append(f"num_mtp_layers={job.model.mtp_layers}")
    if job.plan.precision == "fp8":
        kept = '"lm_head", "router.gate"' if experts else '"lm_head"'
        converters = [LINEAR.format(kept=kept, compiled=compiled)]
        converters += [GROUPED.format(compiled=compiled)] if experts else []
        found.append(f"converters=[{', '.join(converters)}]")
    return "".join(f", {argument}" for argument in found)


def _add_notes(launch: LaunchCommand, job: Job, module: str) -> None:
    if module == LLAMA:
        launch.notes.append(
            "the model is Llama 3.1 with its scaled rotary angles; torchtitan's configuration sets the tokenizer, "
            "the optimizer and the data"
        )
    else:
        launch.notes.append("torchtitan's configuration sets the tokenizer, the optimizer and the data")
        launch.notes.append(routing_note(job.plan, "--debug.moe_force_load_balance"))
    if module == "deepseek_v3":
        launch.notes.append("torchtitan's configurations of DeepSeek models compile only the loss")
    if not job.model.mtp_layers:
        launch.notes.append(
            "torchtitan computes the loss in chunks of the sequence, so logits need less memory than knee predicts"
        )


EXPERT_RULES = (
    PlanRule(
        "model.mtp_layers",
        lambda job: job.model.mtp_layers and job.plan.pp * job.plan.cp > 1,
        "its multi-token prediction supports neither a pipeline nor context parallelism, but the plan has pp {plan.pp} "
        "and cp {plan.cp}",
        "the nearest model that it can run has --set model.mtp_layers=0",
    ),
    PlanRule(
        "plan.etp",
        lambda job: job.plan.ep == 1 and job.plan.tp != job.plan.etp,
        "without expert parallelism it splits experts over tp, but the plan has tp {plan.tp} and etp {plan.etp}",
        "the nearest plans that it can run have --etp {plan.tp}, or --ep of at least 2 with --etp 1",
    ),
    PlanRule(
        "plan.etp",
        lambda job: job.plan.ep > 1 and job.plan.etp > 1,
        "with expert parallelism it does not split an expert, but the plan has etp {plan.etp}",
        f"{NEAREST} --etp 1",
    ),
    PlanRule(
        "plan.sharding",
        lambda job: job.plan.ep > 1 and job.plan.sharding == "ddp",
        "it lays experts over the ranks that shard parameters, but ddp shards nothing",
        f"{NEAREST} --sharding fsdp_no_reshard",
    ),
    PlanRule(
        "plan.ep_overlap",
        lambda job: job.plan.ep > 1 and job.plan.ep_overlap,
        "it has no option to overlap the communication of experts with another microbatch",
        f"{NEAREST} no --ep-overlap",
    ),
    PlanRule(
        "plan.capacity_factor",
        lambda job: job.plan.capacity_factor is not None,
        "it drops no tokens, but the plan has a capacity factor of {plan.capacity_factor:g}",
        f"{NEAREST} no --capacity-factor",
    ),
)
"""What torchtitan does not do with experts and multi-token prediction."""
ITS_CHUNKS = 2
"""Chunks a rank that torchtitan gives an interleaved schedule unless told otherwise."""
LOCAL_BATCH = "knee's --local-batch is the global batch divided by all GPUs"


def torchtitan_command(job: Job) -> str:
    """The script; refused where torchtitan has no such plan."""
    launch = LaunchCommand(tool=TOOL)
    refuse_processors(launch, job)
    registered(job)  # before the plan: no other plan helps a model that it does not know
    refuse(TOOL, RULES, job)
    if job.model.experts is not None:
        refuse(TOOL, EXPERT_RULES, job)
    add_torchrun(launch, job)
    launch.option("-m", "torchtitan.train", of="torchrun")
    before = add_model(launch, job, compiled=_compiles(job))
    for add in (_add_batch, _add_degrees, _add_pipeline, _add_precision, _add_compile):
        add(launch, job)
    launch.notes.append("you can add more torchtitan options to this script: steps, data, checkpoints")
    # a choice among kinds of configurations comes after all options
    launch.lines.append('"$@"')
    launch.option(f"activation_checkpoint:{'selective' if job.plan.recompute == 'ops' else job.plan.recompute}")
    return launch.text(job, before=before)


def _no_schedule(job: Job) -> str:
    """Why torchtitan has no schedule with the plan's stages."""
    if schedule_of(job.plan.schedule).directions > 1:
        return "its DualPipeV has one copy of each stage, but this plan has two"
    return f"its {job.plan.schedule} schedules need two chunks per rank, but this plan has one"


def _recomputed(job: Job) -> str:
    plan = job.plan
    part = {"attention": "only attention", "modules": f"only {', '.join(plan.recompute_modules)}"}.get(
        plan.recompute, f"{plan.recompute_frac:g} of the blocks"
    )
    return "it recomputes all blocks, every second matrix product in each, or nothing, but the plan recomputes " + part


ITS_MESH = "-".join(AXES)
RULES = (
    *ONLY_SIMULATED,
    PlanRule(
        "plan.sharding",
        lambda job: job.plan.sharding in ("zero1", "zero2"),
        "it has no mode that shards optimizer states or gradients but not parameters",
        f"{NEAREST} --sharding fsdp_no_reshard, which shards gradients too",
    ),
    PlanRule(
        "plan.sharding",
        lambda job: job.plan.sharding == "ddp" and job.plan.cp > 1,
        "it shards parameters over the context-parallel ranks, but ddp shards nothing",
        f"{NEAREST} --sharding fsdp_no_reshard",
    ),
    PlanRule(
        "plan.schedule",
        lambda job: job.plan.pp > 1 and schedule_of(job.plan.schedule).torchtitan is None,
        _no_schedule,
        f"{NEAREST} --schedule 1f1b, or interleaved with --virtual-stages 2",
    ),
    PlanRule(
        "plan.cp_method",
        lambda job: job.plan.cp > 1 and job.plan.cp_method != "allgather",
        "its context parallelism gathers keys and values, but the plan uses {plan.cp_method}",
        f"{NEAREST} --cp-method allgather",
    ),
    PlanRule(
        "plan.precision",
        lambda job: job.plan.precision in ("fp16", "fp4"),
        "it cannot train in {plan.precision}",
        lambda job: f"{NEAREST} --precision {'bf16' if job.plan.precision == 'fp16' else 'fp8'}",
    ),
    PlanRule(
        "plan.reduce_dtype",
        lambda job: job.plan.reduce_dtype != "fp32",
        "it reduces gradients in fp32, but the plan uses {plan.reduce_dtype}",
        f"{NEAREST} --reduce-dtype fp32",
    ),
    PlanRule(
        "plan.recompute",
        lambda job: job.plan.recompute in ("attention", "blocks", "modules"),
        _recomputed,
        "the nearest plans that it can run have --recompute full or ops",
    ),
    PlanRule(
        "plan.placement",
        lambda job: not placed(job.plan, AXES),
        lambda job: f"its mesh is {ITS_MESH} (innermost first), but the plan has {'-'.join(job.plan.placement)}",
        f"{NEAREST} --placement {ITS_MESH}",
    ),
    PlanRule(
        "plan.tp",
        lambda job: job.model.kv_heads % job.plan.tp,
        "tp {plan.tp} does not divide the {model.kv_heads} key-value heads of {model.name}",
        "use a tp that divides {model.kv_heads}",
    ),
    PlanRule(
        "plan.pp",
        lambda job: job.model.tied_embeddings and job.plan.pp > 1,
        "{model.name} ties its output projection to its embedding, but a pipeline puts them on different ranks",
        f"{NEAREST} --pp 1",
    ),
    PREFETCHES,
)
"""What no option of torchtitan says."""


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
    reshards = plan.sharding in RESHARDING
    launch.options(
        {
            "--parallelism.data_parallel_replicate_degree": plan.dp_replicate,
            "--parallelism.data_parallel_shard_degree": plan.dp_shard,
            "--parallelism.tensor_parallel_degree": plan.tp,
            "--parallelism.context_parallel_degree": plan.cp,
            "--parallelism.pipeline_parallel_degree": plan.pp,
            "--parallelism.expert_parallel_degree": None if job.model.experts is None else plan.ep,
            "--parallelism.fsdp_reshard_after_forward": "always" if reshards else "never",
        }
    )
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
    launch.option("--parallelism.pipeline_parallel_schedule", schedule_of(plan.schedule).torchtitan)
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
