"""One training step under a plan: the trainer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from knee.engine.workload.layers_per_stage import blocks_recomputed
from knee.training.parallelism.context_parallel import GatheredAttention, causal_attention, positions
from knee.training.parallelism.ddp import Replicas
from knee.training.parallelism.decoder import Decoder, Parts, full_shape, initial
from knee.training.parallelism.expert_parallel import Here, TokenExchange
from knee.training.parallelism.experts import EXPERT_WEIGHTS, RoutingRules, expert_part, expert_shape
from knee.training.parallelism.fp8.linear import Fp8Rules, cast_weights, quantize_each
from knee.training.parallelism.fp8.shards import cast_each, cast_shards
from knee.training.parallelism.fsdp import before_microbatch, local_part, place, shard, shards_in_fp8
from knee.training.parallelism.layer_functions import rope_table
from knee.training.parallelism.mesh import Mesh, chunks_here
from knee.training.parallelism.optimizer import Optimizer
from knee.training.parallelism.precision import TYPES, LossScale
from knee.training.parallelism.tensor_parallel import CUT_DIM, Split, Whole
from knee.training.parallelism.torch_internals import leaves_empty_groups_unset
from knee.training.parallelism.trainer_job import TrainJob, learning_rate

# Regional torch.compile: each block's body and the loss, inside FSDP's hooks and recomputation, which stay eager.

SHAPES = 64
"""Most shapes for which a function is compiled."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, compiled for the shapes it meets; blocks are alike and share one program.

    Inductor's search for block sizes (``coordinate_descent_tuning``) is left out: on an H200 it takes the first step of
    a 7B model from 23 to 49 s, and 13 to 101 s in fp8, and makes no later step faster.
    """
    # a model with experts and latent attention has more shapes of weights than torch compiles by default
    torch._dynamo.config.recompile_limit = SHAPES
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


# Activation recomputation: which parts of forward are run again in backward instead of being kept.


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose insides are computed again in backward. Nothing here draws random numbers."""

    def run(*args: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)

    return run


# The loss of a batch without gradients, for every layout: what validation needs.


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


# What keeps experts equally used, between steps: the bias that moves, and the scale of the balance loss.


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
        from knee.training.parallelism.pipeline_parallel import Pipeline  # torch's takes most of a second to import

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
