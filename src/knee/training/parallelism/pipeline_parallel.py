"""Pipeline parallelism: torch's schedules over the stages of each rank, with shapes known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._backward import stage_backward

from knee.specs.schedules import PipelineSchedule, schedule_of
from knee.training.parallelism.fsdp import before_microbatch
from knee.training.parallelism.mesh import Mesh, chunks_here
from knee.training.parallelism.precision import TYPES
from knee.training.parallelism.trainer_job import TrainJob

# Every private part of torch's pipelines that the trainer uses. Held against torch 2.11 and 2.13.


class HookedStage(PipelineStage):
    """A pipeline stage whose backward is left to FSDP2's own hooks: they reduce beside it, and reshard where asked.

    torch's own stage keeps parameters gathered from the first backward on and reduces all of a stage after its last.
    """

    def __init__(self, *args: Any, before_backward: Callable[[bool], None], **kwargs: Any) -> None:
        """``before_backward(last)`` sets what FSDP2 does in the microbatch's backward."""
        super().__init__(*args, **kwargs)
        self._before_backward = before_backward

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """The whole backward of a microbatch."""
        assert backward_type == "full", backward_type
        self._before_backward(last_backward)
        parts = (bwd_kwargs[name] for name in ("stage_output", "output_grads", "input_values"))
        return stage_backward(*parts), None

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Nothing: the last backward has done it."""
        del self, grad_scale_factor


def gather_when_used(schedule: Any) -> None:
    """Leave gathering to FSDP2's hooks, layer by layer; torch's runtime would gather and free three stages as a whole,
    those that the plan keeps gathered as well."""
    orders = getattr(schedule, "pipeline_order_with_comms", None)
    if orders is None:  # one stage a rank: no such actions
        return
    whole = (schedules.UNSHARD, schedules.RESHARD)
    for rank, actions in orders.items():
        orders[rank] = [action for action in actions if action.computation_type not in whole]
    schedule._assert_unsharded = lambda *_: None


def ordered_schedule(stage: Any, microbatches: int, loss: Callable[..., Any], order: PipelineSchedule) -> Any:
    """A schedule of torch's runtime for one stage per rank, in knee's own order of actions.

    Its own zero-bubble classes want two stages per rank, and its 1F1B as many microbatches as stages.
    """
    backward = schedules.BACKWARD_INPUT if order.splits_backward else schedules.FULL_BACKWARD
    kinds = (schedules.FORWARD, backward, schedules.BACKWARD_WEIGHT)
    ranks = stage.num_stages
    schedule = schedules._PipelineScheduleRuntime([stage], n_microbatches=microbatches, loss_fn=loss, scale_grads=False)
    schedule.pipeline_order = {
        rank: [
            schedules._Action(rank, kinds[kind], micro)
            for kind, micro in zip(one.kind.tolist(), one.micro.tolist(), strict=True)
        ]
        for rank, one in enumerate(order.orders(ranks, 1, microbatches))
    }
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)
    return schedule


class Pipeline:
    """The chunks of this rank under the plan's schedule."""

    def __init__(self, job: TrainJob, mesh: Mesh, decoders: list[Any], loss: Callable[[Any], Any]) -> None:
        """``loss`` makes of a microbatch's mean loss what backward starts from."""
        self.job, self.mesh = job, mesh
        numbers = [number for number, _ in chunks_here(job, mesh)]
        self.first, self.last = 0 in numbers, job.plan.pp * job.plan.virtual_stages - 1 in numbers
        stages = [self._stage(d, n) for d, n in zip(decoders, numbers, strict=True)]
        self.schedule = self._schedule(stages, lambda output, _: loss(output))
        gather_when_used(self.schedule)

    def step(self, tokens: Any, target: Any) -> Any:
        """All microbatches forward and backward; the sum of their losses as ``loss`` made them, 0 on other stages."""
        losses: list[Any] = []
        inputs = (tokens,) if self.first else ()
        if self.last:
            self.schedule.step(*inputs, target=target, losses=losses, return_outputs=False, labels=target)
            return torch.stack([x.detach() for x in losses]).sum()
        self.schedule.step(*inputs, return_outputs=False)
        return torch.zeros((), device=self.mesh.device)

    def _stage(self, decoder: Any, number: int) -> Any:
        job, plan = self.job, self.job.plan
        tokens = job.seq_len // plan.cp
        held = tokens // plan.tp if plan.sequence_parallel else tokens
        shape = (plan.micro_batch, held, job.model.hidden)
        rows = torch.empty(plan.micro_batch, tokens, dtype=torch.long, device="meta")

        def activations() -> Any:
            return torch.empty(shape, dtype=TYPES[job.dtype], device="meta", requires_grad=True)

        loss = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
        kind = PipelineStage
        # a backward in two halves is torch's to reduce, after the last: FSDP2's hooks would see only the first half
        if self.mesh.sharded is not None and not schedule_of(plan.schedule).splits_backward:
            kind = partial(HookedStage, before_backward=lambda last: before_microbatch(decoder, job, last=last))
        return kind(
            decoder,
            number,
            plan.pp * plan.virtual_stages,
            self.mesh.device,
            input_args=(rows if decoder.first else activations(),),
            output_args=(loss if decoder.last else activations(),),
            group=self.mesh.process_group("pp"),
        )

    def _schedule(self, stages: list[Any], loss: Callable[..., Any]) -> Any:
        plan, n = self.job.plan, self.job.microbatches
        schedule = schedule_of(plan.schedule)
        kind = getattr(pipelining, schedule.torch) if schedule.torch else None
        if kind is None or (kind is pipelining.Schedule1F1B and n < plan.pp):
            return ordered_schedule(stages[0], n, loss, schedule)
        what = stages if schedule.virtual else stages[0]
        return kind(what, n_microbatches=n, loss_fn=loss, scale_grads=False)
