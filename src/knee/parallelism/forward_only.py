"""The loss of a batch without gradients, for every layout: what validation needs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from knee.parallelism.mesh import Mesh, chunks_here
from knee.parallelism.precision import TYPES
from knee.parallelism.trainer_job import TrainJob


def forward_only(decoders: list[Any], job: TrainJob, mesh: Mesh, inputs: Any, target: Any) -> Any:
    """The sum of the microbatches' mean losses on ranks of the last stage, 0 on the others.

    A pipeline's chunks run one after the other. torch's schedules can skip backward too, but agree on shapes again
    whenever a step follows.
    """
    total = torch.zeros((), device=mesh.device)
    numbers = [number for number, _ in chunks_here(job, mesh)]
    size = job.plan.micro_batch
    for x, y in zip(inputs.split(size), target.split(size), strict=True):
        for number, decoder in zip(numbers, decoders, strict=True):
            out = decoder(x if decoder.first else _received(job, mesh, number), y if decoder.last else None)
            if decoder.last:
                total += out
            else:
                _send(out, mesh, number)
    for decoder in decoders:
        for module in decoder.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # else the weights stay gathered until the next step
    return total


def _received(job: TrainJob, mesh: Mesh, number: int) -> Any:
    """Activations of the chunk before."""
    plan = job.plan
    held = job.seq_len // (plan.cp * (plan.tp if plan.sequence_parallel else 1))
    x = torch.empty(plan.micro_batch, held, job.model.hidden, dtype=TYPES[job.dtype], device=mesh.device)
    dist.recv(x, group=mesh.process_group("pp"), group_src=(number - 1) % plan.pp)
    return x


def _send(x: Any, mesh: Mesh, number: int) -> None:
    dist.send(x.contiguous(), group=mesh.process_group("pp"), group_dst=(number + 1) % mesh.size("pp"))
