"""The models that torchtitan registers, and a module of our own where no configuration of theirs fits a plan."""

from __future__ import annotations

from typing import Any

from knee.export.command_line import LaunchCommand, cannot, recorded, routing_note
from knee.specs.job import Job
from knee.specs.model.departures import departures

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
    base = entry["base"]
    what = f"{plan.precision} configuration of this model" if plain else "configuration of this model for this plan"
    launch.notes.append(f"torchtitan has no {what}: knee_plan.py derives it from {base} and keeps its learning rate")
    return MODULE.format(
        module=module,
        base=base,
        imports=_imports(job),
        flavor=flavor,
        arguments=_arguments(job, compiled),
        loss=MTP_LOSS if job.model.mtp_layers else "",
    )


def _imports(job: Job) -> str:
    names = (["Float8GroupedExpertsConverter"] if job.model.experts else []) + ["Float8LinearConverter"]
    quantized = FLOAT8.format(names=", ".join(names)) if job.plan.precision == "fp8" else ""
    return quantized + (MTP_IMPORTS if job.model.mtp_layers else "")


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


def refuse_expert_plan(job: Job) -> None:
    """What torchtitan does not do with experts and multi-token prediction."""
    plan, model = job.plan, job.model
    if model.mtp_layers and plan.pp * plan.cp > 1:
        raise cannot(
            TOOL,
            "model.mtp_layers",
            "its multi-token prediction supports neither a pipeline nor context parallelism, but the plan has "
            f"pp {plan.pp} and cp {plan.cp}",
            "the nearest model that it can run has --set model.mtp_layers=0",
        )
    if plan.ep == 1 and plan.tp != plan.etp:
        raise cannot(
            TOOL,
            "plan.etp",
            f"without expert parallelism it splits experts over tp, but the plan has tp {plan.tp} and etp {plan.etp}",
            f"the nearest plans that it can run have --etp {plan.tp}, or --ep of at least 2 with --etp 1",
        )
    if plan.ep > 1 and plan.etp > 1:
        raise cannot(
            TOOL,
            "plan.etp",
            f"with expert parallelism it does not split an expert, but the plan has etp {plan.etp}",
            "the nearest plan that it can run has --etp 1",
        )
    if plan.ep > 1 and plan.sharding == "ddp":
        raise cannot(
            TOOL,
            "plan.sharding",
            "it lays experts over the ranks that shard parameters, but ddp shards nothing",
            "the nearest plan that it can run has --sharding fsdp_no_reshard",
        )
    if plan.ep > 1 and plan.ep_overlap:
        raise cannot(
            TOOL,
            "plan.ep_overlap",
            "it has no option to overlap the communication of experts with another microbatch",
            "the nearest plan that it can run has no --ep-overlap",
        )
    if plan.capacity_factor is not None:
        raise cannot(
            TOOL,
            "plan.capacity_factor",
            f"it drops no tokens, but the plan has a capacity factor of {plan.capacity_factor:g}",
            "the nearest plan that it can run has no --capacity-factor",
        )
