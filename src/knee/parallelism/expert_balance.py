"""What keeps experts equally used, between steps: the bias that moves, and the scale of the balance loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from knee.parallelism.mesh import Mesh
from knee.parallelism.trainer_job import TrainJob


class LoadBalancer:
    """The routers of a rank's blocks, before and after each step."""

    def __init__(self, decoders: list[Any], job: TrainJob, mesh: Mesh) -> None:
        self.layers = [b.moe for decoder in decoders for b in decoder.blocks.values() if b.moe is not None]
        self.moving = [layer for layer in self.layers if layer.moves_bias]
        self.rate, self.balance_loss = job.balance_rate, job.balance_loss
        axes = [axis for axis in ("tp", "cp", "dp_shard", "dp_replicate") if mesh.size(axis) > 1]
        self.groups = [mesh.process_group(axis) for axis in axes]

    def before_step(self, scale: Any) -> None:
        """``scale`` is what a microbatch's loss is multiplied by before backward."""
        if self.balance_loss:
            for layer in self.layers:
                layer.loss_scale = scale

    def forget(self) -> None:
        """Forget the tokens of a validation, which balance nothing."""
        for layer in self.moving:
            layer.load.zero_()

    def after_step(self) -> None:
        """Raise the bias of experts that had fewer tokens than the mean, and lower that of the others.

        Formula: b_i <- b_i + rate * sign(mean load - load_i)
        Source:  Wang et al., Auxiliary-Loss-Free Load Balancing (arXiv 2408.15664); DeepSeek-V3 (arXiv 2412.19437)
        """
        if not self.moving:
            return
        loads = torch.stack([layer.load for layer in self.moving])
        for group in self.groups:
            dist.all_reduce(loads, group=group)
        moves = self.rate * (loads.mean(-1, keepdim=True) - loads).sign()
        for layer, move in zip(self.moving, moves, strict=True):
            layer.balance_bias += move
            layer.load.zero_()
