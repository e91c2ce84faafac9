"""Software stacks of published runs: from the stack that a row names, or its words for kernels, to a profile."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from knee.base.errors import SpecError
from knee.specs.constants import constant
from knee.specs.hardware import AttentionKernel, Gpu
from knee.specs.kept_files import kept_for_a_question
from knee.specs.load import load_profile
from knee.specs.plan import CpMethod, ReduceDtype
from knee.specs.profile import MEGATRON_KERNELS, Profile
from knee.trust.validation.csv_cells import unknown_choice
from knee.trust.validation.published_runs import Setting

MemoryRead = Literal["allocator", "device"]
"""What a stack's readings of memory count: torch's allocator, as trainers print it, or the device (nvidia-smi)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a family of runs has in common."""

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
    reduce_dtype: ReduceDtype = "fp32"
    cp_method: CpMethod = "allgather"
    memory_read: MemoryRead = "allocator"


STACKS = (
    Stack(name="nanotron", names=("nanotron",), profile="nanotron"),
    Stack(name="llm-foundry", names=("llm foundry", "composer"), profile="llm-foundry"),
    # reduces gradients in bf16 (fms_fsdp/policies/mixed_precision.py, bfSixteen)
    Stack(
        name="fms-fsdp",
        names=("fms fsdp",),
        profile="fms-fsdp",
        compiled_profile="fms-fsdp-compiled",
        reduce_dtype="bf16",
    ),
    # reduces gradients as they are (internlm/solver/optimizer/hybrid_zero_optim.py); only the states are fp32
    Stack(name="InternEvo", names=("internevo", "internlm"), profile="internevo", reduce_dtype="bf16"),
    Stack(
        name="Megatron-DeepSpeed",
        names=("megatron deepspeed",),
        profile="megatron-deepspeed",
        unfused_profile="megatron-deepspeed",
        compiled_profile="megatron-deepspeed",
        cp_method="ring",
        memory_read="device",
    ),
    # the benchmarks reduce gradients in bf16 (NeMo-Framework-Launcher, examples/training: optim.grad_sync_dtype=bf16)
    Stack(
        name="NeMo",
        names=("nemo", "nvidia nemo", "megatron bridge", "nemo framework"),
        profile="nemo",
        compiled_profile="nemo",
        old_experts=("25.09", "nemo-early-2025"),
        reduce_dtype="bf16",
        cp_method="ring",
    ),
    # Transformer Engine passes keys and values around a ring
    Stack(
        name="Megatron",
        names=("megatron", "megatron lm", "megatron core"),
        profile="fused",
        unfused_profile="megatron-lm-2022",
        compiled_profile="fused",
        old_experts=("0.14", "megatron-core-2025"),
        cp_method="ring",
    ),
    Stack(
        name="XLA", names=("maxtext", "paxml", "jax", "xla"), profile="jax", compiled_profile="jax", reduce_dtype="bf16"
    ),
    Stack(
        name="torchtitan",
        names=("torchtitan",),
        profile="eager",
        unfused_profile="eager",
        compiled_profile="torchtitan",
    ),
    Stack(
        name="AA-Scaling",
        names=("aa scaling", "aa scaling megatron style pytorch"),
        profile="aa-scaling",
        unfused_profile="aa-scaling",
        reduce_dtype="bf16",
    ),
)
PYTORCH = Stack(name="PyTorch", profile="eager", unfused_profile="eager")
TRANSFORMER_ENGINE = Stack(
    name="Transformer Engine", profile="fused", unfused_profile="fused", compiled_profile="fused", cp_method="ring"
)
FUSED_NORMS = ("rms kernel", "rmsnorm kernel", "fused rmsnorm", "fused norm", "apex")
"""Words of the kernel column that tell a fused RMSNorm; they select kernels, not a stack."""
NOT_COMPILED = ("eager", "fused_norm")
"""Kernels in whose place torch.compile puts its own."""
ATTENTIONS = ("flash", *get_args(AttentionKernel))
FUSED: tuple[AttentionKernel, ...] = ("flash2", "cudnn", "flash3", "cutlass")
"""Fused kernels in the order in which one stands for another that a GPU does not have."""


def stack_of(setting: Setting) -> Stack:
    """The stack of the row's ``stack`` column; a generic one where that is empty or nobody's known."""
    words = re.sub(r"[^a-z0-9]+", " ", setting.stack.lower()).split()
    while words and words[-1].removeprefix("v").isdigit():  # its version
        words.pop()
    return next((stack for stack in STACKS if " ".join(words) in stack.names), generic_stack(setting))


def generic_stack(setting: Setting) -> Stack:
    """What stands for a stack that is not known, by the words for its kernels: Transformer Engine's, or PyTorch's own,
    compiled or eager."""
    return TRANSFORMER_ENGINE if "transformer engine" in setting.kernel.lower() else PYTORCH


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
