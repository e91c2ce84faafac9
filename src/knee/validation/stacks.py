"""Software stacks of published runs: from what a row says of its kernels to a profile of the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

from knee.errors import SpecError
from knee.specs.hardware import AttentionKernel, Gpu
from knee.specs.load import load_profile
from knee.specs.plan import CpMethod, ReduceDtype
from knee.specs.profile import Profile
from knee.validation.csv_cells import unknown_choice
from knee.validation.published_runs import Setting

MemoryRead = Literal["allocator", "device"]
"""What a stack's readings of memory count: torch's allocator, as trainers print it, or the device (nvidia-smi)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a family of runs has in common."""

    name: str
    words: tuple[str, ...]
    """Any of them, as whole words, in the row's kernel, source or note tells it; the first stack of the table that
    matches. Marks count as blanks."""
    profile: str
    unfused_profile: str = "megatron-2021"
    """The profile of its years before fused attention."""
    compiled_profile: str = "compiled"
    """The profile under torch.compile."""
    attention: AttentionKernel | None = None
    """Fused attention kernel where it is not the profile's."""
    reduce_dtype: ReduceDtype = "fp32"
    cp_method: CpMethod = "allgather"
    memory_read: MemoryRead = "allocator"


STACKS = (
    Stack(name="nanotron", words=("nanotron",), profile="nanotron"),
    # "PURE" is llm-foundry's word for parameters, reductions and buffers all in 16 bit
    Stack(
        name="llm-foundry, pure",
        words=("mp mode pure",),
        profile="llm-foundry",
        attention="flash1",
        reduce_dtype="bf16",
    ),
    Stack(name="llm-foundry", words=("llm foundry",), profile="llm-foundry", attention="flash1"),
    # reduces gradients in bf16 (fms_fsdp/policies/mixed_precision.py, bfSixteen)
    Stack(
        name="fms-fsdp",
        words=("fms", "ibm fsdp"),
        profile="fms-fsdp",
        compiled_profile="fms-fsdp-compiled",
        reduce_dtype="bf16",
    ),
    # reduces gradients as they are (internlm/solver/optimizer/hybrid_zero_optim.py); only the states are fp32
    Stack(name="InternEvo", words=("internevo", "internlm"), profile="internevo", reduce_dtype="bf16"),
    Stack(
        name="Megatron-DeepSpeed",
        words=("megatron deepspeed",),
        profile="megatron-deepspeed",
        unfused_profile="megatron-deepspeed",
        compiled_profile="megatron-deepspeed",
        attention="flash2",
        cp_method="ring",
        memory_read="device",
    ),
    # the benchmarks reduce gradients in bf16 (NeMo-Framework-Launcher, examples/training: optim.grad_sync_dtype=bf16)
    Stack(name="NeMo", words=("nemo",), profile="nemo", compiled_profile="nemo", reduce_dtype="bf16", cp_method="ring"),
    # Transformer Engine passes keys and values around a ring
    Stack(
        name="Megatron",
        words=("megatron", "transformer engine", "korthikanti", "korthikanti2022"),
        profile="fused",
        compiled_profile="fused",
        cp_method="ring",
    ),
    Stack(name="XLA", words=("maxtext", "paxml", "jax"), profile="xla", compiled_profile="xla", reduce_dtype="bf16"),
)
PLAIN = Stack(name="PyTorch", words=(), profile="eager")
"""What is taken where nothing is said."""
ATTENTIONS = ("flash", *get_args(AttentionKernel))
FUSED: tuple[AttentionKernel, ...] = ("flash2", "cudnn", "flash3", "cutlass")
"""Fused kernels in the order in which one stands for another that a GPU does not have."""


def stack_of(setting: Setting) -> Stack:
    """The stack that a row's words tell."""
    text = re.sub(r"[^a-z0-9]+", " ", f" {setting.kernel} {setting.source} {setting.note} ".lower())
    return next((stack for stack in STACKS if any(f" {word} " in text for word in stack.words)), PLAIN)


def profile_of(setting: Setting, stack: Stack, gpu: Gpu, notes: list[str], given: Profile | None = None) -> Profile:
    """The catalogue's profile, or the one that was given, with the attention kernel that ran on this GPU."""
    if setting.attention not in ATTENTIONS:
        raise unknown_choice("attention", setting.attention, ATTENTIONS)
    unfused = setting.attention == "unfused"
    name = stack.unfused_profile if unfused else stack.compiled_profile if setting.compile else stack.profile
    profile = given or catalog_profile(name)
    if given is not None and setting.compile and given.kernels == "eager":
        raise SpecError(
            f"it was compiled, and the kernels of {given.name} are not", code="other-kernels", field="compile"
        )
    said = None if setting.attention == "flash" else setting.attention
    wanted = said or (stack.attention if given is None else None) or profile.attention
    kernels = [kernel for kernel in (wanted, *FUSED) if kernel in gpu.attention]
    if not kernels or (unfused and kernels[0] != wanted):
        raise SpecError(f"no rate is known for {wanted} attention on {gpu.name}", code="no-rate", field="attention")
    if kernels[0] != wanted:
        notes.append(f"{wanted} attention on {gpu.name}: taken as {kernels[0]}, as no rate is known")
    return replace(profile, attention=kernels[0])


@cache
def catalog_profile(name: str) -> Profile:
    """The profile of a name or a file, read once."""
    return load_profile(name).spec
