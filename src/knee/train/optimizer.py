"""AdamW on the parts that lie on this rank, and the norm of the whole gradient for clipping."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from knee.train.compat import all_reduce, scaled_fused_step
from knee.train.fsdp import local_part
from knee.train.job import TrainJob
from knee.train.mesh import Mesh
from knee.train.tensor_parallel import CUT_DIM

BETAS, WEIGHT_DECAY, EPS = (0.9, 0.95), 0.1, 1e-8


class Optimizer:
    """Fused AdamW over local tensors: no DTensor is on its way, and one pass clips, unscales and updates."""

    def __init__(self, decoders: list[Any], job: TrainJob, mesh: Mesh) -> None:
        self.mesh, self.clip_norm = mesh, job.clip_norm
        named = [(name, p) for decoder in decoders for name, p in decoder.named_parameters()]
        self.parameters = [p for _, p in named]
        self.locals = [local_part(p).detach() for p in self.parameters]
        whole = [name.rsplit(".", 1)[-1] not in CUT_DIM for name, _ in named]
        self._cut = [i for i, x in enumerate(self.locals) if x.numel() and not whole[i]]
        self._whole = [i for i, x in enumerate(self.locals) if x.numel() and whole[i]]
        # norms see a part of the tokens where the sequence is split
        self._partial = self._whole if mesh.size("tp") > 1 and job.plan.sequence_parallel else []
        self.adamw = torch.optim.AdamW(
            [self.locals[i] for i in sorted(self._cut + self._whole)],
            lr=job.lr,
            betas=BETAS,
            eps=EPS,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )

    def take_gradients(self) -> None:
        """Hand the gradients over, whole where tensor parallelism left parts."""
        for x, p in zip(self.locals, self.parameters, strict=True):
            x.grad = local_part(p.grad)
        if self._partial:
            parts = [self.locals[i].grad for i in self._partial]
            group = self.mesh.group("tp")
            assert group is not None
            flat = all_reduce(torch.cat([g.flatten() for g in parts]), group)
            sums = flat.split([g.numel() for g in parts])
            torch._foreach_copy_(parts, [s.view_as(g) for s, g in zip(sums, parts, strict=True)])

    def norm_and(self, loss: Any) -> tuple[Any, Any]:
        """The norm of the whole gradient, and ``loss`` summed over ranks: one small message for both.

        Every rank adds the squares of its parts, over how many ranks have the same part.
        """
        copies = self.mesh.world / self._ranks_of_one_part()
        squares = self._squares(self._cut) / copies + self._squares(self._whole) / (copies * self.mesh.size("tp"))
        both = torch.stack((squares, loss.float()))
        if self.mesh.world > 1:
            dist.all_reduce(both)
        return both[0].sqrt(), both[1]

    def step(self, norm: Any, scale: Any) -> Any:
        """Update with the gradient over ``scale``, clipped; returns 1 where it was not finite and nothing was done."""
        unscaled = norm / scale
        shrink = (self.clip_norm / (unscaled + 1e-6)).clamp(max=1.0) if self.clip_norm else torch.ones_like(norm)
        skip = (~torch.isfinite(norm)).float()
        scaled_fused_step(self.adamw, divide_by=scale / shrink, skip=skip)
        return skip

    def clear(self) -> None:
        """Forget the gradients."""
        for x, p in zip(self.locals, self.parameters, strict=True):
            x.grad = p.grad = None

    def _ranks_of_one_part(self) -> int:
        """Ranks over which cut weights are spread: stages, tensor-parallel ranks and shards."""
        shards = self.mesh.sharded.size(self.mesh.sharded.ndim - 1) if self.mesh.sharded is not None else 1
        return self.mesh.size("pp") * self.mesh.size("tp") * shards

    def _squares(self, which: list[int]) -> Any:
        if not which:
            return torch.zeros((), device=self.mesh.device)
        norms = torch._foreach_norm([self.locals[i].grad for i in which], 2, dtype=torch.float32)
        return torch.stack(norms).square().sum()
