"""Plain data parallelism (ddp): every rank has all of its stage's weights, gradients are averaged block by block.

Our own rather than torch's DistributedDataParallel, whose buckets ignore blocks and which does not know of pipelines;
and rather than FSDP2 with shards of the whole, which would copy every weight to gather it from itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from knee.training.parallelism.fsdp import experts_apart
from knee.training.parallelism.mesh import Mesh


class Replicas:
    """Averages gradients over copies, a block at a time, beside the backward of the blocks before it."""

    def __init__(self, decoders: list[Any], mesh: Mesh, microbatches: int, reduce_dtype: Any) -> None:
        self.reduce_dtype = reduce_dtype
        self.buckets: list[_Bucket] = []
        for decoder in decoders:
            apart = [list(experts.parameters()) for experts in experts_apart(decoder, mesh)]
            elsewhere = {p for parameters in apart for p in parameters}
            own = [p for name, p in decoder.named_parameters() if not name.startswith("blocks.")]
            blocks = [[p for p in b.parameters() if p not in elsewhere] for b in decoder.blocks.values()]
            groups = [(mesh.copies, [*blocks, own]), (mesh.experts.copies, apart)]
            self.buckets += [
                _Bucket(parameters, microbatches, self, group)
                for group, some in groups
                for parameters in some
                if parameters and group is not None
            ]

    def finish(self) -> None:
        """Wait for all averages; start those whose gradients came without autograd's hooks (zero bubble)."""
        for bucket in self.buckets:
            bucket.finish()


class _Bucket:
    def __init__(self, parameters: list[Any], microbatches: int, replicas: Replicas, group: Any) -> None:
        self.parameters, self.replicas, self.group = parameters, replicas, group
        self.expected, self.seen = len(parameters) * microbatches, 0
        self.flat: Any = None
        self.work: Any = None
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, _: Any) -> None:
        self.seen += 1
        if self.seen == self.expected:
            self._start()

    def _start(self) -> None:
        self.flat = torch.cat([p.grad.flatten() for p in self.parameters]).to(self.replicas.reduce_dtype)
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    def finish(self) -> None:
        if self.work is None:
            self._start()
        self.work.wait()
        self.flat /= dist.get_world_size(self.group)
        parts = self.flat.split([p.numel() for p in self.parameters])
        grads = [p.grad for p in self.parameters]
        torch._foreach_copy_(grads, [part.view_as(g) for part, g in zip(parts, grads, strict=True)])
        self.seen, self.flat, self.work = 0, None, None
