"""A published run as a job: the file's words for model, cluster, plan and stack in knee's."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal, get_args

from knee.base.errors import SpecError
from knee.specs.catalog import did_you_mean, fabric_aliases, gpu_aliases, loose_gpu_aliases
from knee.specs.constants import constant
from knee.specs.hardware import AttentionKernel, Cluster, Fabric, Gpu
from knee.specs.job import Job
from knee.specs.load import kept_for_a_question, load_cluster, load_profile, make_job
from knee.specs.model import Experts, LatentAttention, Mlp, Model
from knee.specs.plan import (
    DISPATCHERS,
    PRECISIONS,
    RECOMPUTE_MODULES,
    SHARDINGS,
    CpMethod,
    Recompute,
    ReduceDtype,
    Routing,
)
from knee.specs.profile import MEGATRON_KERNELS, Profile
from knee.specs.schedules import usual_schedule
from knee.trust.validation.csv_cells import unknown_choice
from knee.trust.validation.published_runs import GIB, PublishedRun, Setting

MemoryRead = Literal["allocator", "device"]
"""What a stack's readings of memory count: torch's allocator, as trainers print it, or the device (nvidia-smi)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a family of runs has in common: a table of ``catalog/validation/stacks.toml``."""

    name: str
    names: tuple[str, ...] = ()
    """What a file's ``stack`` column may say: whole names in lower case, marks as blanks, versions left out."""
    profile: str
    unfused_profile: str = "megatron-2021"
    """The profile of its years before fused attention."""
    compiled_profile: str = "compiled"
    """The profile under torch.compile."""
    old_experts: tuple[str, str] | None = None
    """A release, and the profile of earlier ones for mixtures of experts."""
    selective: Recompute = "attention"
    """What its selective recomputation is."""
    reduce_dtype: ReduceDtype = "fp32"
    cp_method: CpMethod = "allgather"
    memory_read: MemoryRead = "allocator"


FUSED_NORMS = ("rms kernel", "rmsnorm kernel", "fused rmsnorm", "fused norm", "apex")
"""Words of the kernel column that tell a fused RMSNorm; they select kernels, not a stack."""
NOT_COMPILED = ("eager", "fused_norm")
"""Kernels in whose place torch.compile puts its own."""
ATTENTIONS = ("flash", *get_args(AttentionKernel))
FUSED: tuple[AttentionKernel, ...] = ("flash2", "cudnn", "flash3", "cutlass")
"""Fused kernels in the order in which one stands for another that a GPU does not have."""


FOLDER = files("knee") / "catalog" / "validation"
LEFT_OUT, MOE_LEFT_OUT = "left_out.toml", "moe_left_out.toml"


@cache
def stacks() -> Mapping[str, Stack]:
    """Name -> stack, of all that the catalogue has."""
    tables = tomllib.loads((FOLDER / "stacks.toml").read_text(encoding="utf-8"))
    return {name: Stack(name=name, **table) for name, table in tables.items()}


def stack_of(setting: Setting) -> Stack:
    """The stack of the row's ``stack`` column; where that is empty or unknown, the one that its words for kernels tell:
    Transformer Engine's, or PyTorch's own, compiled or eager."""
    words = re.sub(r"[^a-z0-9]+", " ", setting.stack.lower()).split()
    while words and words[-1].removeprefix("v").isdigit():  # its version
        words.pop()
    generic = "Transformer Engine" if "transformer engine" in setting.kernel.lower() else "PyTorch"
    return next((stack for stack in stacks().values() if " ".join(words) in stack.names), stacks()[generic])


def profile_name(setting: Setting, stack: Stack | None = None) -> str:
    """The catalogue's profile of a row: its stack's, that of its years before fused attention, or the compiled one."""
    stack = stack or stack_of(setting)
    if setting.experts and stack.old_experts and is_before(setting.software, stack.old_experts[0]):
        return stack.old_experts[1]
    unfused = setting.attention == "unfused"
    return stack.unfused_profile if unfused else stack.compiled_profile if setting.compile else stack.profile


def is_before(software: str, release: str) -> bool:
    """Whether a version, such as v25.05.05, is earlier than a release; never, if it is none. Words may follow it."""
    found = re.match(r"v?(\d+(?:\.\d+)+)(?:,|$)", software.strip())
    if found is None:
        return False
    mine, other = ([int(n) for n in text.split(".")] for text in (found[1], release))
    return mine < other


def profile_of(setting: Setting, stack: Stack, gpu: Gpu, notes: list[str], given: Profile | None = None) -> Profile:
    """The catalogue's profile, or the one that was given, with the attention kernel that ran on this GPU."""
    if setting.attention not in ATTENTIONS:
        raise unknown_choice("attention", setting.attention, ATTENTIONS)
    unfused = setting.attention == "unfused"
    profile = given or catalog_profile(profile_name(setting, stack))
    if given is not None and setting.compile and given.kernels in NOT_COMPILED:
        notes.append(f"the run was compiled, so {profile.name} with compiled kernels is used")
        profile = replace(profile, kernels="compiled")
    said = _stated_attention(setting)
    wanted = said or ("flash2" if profile.attention == "unfused" else profile.attention)
    kernels = [kernel for kernel in (wanted, *FUSED) if kernel in gpu.attention]
    if not kernels or (unfused and kernels[0] != wanted):
        raise SpecError(f"no rate is known for {wanted} attention on {gpu.name}", code="no-rate", field="attention")
    if kernels[0] != wanted:
        notes.append(f"{wanted} attention on {gpu.name} is treated as {kernels[0]}, because its rate is unknown")
    return _as_stated(replace(profile, attention=kernels[0]), setting)


def _stated_attention(setting: Setting) -> AttentionKernel | None:
    """The attention kernel that the row names, in either column; None where it only says that it is fused."""
    if setting.attention != "flash":
        return next(kernel for kernel in get_args(AttentionKernel) if kernel == setting.attention)
    text = re.sub(r"[^a-z0-9]+", "", setting.kernel.lower())
    versions: dict[str, AttentionKernel] = {"flashattentionv1": "flash1", "flashattention1": "flash1"}
    # Triton's kernel of 2022 and 2023, which llm-foundry's and others' tables call by that name, is FlashAttention 1
    versions["tritonattention"] = "flash1"
    versions |= {"flashattention2": "flash2", "flashattentionv2": "flash2", "flashattention3": "flash3"}
    return next((kernel for word, kernel in versions.items() if word in text), None)


def _as_stated(profile: Profile, setting: Setting) -> Profile:
    """The profile with what the row states of kernels and overlap."""
    stated: dict[str, Any] = {}
    if profile.kernels == "eager" and any(word in setting.kernel.lower() for word in FUSED_NORMS):
        stated["kernels"] = "fused_norm"
    if setting.dp_overlap is not None:
        stated |= {"gather_overlap": setting.dp_overlap, "reduce_overlap": setting.dp_overlap}
    if setting.deals_by_cost is not None:
        stated["deals_by_cost"] = setting.deals_by_cost
    if profile.kernels in MEGATRON_KERNELS and setting.rope_fusion is False:
        stated["kernels"] = "fused_eager_latent"
    elif profile.kernels in MEGATRON_KERNELS and setting.router_fusion is not None:
        stated["kernels"] = "fused" if setting.router_fusion else "fused_eager_router"
    if setting.cuda_graphs:
        replayed = constant("published_runs", "graph_launch_frac")
        stated["launch_s"] = replayed * profile.launch_s
        # graphs hold no shapes that change: experts that drop no token stay outside, with the host's books of them
        if setting.routing == "drop":
            stated["expert_host_s"] = replayed * profile.expert_host_s
    return replace(profile, **stated) if stated else profile


@kept_for_a_question
def catalog_profile(name: str) -> Profile:
    """The profile of a name or a file, read once."""
    return load_profile(name).spec


# The part of a published run that mixtures of experts have: the file's words in knee's.

ROUTING_WORDS: dict[str, Routing] = {"forced_balance": "balanced", "balanced": "balanced", "drop": "balanced"}
ROUTING_WORDS |= {"dropless": "dropless"}
"""A file's word -> knee's. Tokens above the capacity are dropped, so that the load of each expert is its capacity."""


def experts_of(setting: Setting) -> Experts | None:
    """The experts of the row's model; None for a dense one."""
    if not setting.experts:
        return None
    if setting.top_k is None or setting.expert_ffn is None:
        name = "top_k" if setting.top_k is None else "expert_ffn"
        raise SpecError(f"experts is {setting.experts}, but {name} is empty", code="missing-field", field=name)
    return Experts(
        count=setting.experts,
        top_k=setting.top_k,
        ffn=setting.expert_ffn,
        shared_ffn=setting.shared_experts * setting.expert_ffn,
        dense_layers=setting.dense_layers,
        every=setting.moe_every,
    )


def latent_of(setting: Setting) -> LatentAttention | None:
    """The latent attention of the row's model; None where it has full keys and values."""
    if not setting.kv_lora_rank:
        return None
    sizes = {name: getattr(setting, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    for name, size in sizes.items():
        if size is None:
            text = f"kv_lora_rank is {setting.kv_lora_rank}, but {name} is empty"
            raise SpecError(text, code="missing-field", field=name)
    nope, rope, value = sizes.values()
    return LatentAttention(
        kv_rank=setting.kv_lora_rank, q_rank=setting.q_lora_rank or 0, nope_size=nope, rope_size=rope, value_size=value
    )


def expert_options(setting: Setting, notes: list[str]) -> Mapping[str, Any]:
    """The plan's part: degrees, dispatcher, overlap and routing."""
    if setting.dispatcher not in ("", *DISPATCHERS):
        raise unknown_choice("dispatcher", setting.dispatcher, DISPATCHERS)
    if setting.routing not in ("", *ROUTING_WORDS):
        raise unknown_choice("routing", setting.routing, ROUTING_WORDS)
    if not setting.dispatcher:
        notes.append("dispatcher defaulted to alltoall: the source does not state it")
    if not setting.routing:
        notes.append("routing defaulted to balanced: the source does not state it")
    routing = ROUTING_WORDS.get(setting.routing, "balanced")
    degrees = {"ep": setting.ep, "etp": setting.etp, "ep_overlap": setting.ep_overlap}
    return {**degrees, "dispatcher": setting.dispatcher or "alltoall", "routing": routing}


SHARDING_WORDS = dict.fromkeys(("zero3", "fsdp1", "fsdp2", "fullyshard", "fullshard"), "fsdp")
SHARDING_WORDS |= {"hybridshard": "hsdp", "distributedoptimizer": "zero1", "noshard": "ddp"}
SHARDING_WORDS |= {"shardgradop": "fsdp_no_reshard"}
"""Others' words, without their marks -> knee's nearest."""
_MARKETING = re.compile(r"nvidia|amd|instinct|tesla|gpu|tensor|core|dgx|hgx|oam|sxm[2-6]?|hbm[23]e?")
"""Words of a GPU's full name that tell no two of the catalogue apart."""
RECOMPUTE: dict[str, tuple[Recompute, float, str | None]] = {
    "none": ("none", 1.0, None),
    "attention": ("attention", 1.0, None),
    "selective": ("attention", 1.0, None),
    "ops": ("ops", 1.0, None),
    "op": ("ops", 1.0, None),
    "full": ("full", 1.0, None),
    "unknown": ("none", 1.0, "the source does not state it"),
    "blocks": ("blocks", 0.5, "every second block, because nothing else is stated"),
    "mlp": (
        "blocks",
        constant("published_runs", "mlp_recompute_frac"),
        "the matrix products into the MLP are recomputed, slightly more than half of a layer's forward pass",
    ),
}
"""A file's word -> knee's nearest, the share that is run again, and why where it is not the same."""
SAME_OPTIONS = ("tp", "pp", "cp", "micro_batch", "sequence_parallel", "state_dtype", "moment_dtype")
SAME_SHAPE = ("layers", "hidden", "heads", "tied_embeddings", "mlp_bias", "window", "layer_pattern", "mtp_layers")
"""Columns that a plan's options, and a model's fields, have under the same names."""
DEFAULT_VOCAB = 32_000
MEMORY_FRAC = 0.05
"""Two readings of one GPU's memory differ by less."""
ROUNDED = 1.01
"""A reading of all memory may be rounded up."""
MOST_STAGES = 256
"""Stages times chunks of a pipeline that is predicted; one row with many more would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """A job that stands for a run."""

    job: Job
    stack: str
    notes: tuple[str, ...]
    """What had to be assumed."""
    memory_read: MemoryRead = "device"
    """What its reading of memory counts."""


def job_of(setting: Setting, *, profile: Profile | None = None, cluster: Cluster | None = None) -> RunJob:
    """The run as knee would be asked for it, SpecError where it cannot be; a profile or a cluster that is given stands
    in place of what the row says."""
    if setting.pp * setting.virtual_pp > MOST_STAGES:
        text = f"pp({setting.pp}) * virtual_pp({setting.virtual_pp}) is more than {MOST_STAGES:,} stages"
        raise SpecError(text, code="too-many-stages", field="pp")
    notes: list[str] = []
    stack = stack_of(setting)
    where = cluster_of(setting) if cluster is None else _given_cluster(setting, cluster, notes)
    if setting.gpu in loose_gpu_aliases() and cluster is None:
        notes.append(f"gpu {setting.gpu} is treated as {loose_gpu_aliases()[setting.gpu]}")
    model = _model(setting, notes)
    software = profile_of(setting, stack, where.gpu, notes, profile)
    options = {
        **{name: getattr(setting, name) for name in SAME_OPTIONS},
        "virtual_stages": setting.virtual_pp,
        "schedule": usual_schedule(setting.virtual_pp).name,
        **_recompute(setting, stack, notes),
        # bf16 where the row does not say it, or fp16 where the GPU has none
        "precision": _precision(setting),
        "cp_method": stack.cp_method,
        "reduce_dtype": setting.reduce_dtype or ("fp32" if setting.precision == "fp16" else stack.reduce_dtype),
        "tp_overlap_frac": _tp_overlap(setting, software),
        **_data_parallel(setting, where.node.gpus, notes),
        **(expert_options(setting, notes) if setting.experts else {}),
    }
    global_batch, seq_len = setting.global_batch, setting.seq_len
    job, filled = make_job(
        model, where, software, gpus=setting.n_gpus, global_batch=global_batch, seq_len=seq_len, plan_options=options
    )
    name = stack.name if profile is None else profile.name
    return RunJob(job=job, stack=name, notes=(*notes, *filled), memory_read=stack.memory_read)


def check_memory(run: PublishedRun, asked: RunJob) -> None:
    """Refuse a reading of more memory than the GPU has."""
    gpu = asked.job.cluster.gpu
    if run.memory_bytes is not None and run.memory_bytes > ROUNDED * gpu.hbm_bytes:
        text = f"memory_gib is {run.memory_bytes / GIB:.4g}, but {gpu.name} has {gpu.hbm_bytes / GIB:.4g}"
        raise SpecError(text, code="out-of-range", field="memory_gib")


def gpu_key(text: str) -> str | None:
    """The catalogue's alias for a name as vendors, drivers and clouds write it: NVIDIA H100 80GB HBM3 is h100-80gb."""
    text, known = text.lower().strip(), gpu_aliases()
    if text in known:
        return text
    words = re.sub(r"(\d) gb\b", r"\1gb", re.sub(r"[^a-z0-9]+", " ", text)).split()
    key = "-".join(word for word in words if not _MARKETING.fullmatch(word))
    return key if key in known else None


def unknown_gpu(text: str) -> SpecError:
    """The refusal of a GPU that the catalogue does not have."""
    known = gpu_aliases()
    close = did_you_mean(text, known)
    guess = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
    return SpecError(f"the GPU {text!r} is unknown; {guess}", code="unknown-choice", field="gpu")


def too_many_in_node(per_node: int, cluster: Cluster) -> SpecError:
    """The refusal of more GPUs per node than a server with this GPU has."""
    text = f"gpus_per_node is {per_node}, but a server with {cluster.gpu.name} has {cluster.node.gpus}"
    return SpecError(text, code="out-of-range", field="gpus_per_node")


def cluster_of(setting: Setting) -> Cluster:
    """The catalogue's cluster with the run's own nodes and injection bandwidth."""
    fabric = fabric_aliases().get(setting.fabric)
    return _cluster(gpu_key(setting.gpu) or setting.gpu, setting.gpus_per_node, setting.node_bytes_per_s, fabric)


@lru_cache(maxsize=4096)
def _cluster(gpu: str, gpus_per_node: int | None, node_bytes_per_s: float | None, like: str | None) -> Cluster:
    """One object for equal arguments; ``like`` is the cluster whose kind of network it has."""
    if gpu not in gpu_aliases():
        raise unknown_gpu(gpu)
    base = load_cluster(gpu_aliases()[gpu]).spec
    if like is not None:
        base = replace(base, fabric=_of_kind(base.fabric, load_cluster(like).spec.fabric))
    return _with_nodes(base, gpu, gpus_per_node, node_bytes_per_s)


def _with_nodes(base: Cluster, gpu: str, gpus_per_node: int | None, node_bytes_per_s: float | None) -> Cluster:
    per_node = gpus_per_node or base.node.gpus
    if per_node > base.node.gpus:
        raise too_many_in_node(per_node, base)
    fabric = base.fabric
    if node_bytes_per_s is not None:
        fabric = replace(fabric, nic_bytes_per_s=node_bytes_per_s / per_node)
    return replace(
        base,
        name=f"{base.name} ({gpu}, {per_node} per node, {fabric.kind} at {fabric.nic_bytes_per_s * 8e-9:g} "
        "Gbit/s per GPU)",
        node=replace(base.node, gpus=per_node),
        fabric=fabric,
    )


def _given_cluster(setting: Setting, cluster: Cluster, notes: list[str]) -> Cluster:
    """The cluster that was given, if it has the row's GPU, with the row's own nodes and injection bandwidth."""
    key = gpu_key(setting.gpu)
    if key is None:
        notes.append(f"gpu {setting.gpu!r} is treated as the {cluster.gpu.name} of {cluster.name}")
    else:
        gpu = load_cluster(gpu_aliases()[key]).spec.gpu
        # what a probe reads of the memory is a little less than what is sold
        if gpu.name != cluster.gpu.name or abs(gpu.hbm_bytes / cluster.gpu.hbm_bytes - 1.0) > MEMORY_FRAC:
            text = f"the GPU is {setting.gpu}, but {cluster.name} has the GPU {cluster.gpu.name}"
            raise SpecError(text, code="other-gpu", field="gpu")
    return _with_nodes(cluster, cluster.gpu.name, setting.gpus_per_node, setting.node_bytes_per_s)


def _of_kind(fabric: Fabric, like: Fabric) -> Fabric:
    """The fabric with the latency and efficiency of another kind, and its own switches and rate."""
    rate, aware = fabric.nic_bytes_per_s, fabric.topology_aware
    return replace(like, nic_bytes_per_s=rate, tiers=fabric.tiers, topology_aware=aware)


def _model(setting: Setting, notes: list[str]) -> Model:
    """A Llama where the MLP is SwiGLU, a GPT otherwise; MPT and Nemotron by their names."""
    mlp = next((word for word in get_args(Mlp) if word == setting.mlp), None)
    if mlp is None:
        raise unknown_choice("mlp", setting.mlp, get_args(Mlp))
    llama, mpt = mlp == "swiglu", "mpt" in setting.model.lower()
    if setting.vocab is None:
        notes.append(f"vocab defaulted to {DEFAULT_VOCAB:,}")
    if setting.ffn is None:
        notes.append("ffn defaulted to 4 x hidden, or 8/3 x hidden for swiglu")
    return Model(
        name=setting.model,
        ffn=setting.ffn or (256 * -(-8 * setting.hidden // 768) if llama else 4 * setting.hidden),
        kv_heads=setting.kv_heads or setting.heads,
        vocab=setting.vocab or DEFAULT_VOCAB,
        mlp=mlp,
        norm="rmsnorm" if llama else "layernorm",
        positions="alibi" if mpt else "rope" if mlp != "gelu" else "learned",
        biases=mlp == "gelu" and not mpt,
        max_seq_len=setting.seq_len,
        head_size=0 if setting.kv_lora_rank else setting.head_dim or 0,
        experts=experts_of(setting),
        latent_attention=latent_of(setting),
        **{name: getattr(setting, name) for name in SAME_SHAPE},
    )


def _recompute(setting: Setting, stack: Stack, notes: list[str]) -> Mapping[str, Any]:
    modules = setting.recompute.split("+")
    if set(modules) <= set(RECOMPUTE_MODULES) and (setting.experts or "+" in setting.recompute):
        return {"recompute": "modules", "recompute_modules": tuple(modules)}
    if setting.recompute not in RECOMPUTE:
        raise unknown_choice("recompute", setting.recompute, RECOMPUTE)
    word, share, why = RECOMPUTE[setting.recompute]
    if setting.recompute == "selective" and stack.selective != word:
        word, why = stack.selective, f"{stack.name}'s selective policy keeps attention and every second matrix product"
    if why is not None:
        part = "" if share == 1 else f" of {share:.0%}"
        notes.append(f"recompute {setting.recompute} is treated as {word}{part}: {why}")
    return {"recompute": word, "recompute_frac": share}


def _tp_overlap(setting: Setting, profile: Profile) -> float | None:
    """Share of tensor-parallel communication that hides, where the row states whether it does."""
    if setting.async_tp or setting.tp_overlap:
        return profile.tp_overlap_frac or constant("published_runs", "async_tp_frac")
    return 0.0 if setting.tp_overlap is False else None


def _precision(setting: Setting) -> str | None:
    if setting.precision is not None and setting.precision not in PRECISIONS:
        raise unknown_choice("precision", setting.precision, PRECISIONS)
    return setting.precision


def _data_parallel(setting: Setting, per_node: int, notes: list[str]) -> Mapping[str, Any]:
    """Sharding and its two degrees; ``shard_group`` is the sharded one, copies fill the rest."""
    sharding = _sharding(setting.sharding or "fsdp", notes)
    if setting.sharding is None:
        notes.append("sharding defaulted to fsdp")
    dp = setting.dp or max(1, setting.n_gpus // (setting.tp * setting.pp * setting.cp))
    if sharding == "ddp" and (setting.shard_group or 1) > 1:
        text = f"sharding is ddp, which shards nothing, but shard_group is {setting.shard_group}"
        raise SpecError(text, code="contradiction", field="shard_group")
    if sharding == "ddp":
        return {"sharding": sharding, "dp_shard": 1, "dp_replicate": dp}
    group = setting.shard_group
    if group is None:
        group = min(dp, per_node) if sharding == "hsdp" else dp
        if sharding == "hsdp":
            notes.append("shard_group defaulted to one node (hsdp)")
    if dp % group:
        raise SpecError(f"shard_group {group} does not divide dp {dp}", code="does-not-divide", field="shard_group")
    copies = dp // group
    if sharding == "hsdp" and (copies == 1 or group == 1):
        notes.append("hsdp with one copy or one shard is treated as fsdp or ddp")
        return {"sharding": "fsdp" if copies == 1 else "ddp", "dp_shard": group, "dp_replicate": copies}
    if sharding == "fsdp" and copies > 1:
        sharding = "hsdp"
    return {"sharding": sharding, "dp_shard": group, "dp_replicate": copies}


def _sharding(text: str, notes: list[str]) -> str:
    """knee's word for it; others' words are told."""
    bare = re.sub(r"[^a-z0-9]", "", text)
    for word in SHARDINGS:
        if text == word or bare == word.replace("_", ""):
            return word
    if bare in SHARDING_WORDS:
        notes.append(f"sharding {text} is treated as {SHARDING_WORDS[bare]}")
        return SHARDING_WORDS[bare]
    raise unknown_choice("sharding", text, SHARDINGS)


@cache
def left_out_profiles(name: str = LEFT_OUT) -> Mapping[str, Mapping[str, Profile]]:
    """Source -> name of a profile that its rows have -> the one that stands for it, fitted without the source.

    It is the profile of the source's own stack where other sources have that stack, and a generic one else, so that
    facts learned from the source are gone too. tools/fit_published.py writes the file; tools/fit_moe_runs.py writes
    that of mixtures of experts.
    """
    tables = tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
    return {
        source: {name: replace(catalog_profile(table.pop("profile")), **table) for name, table in profiles.items()}
        for source, profiles in tables.items()
    }


def unseen_job_of(setting: Setting) -> RunJob:
    """The run as knee would be asked for it if nothing of its source were known."""
    table = left_out_profiles(MOE_LEFT_OUT if setting.experts else LEFT_OUT)
    return job_of(setting, profile=table.get(setting.source, {}).get(profile_name(setting)))
