"""Every private part of torch's pipelines that the trainer uses. Held against torch 2.11 and 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._backward import stage_backward


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


def ordered_schedule(
    stage: Any, microbatches: int, loss: Callable[..., Any], orders: list[list[tuple[str, int]]]
) -> Any:
    """A schedule of torch's runtime for one stage per rank, from an order of F, B (the whole backward), I (the input's)
    and W (the weights').

    Its own zero-bubble classes want two stages per rank, and its 1F1B as many microbatches as stages.
    """
    kinds = {
        "F": schedules.FORWARD,
        "B": schedules.FULL_BACKWARD,
        "I": schedules.BACKWARD_INPUT,
        "W": schedules.BACKWARD_WEIGHT,
    }
    schedule = schedules._PipelineScheduleRuntime([stage], n_microbatches=microbatches, loss_fn=loss, scale_grads=False)
    schedule.pipeline_order = {
        rank: [schedules._Action(rank, kinds[kind], microbatch) for kind, microbatch in order]
        for rank, order in enumerate(orders)
    }
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)
    return schedule
