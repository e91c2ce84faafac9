"""A few steady steps under torch's profiler, after the timed window: where time went, by the simulator's metrics."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knee.errors import NotWritten
from knee.files import replacing, scratch_folder
from knee.specs.plan import Plan
from knee.trace.analyse import analyse
from knee.trace.plain_data import step_of
from knee.train.timed_steps import synchronize

FEW_RANKS = 16
"""Up to so many ranks each keeps its trace; of more, one rank of every pipeline stage does."""
UNDER_PROFILER = 1
"""Steps that run under the profiler before it records: its first step is slow."""


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Where a rank lies on the mesh axes: the plan's placement names them from neighbouring ranks outwards."""
    found = {}
    for axis in plan.placement:
        rank, found[axis] = divmod(rank, getattr(plan, axis))
    return found


def keeps_trace(plan: Plan, rank: int, world: int) -> bool:
    """Whether this rank's trace is written."""
    place = coordinates(plan, rank)
    return world <= FEW_RANKS or not any(place[axis] for axis in place if axis != "pp")


def axes_of(plan: Plan) -> dict[str, str]:
    """torch takes the group of all ranks for an axis that spans them; gradients are shared over cp too."""
    copies = plan.dp_replicate * (plan.cp if plan.sharding == "ddp" else 1)
    spans = {"dp_shard": plan.dp_shard * plan.cp, "dp_replicate": copies, "tp": plan.tp, "pp": plan.pp}
    axis = next((axis for axis, size in spans.items() if size == plan.gpus > 1), None)
    return {} if axis is None else {"world": axis, "default_pg": axis}


def traced_steps(steps: int, device: str, run: Callable[[], None]) -> Any:
    """Run that many steps under the profiler; ``run`` is one step. The profile, not yet written."""
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    plan = schedule(wait=0, warmup=UNDER_PROFILER, active=steps, repeat=1)
    # gloo's calls are told apart by the shapes of what they move; events are read from the trace, so that torch need
    # not make objects of them, which takes longer than the steps
    with profile(activities=activities, schedule=plan, record_shapes=device != "cuda") as profiler:
        for number in range(UNDER_PROFILER + steps):
            run()
            if number in (UNDER_PROFILER - 1, UNDER_PROFILER + steps - 1):
                synchronize(device)  # so that no step's work lies outside of it
            profiler.step()
    return profiler


def write_trace(profiler: Any, path: Path) -> None:
    """The trace, compressed, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder() as made, replacing(path) as partial:
            profiler.export_chrome_trace(str(made / path.name))  # packed where the name ends in .gz
            shutil.copyfile(made / path.name, partial)
    except (OSError, RuntimeError) as error:
        raise NotWritten(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def read_trace(path: Path, plan: Plan) -> dict[str, Any]:
    """Times of one step, by the functions that measure simulated steps and anyone's traces."""
    return step_of(analyse(path, axes=axes_of(plan), cache=False).ranks[0])
