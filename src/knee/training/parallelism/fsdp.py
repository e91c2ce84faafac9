"""FSDP2 over a decoder's blocks, with the plan's resharding, prefetch and types."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from knee.training.parallelism.decoder import Decoder
from knee.training.parallelism.fp8.shards import ShardedWeight, gathered_in_fp8
from knee.training.parallelism.mesh import Mesh
from knee.training.parallelism.precision import TYPES
from knee.training.parallelism.trainer_job import TrainJob


def shard(decoder: Decoder, job: TrainJob, mesh: Mesh) -> None:
    """One group per block; embedding, last norm and head are the root's, which is never resharded in forward because
    backward begins with it."""
    policy = MixedPrecisionPolicy(
        param_dtype=TYPES[job.dtype],
        reduce_dtype=TYPES[job.plan.reduce_dtype],
        # angles stay in fp32; activations already have the type
        cast_forward_inputs=False,
    )
    reshards = job.plan.sharding in ("fsdp", "hsdp")
    local: set[Any] = set()
    for experts in experts_apart(decoder, mesh):
        if mesh.experts.sharded is None:
            local.update(experts.parameters())
        else:
            fully_shard(experts, mesh=mesh.experts.sharded, reshard_after_forward=reshards, mp_policy=policy)
    for block in decoder.blocks.values():
        if block.quantized is not None and block.quantized.rules.gathers:
            gathered_in_fp8(block, block.quantized.names)
        fully_shard(block, mesh=mesh.sharded, reshard_after_forward=reshards, mp_policy=policy, ignored_params=local)
    fully_shard(decoder, mesh=mesh.sharded, reshard_after_forward=False, mp_policy=policy, ignored_params=local)
    _prefetch(decoder, job.plan.prefetch)


def experts_apart(decoder: Decoder, mesh: Mesh) -> list[Any]:
    """The experts of all blocks, where they are spread over other ranks than the rest."""
    blocks = decoder.blocks.values() if mesh.experts.apart else ()
    return [block.moe.experts for block in blocks if block.moe is not None]


def _prefetch(decoder: Any, ahead: int) -> None:
    """Gather so many blocks ahead, in forward and in backward.

    Without, FSDP2 would still gather the next block early in backward; a block that names itself has nothing to gather.
    In forward the host's lead over the GPU may start a gather early all the same.
    """
    blocks = list(decoder.blocks.values())
    order = [decoder, *blocks]
    for i, module in enumerate(order):
        later, earlier = order[i + 1 : i + 1 + ahead], order[max(1, i - ahead) : i][::-1]
        if later:
            module.set_modules_to_forward_prefetch(_with_experts(later))
        if earlier or not ahead:
            module.set_modules_to_backward_prefetch(_with_experts(earlier) or [module])
    if ahead:
        decoder.set_modules_to_backward_prefetch(_with_experts(blocks[::-1][:ahead]))


def _with_experts(blocks: list[Any]) -> list[Any]:
    """Blocks, each with the experts that are gathered over another mesh."""
    found = []
    for block in blocks:
        found.append(block)
        if block.moe is not None and isinstance(block.moe.experts, FSDPModule):
            found.append(block.moe.experts)
    return found


def before_microbatch(decoder: Any, job: TrainJob, *, last: bool) -> None:
    """What this microbatch's backward does with gradients and parameters.

    Plans that keep parameters gathered keep them (and the whole gradients) until the last microbatch; plans that
    reshard reduce every microbatch's gradients, and only replicas wait for the last.
    """
    decoder.set_is_last_backward(last)
    if job.plan.sharding in ("fsdp", "hsdp"):
        decoder.set_requires_all_reduce(last)
    else:
        decoder.set_requires_gradient_sync(last)
        decoder.set_reshard_after_backward(last)


def place(local: Any, whole: Any, sharded: Any) -> None:
    """Copy this rank's rows of a weight into its shard."""
    last = sharded.ndim - 1  # a flattened mesh of torch 2.11 knows no dimension -1
    ranks, rank = sharded.size(last), sharded.get_local_rank(last)
    rows = -(-whole.shape[0] // ranks)
    local.copy_(whole[rank * rows : (rank + 1) * rows])


def local_part(tensor: Any) -> Any:
    """What of a parameter or gradient lies on this rank."""
    shard = shard_of(tensor)
    return shard.inner if isinstance(shard, ShardedWeight) else shard


def shard_of(tensor: Any) -> Any:
    """The same, in the class that FSDP2 gathers it by."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def shards_in_fp8(decoders: list[Decoder]) -> list[list[ShardedWeight]]:
    """The parts on this rank of the weights of each block that are gathered in fp8."""
    blocks = (block for decoder in decoders for block in decoder.blocks.values())
    shards = ([shard_of(p) for p in block.parameters()] for block in blocks)
    found = [[shard for shard in block if isinstance(shard, ShardedWeight)] for block in shards]
    return [block for block in found if block]
