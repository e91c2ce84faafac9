"""What the kernels of a layer depend on, as columns over plans."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.specs.plan import RESHARDING, SHARDINGS
from knee.specs.plan_table import PlanTable
from knee.specs.profile import Profile

BYTES = 2.0  # activations are 16-bit; fp8 and NVFP4 keep them so outside their products


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Shapes:
    """How fp8 layers cast and gather, as columns over plans: 1 where they do, else 0."""

    eight_bit: Floats
    """A layer's products are fp8."""
    rowwise: Floats
    """Each row that a product sums over has a scale of its own."""
    shared_casts: bool
    smallest: int
    forward_scale: float
    state_bytes: Floats
    """Of a parameter as the optimizer keeps it."""
    shards: Floats
    """Ranks that share a weight under FSDP; else 1."""
    gathered: Floats
    """Weights are cast by their shards and gathered in fp8."""
    reshards: Floats
    """They are, in every pass."""
    casts_gathered: Floats
    """Weights are gathered in 16 bit, and cast in every forward."""
    gathers_tokens: Floats
    """Sequence parallelism gathers activations and gradients in fp8."""

    @property
    def columns(self) -> list[Floats]:
        """Columns of which rows with equal values cast alike."""
        return [value for f in fields(self) if isinstance(value := getattr(self, f.name), np.ndarray)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes that the plan gives to the kernels of a layer."""

    tokens: Floats
    """Tokens of a microbatch on one context-parallel rank."""
    sequences: Floats
    """Sequences of a microbatch."""
    seq_len: Floats
    """Whole sequence, before context parallelism."""
    tp: Floats
    cp: Floats
    ep: Floats
    etp: Floats
    kv_block: Floats
    """Keys that one attention kernel sees: the whole sequence, or a ring step's block of it."""
    norm_tokens: Floats
    """Tokens that norms and residuals work on: cut by tp under sequence parallelism."""
    busiest: Floats
    """Tokens that the busiest expert-parallel rank computes, over the mean."""
    permuted_rows: Floats
    """Tokens that are put into the order of their experts and back, on both sides of the network."""
    preprocess_kernels: Floats
    """Kernels of the router that the dispatcher has in a kernel of its own."""
    eight_bit: Floats
    """1 where a layer's products are fp8, else 0; the output projection stays in 16 bit."""
    four_bit: Floats
    """1 where they are NVFP4, else 0."""
    casts_narrow: Floats
    """1 where fp8 or NVFP4 weights are cast in every pass, because each pass gathers them in 16 bit; else their copy is
    kept."""
    casts: Floats
    """1 where every forward casts whole fp32 weights and every backward their gradients, else 0."""
    fp8: Fp8Shapes | None = None
    """None if no plan has fp8 layers."""


def on_one_gpu(profile: Profile | None, table: PlanTable) -> Bools:
    """Plans of one GPU that run under FSDP2, because it was asked for by name."""
    if profile is None or not np.any(profile.fsdp_on_one_gpu):
        return np.zeros(len(table), dtype=np.bool_)
    asked = np.isin(table.sharding, [SHARDINGS.index(mode) for mode in RESHARDING])
    return np.asarray(asked & (table.gpus == 1) & profile.fsdp_on_one_gpu, dtype=np.bool_)
