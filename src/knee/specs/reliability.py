"""HOW OFTEN a cluster fails, and what a run does about it: the ``[reliability]`` part of a cluster file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from knee.base.errors import FieldError, out_of_range

CheckpointMethod = Literal["blocking", "async", "memory"]
Startup = Literal["nccl", "ncclx"]
Cause = Literal["gpu", "gpu_memory", "network", "host", "software"]
CAUSES: dict[Cause, str] = {
    "gpu": "gpu_failures_per_gpu_h",
    "gpu_memory": "gpu_memory_failures_per_gpu_h",
    "network": "network_failures_per_gpu_h",
    "host": "host_failures_per_gpu_h",
    "software": "software_failures_per_gpu_h",
}
"""Cause of an interruption that nobody planned -> the field with its rate."""
MOST_PER_GPU_H = 1.0
"""Failures per GPU-hour; more is a mistake of units."""
MOST = {
    "spare_nodes": (1_000_000, "more than 1,000,000 is not supported"),
    "slow_frac": (10.0, "it is a fraction of the step, so that 0.1 is 10%, and at most 10"),
}
"""Field -> the largest value, and what is said of a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Failures, restarts and checkpoints. A value that is left out has the default of catalog/reliability.toml."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    gpu_failures_per_gpu_h: float | None = None
    """Interruptions by faulty GPUs, per GPU and hour; memory errors not included."""
    gpu_memory_failures_per_gpu_h: float | None = None
    """Interruptions by errors of the GPUs' memory, per GPU and hour."""
    network_failures_per_gpu_h: float | None = None
    """Interruptions by NICs, cables and switches, per GPU and hour."""
    host_failures_per_gpu_h: float | None = None
    """Interruptions by hosts: CPU, memory, disk, power supply, unplanned maintenance; per GPU and hour."""
    software_failures_per_gpu_h: float | None = None
    """Interruptions by software, per GPU and hour."""
    planned_stops_per_gpu_h: float | None = None
    """Planned interruptions, per GPU and hour. A checkpoint is saved before each, so no work is lost."""
    detection_s: float | None = None
    """Time from a failure until the restart begins: detection and diagnosis."""
    scheduling_s: float | None = None
    """Time until new processes run: replacement of nodes, scheduling, start of the program."""
    initialisation_s: float | None = None
    """Time to initialise the communication library. If it is left out, it grows with the number of GPUs."""
    startup: Startup | None = None
    """Communication library whose initialisation time is used: nccl, or ncclx, which starts faster on many GPUs."""
    warmup_s: float | None = None
    """Time lost in the first steps after a restart: compilation, memory allocation, data loaders."""
    checkpoint: CheckpointMethod | None = None
    """How checkpoints are saved. blocking: training waits until the storage has them. async: training waits for the
    copy to host memory. memory: the copy goes to host memory and to another node, and restarts read it from there."""
    checkpoint_interval_s: float | None = None
    """Training time between checkpoints. If it is left out, the interval with the shortest expected run is used."""
    storage_bytes_per_s: float | None = None
    """Rate of the storage per GPU: its rate for the whole run divided by the GPUs of the run."""
    host_copy_bytes_per_s: float | None = None
    """Rate per GPU of the copy from GPU memory to host memory."""
    evaluation_s: float | None = None
    """Duration of one evaluation, during which training waits."""
    evaluation_interval_s: float | None = None
    """Training time between evaluations."""
    spare_nodes: int | None = None
    """Nodes that are paid for and wait as replacements. If it is left out, a replacement is always available, and
    nothing is charged for it."""
    repair_s: float | None = None
    """Time to repair a failed node; it matters only if the number of spare nodes is given."""
    slow_nodes_per_gpu_h: float | None = None
    """Nodes that become slow, per GPU and hour, in addition to the stragglers of a normal step."""
    slow_frac: float | None = None
    """Additional step time while one node is slow, as a fraction of the step."""
    slow_detection_s: float | None = None
    """Time until a slow node is found and replaced."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise out_of_range(f"reliability.{name}", value, "it cannot be negative")
            most = MOST.get(name)
            if most is not None and value is not None and value > most[0]:
                raise out_of_range(f"reliability.{name}", value, most[1])
            if name.endswith("_per_gpu_h") and value is not None and value > MOST_PER_GPU_H:
                raise out_of_range(f"reliability.{name}", value, "it must be at most one per GPU-hour")
        for name in ("storage_bytes_per_s", "host_copy_bytes_per_s", "checkpoint_interval_s", "evaluation_interval_s"):
            if getattr(self, name) == 0:
                raise out_of_range(f"reliability.{name}", 0, "it must be positive")
        given = [getattr(self, field) or 0.0 for field in CAUSES.values()]
        if sum(given) > MOST_PER_GPU_H:
            rule = f"and the other causes sum to {sum(given):g} failures; there must be at most one per GPU-hour"
            raise FieldError("reliability.gpu_failures_per_gpu_h", rule, code="out-of-range")
