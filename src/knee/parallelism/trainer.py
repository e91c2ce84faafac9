"""One training step under a plan: the trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from knee.parallelism.compile_blocks import compiled
from knee.parallelism.context_parallel import GatheredAttention, causal_attention, positions
from knee.parallelism.ddp import Replicas
from knee.parallelism.decoder import Decoder, Parts, full_shape, initial
from knee.parallelism.expert_balance import LoadBalancer
from knee.parallelism.expert_parallel import Here, TokenExchange
from knee.parallelism.experts import EXPERT_WEIGHTS, RoutingRules, expert_part, expert_shape
from knee.parallelism.forward_only import forward_only
from knee.parallelism.fp8.linear import Fp8Rules, cast_weights, quantize_each
from knee.parallelism.fp8.shards import cast_each, cast_shards
from knee.parallelism.fsdp import before_microbatch, local_part, place, shard, shards_in_fp8
from knee.parallelism.layer_functions import rope_table
from knee.parallelism.learning_rate import learning_rate
from knee.parallelism.mesh import Mesh, chunks_here
from knee.parallelism.optimizer import Optimizer
from knee.parallelism.precision import TYPES, LossScale
from knee.parallelism.recompute import recomputed
from knee.parallelism.tensor_parallel import CUT_DIM, Split, Whole
from knee.parallelism.torch_internals import leaves_empty_groups_unset
from knee.parallelism.trainer_job import TrainJob
from knee.workload.layers_per_stage import blocks_recomputed

KERNELS = {
    "auto": [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
    "math": [SDPBackend.MATH],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A step's loss and gradient norm, equal on every rank. To read a number waits for the device."""

    loss_tensor: Any
    """Mean over the tokens of the global batch."""
    norm_tensor: Any
    """Norm of the whole gradient before clipping."""


class Trainer:
    """A model under a plan, its optimizer, and the step."""

    def __init__(self, job: TrainJob, mesh: Mesh) -> None:
        self.job, self.mesh = job, mesh
        self.steps_done = 0
        """Optimizer steps since the first weights, those before a resumption included."""
        self.decoders = [_decoder(job, mesh, layers) for _, layers in chunks_here(job, mesh)]
        self.scale = LossScale(mesh.device) if job.dtype == "fp16" else None
        self.optimizer = Optimizer(self.decoders, job, mesh, compiled if job.compile else None)
        self.replicas = (
            Replicas(self.decoders, mesh, job.microbatches, TYPES[job.plan.reduce_dtype])
            if mesh.copies is not None
            else None
        )
        self.balancer = LoadBalancer(self.decoders, job, mesh)
        self.pipeline = self._pipeline() if job.plan.pp > 1 else None
        self._fp8, self._shards = _fp8_rules(job, mesh), shards_in_fp8(self.decoders)
        self._quantize, self._cast = (compiled(f) if job.compile else f for f in (quantize_each, cast_each))
        self.cast_weights()
        self._here = positions(job.seq_len, mesh.group("cp")).to(mesh.device) if job.plan.cp > 1 else None

    def step(self, tokens: Any) -> StepResult:
        """One optimizer step. ``tokens`` are this data-parallel rank's rows, (sequences, seq_len + 1)."""
        tokens = tokens.to(self.mesh.device, non_blocking=True)
        inputs, target = self._cut(tokens[:, :-1]), self._cut(tokens[:, 1:])
        self.balancer.before_step(self._start(torch.ones((), device=self.mesh.device)))
        with _attention(self.job):
            loss = self.pipeline.step(inputs, target) if self.pipeline else self._microbatches(inputs, target)
        if self.replicas:
            self.replicas.finish()
        scale = self.scale.value if self.scale else torch.ones((), device=self.mesh.device)
        self.optimizer.take_gradients()
        self.optimizer.adamw.set_lr(learning_rate(self.job, self.steps_done))
        plan = self.job.plan
        norm, loss = self.optimizer.norm_and(loss / (scale * plan.dp * plan.cp * plan.tp))
        overflow = self.optimizer.step(norm, scale)
        self.cast_weights()
        self.balancer.after_step()
        if self.scale:
            self.scale.update(overflow)
        self.optimizer.clear()
        self.steps_done += 1
        return StepResult(loss_tensor=loss, norm_tensor=norm / scale)

    def cast_weights(self) -> None:
        """Make the fp8 copies that all microbatches of the next step read or gather; whenever weights have changed."""
        if self._fp8 is None:
            return
        with torch.no_grad():
            if self._shards:
                cast_shards(self._shards, self.mesh.sharded.get_group(self.mesh.sharded.ndim - 1), self._cast)
            elif self._fp8.kept:
                blocks = (block for decoder in self.decoders for block in decoder.blocks.values())
                cast_weights(blocks, self._fp8, self._quantize)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def evaluate(self, tokens: Any) -> Any:
        """The mean loss of a global batch, equal on every rank. ``tokens`` are as in ``step``; nothing is learned."""
        tokens = tokens.to(self.mesh.device, non_blocking=True)
        inputs, target = self._cut(tokens[:, :-1]), self._cut(tokens[:, 1:])
        with _attention(self.job):
            loss = forward_only(self.decoders, self.job, self.mesh, inputs, target)
        self.balancer.forget()
        plan = self.job.plan
        loss = loss.float() / (self.job.microbatches * plan.dp * plan.cp * plan.tp)
        if self.mesh.world > 1:
            torch.distributed.all_reduce(loss)
        return loss

    def _pipeline(self) -> Any:
        from knee.parallelism.pipeline_parallel import Pipeline  # torch's takes most of a second to import

        return Pipeline(self.job, self.mesh, self.decoders, self._start)

    def _microbatches(self, inputs: Any, target: Any) -> Any:
        """Forward and backward of every microbatch in turn; the sum of what backward started from."""
        decoder, size = self.decoders[0], self.job.plan.micro_batch
        total = torch.zeros((), device=self.mesh.device)
        for i, (x, y) in enumerate(zip(inputs.split(size), target.split(size), strict=True)):
            if self.mesh.sharded is not None:
                before_microbatch(decoder, self.job, last=i == self.job.microbatches - 1)
            loss = self._start(decoder(x, y))
            loss.backward()
            total += loss.detach()
        return total

    def _start(self, loss: Any) -> Any:
        """What backward starts from: a microbatch's share of the batch's loss, scaled where fp16 needs it."""
        share = loss / self.job.microbatches
        return share * self.scale.value if self.scale else share

    def _cut(self, rows: Any) -> Any:
        """This context-parallel rank's part of each sequence."""
        return rows.contiguous() if self._here is None else rows.index_select(1, self._here)


def _attention(job: TrainJob) -> AbstractContextManager[Any]:
    """Which attention kernels may run, best first. A CPU has one, and the unfused."""
    if job.device == "cpu" and job.attention != "math":
        return nullcontext()
    kernels: AbstractContextManager[Any] = sdpa_kernel(KERNELS[job.attention], set_priority=True)
    return kernels


def _decoder(job: TrainJob, mesh: Mesh, layers: range) -> Decoder:
    """A chunk of the model as this rank has it: cut, sharded, with its first weights."""
    model, plan = job.model, job.plan
    tp, cp, etp = mesh.group("tp"), mesh.group("cp"), mesh.experts.etp
    attend: Callable[..., Any] = GatheredAttention(cp) if cp else causal_attention
    if plan.recompute == "attention":
        attend = recomputed(attend)
    parts = Parts(
        tp=Split(tp, sequence_parallel=plan.sequence_parallel) if tp else Whole(),
        attend=attend,
        # only flash kernels want it, and those of CPUs
        pads_values=job.device == "cpu" or job.attention == "flash" or cp is not None,
        exchange=TokenExchange(mesh.experts.ep, etp) if mesh.experts.ep or etp else Here(),
        routing=RoutingRules(
            balanced=job.routing == "balanced",
            capacity_factor=job.capacity_factor,
            balance_loss=job.balance_loss,
            sequence_groups=tuple(group for group in (tp, cp) if group),
            averaged=plan.cp,
        ),
        state_dtype=TYPES[plan.state_dtype],
        fp8=_fp8_rules(job, mesh),
    )
    # sharded weights are made after they are cut; fake ones hold nothing and are made at once
    with torch.device("meta" if mesh.sharded is not None and not mesh.fake else mesh.device):
        decoder = Decoder(model, layers=layers, parts=parts, compute_dtype=TYPES[job.dtype])
    again = blocks_recomputed(plan.recompute_frac if plan.recompute in ("blocks", "full") else 0.0, model.layers)
    for number, block in decoder.blocks.items():
        run = compiled(block.body) if job.compile else block.body
        block.run = recomputed(run) if again[int(number)] else run
        if block.moe is not None:
            block.moe.experts.clears_empty = leaves_empty_groups_unset(mesh.device)
    if job.compile:
        decoder.loss = compiled(decoder.loss)
    if mesh.sharded is not None:
        shard(decoder, job, mesh)
        if not mesh.fake:
            decoder.to_empty(device=mesh.device)
    # compiled code turns in fp32 at no cost; eager kernels that mix types are three times slower
    turn_dtype = torch.float32 if job.compile else TYPES[job.dtype]
    decoder.turn = rope_table(positions(job.seq_len, cp), model, mesh.device, turn_dtype)
    if not mesh.fake:
        _set_weights(decoder, job, mesh)
    return decoder


def _fp8_rules(job: TrainJob, mesh: Mesh) -> Fp8Rules | None:
    if job.plan.precision != "fp8":
        return None
    return Fp8Rules(recipe=job.plan.fp8_recipe, smallest=job.fp8_smallest, kept=mesh.sharded is None)


def _set_weights(decoder: Decoder, job: TrainJob, mesh: Mesh) -> None:
    """Each weight is drawn whole and cut, so that every layout starts from the same values."""
    tp, rank, experts = mesh.size("tp"), mesh.index("tp"), job.model.experts
    draw = partial(initial, layers=job.model.layers, seed=job.seed, device=mesh.device)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            leaf, sharded = name.rsplit(".", 1)[-1], mesh.sharded
            if leaf in EXPERT_WEIGHTS:
                assert experts is not None
                whole = draw(name, expert_shape(leaf, experts, job.model.hidden))
                part, sharded = (
                    expert_part(leaf, whole, experts, mesh.experts.ep, mesh.experts.etp),
                    mesh.experts.sharded,
                )
            else:
                whole = draw(name, full_shape(name, parameter.shape, tp))
                cut = CUT_DIM.get(leaf)
                part = whole if cut is None else whole.chunk(tp, dim=cut)[rank]
            if sharded is None:
                parameter.copy_(part)
            else:
                place(local_part(parameter), part, sharded)
        for buffer in decoder.buffers():
            buffer.zero_()
