"""What a run is measured by, as the paper has it: steps after the warm-up, total tokens over total time.

The device is waited for at the ends of the window only, never between steps. Single steps are timed by events on the
device, or by the host's clock on a processor.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MEMORY_FRAC = 0.05
"""Drivers keep some of the memory for themselves."""
PERCENTILES = (10, 50, 90)


class StepClock:
    """Marks between steps, and what they cost: steps are timed without waiting for the device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.marks: list[Any] = []
        self.host_s: list[float] = []
        self.after_pause: set[int] = set()
        """Marks before which no step was, but a validation."""

    def mark(self, *, after_pause: bool = False) -> None:
        """Mark the end of a step, or of a pause between steps."""
        if after_pause:
            self.after_pause.add(len(self.host_s))
        self.host_s.append(time.perf_counter())
        if self.device == "cuda":
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)

    def passed(self) -> int:
        """Marks that the device has reached."""
        if self.device != "cuda":
            return len(self.host_s)
        count = len(self.marks)
        while count and not self.marks[count - 1].query():
            count -= 1
        return count

    def steps(self) -> Sequence[int]:
        """The marks at the ends of steps that the device has reached."""
        reached = range(1, self.passed())
        return [i for i in reached if i not in self.after_pause] if self.after_pause else reached

    def times_s(self, first: int = 0) -> list[float]:
        """Time of every step whose end the device has reached, from step ``first`` on."""
        if self.device != "cuda":
            return [self.host_s[i] - self.host_s[i - 1] for i in self.steps()[first:]]
        return [self.marks[i - 1].elapsed_time(self.marks[i]) / 1e3 for i in self.steps()[first:]]


class Values:
    """One number a step, read without waiting for the device: they are copied to the host behind the step's work."""

    def __init__(self, steps: int, device: str) -> None:
        import torch

        self.numbers = torch.full((steps,), float("nan"), dtype=torch.float64, pin_memory=device == "cuda")

    def put(self, step: int, value: Any) -> None:
        """Store the value of a step: a number, or a tensor with one element."""
        if value is None:
            return
        if isinstance(value, (int, float)):
            self.numbers[step] = value
            return
        value = value.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        self.numbers[step].copy_(value.reshape(()).double(), non_blocking=True)

    def read(self, steps: int, first: int = 0) -> list[float | None]:
        """Of steps ``first`` to ``steps``, all of them done; None where there is no number."""
        found = [float(value) for value in self.numbers[first:steps]]
        return [value if np.isfinite(value) else None for value in found]


def synchronize(device: str) -> None:
    """Wait until the device has finished its work."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def memory_of(device: str) -> dict[str, float | None]:
    """Peak memory of this rank: what tensors took, what the allocator held, and all of it with the context.

    The device also holds what no allocator knows (CUDA's context, NCCL's buffers): that is what it has in use beyond
    the allocator's, and is right where nobody else uses the GPU.
    """
    rss = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
    if device != "cuda":
        return {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "memory_bytes": None, "peak_rss_bytes": rss}
    import torch

    free, total = torch.cuda.mem_get_info()
    reserved = float(torch.cuda.max_memory_reserved())
    outside = max(0.0, float(total - free) - float(torch.cuda.memory_reserved()))
    return {
        "peak_allocated_bytes": float(torch.cuda.max_memory_allocated()),
        "peak_reserved_bytes": reserved,
        "memory_bytes": reserved + outside,
        "peak_rss_bytes": rss,
    }


def device_of(device: str, local_rank: int) -> dict[str, Any]:
    """Return the device's name, multiprocessors, memory and UUID."""
    if device != "cuda":
        from knee.measure.machine.machine_facts import processor

        return {"name": processor(), "sms": None, "memory_bytes": None, "uuid": None}
    import torch

    properties = torch.cuda.get_device_properties(local_rank)
    return {
        "name": properties.name,
        "sms": properties.multi_processor_count,
        "memory_bytes": float(properties.total_memory),
        "uuid": str(properties.uuid),
    }


def known_gpu(device: Mapping[str, Any], known: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The catalogue's entry of this very GPU: a name alone does not tell a PCIe card from the module."""
    words = set(re.split(r"[\s-]+", str(device.get("name", "")).upper()))
    for gpu in known:
        if gpu["word"] in words and gpu["sms"] == device.get("sms"):
            memory = device.get("memory_bytes") or 0.0
            if abs(memory / gpu["memory_bytes"] - 1.0) < MEMORY_FRAC:
                return gpu
    return None


def peak_of(device: Mapping[str, Any], dtype: str, known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Dense peak of the products' type and where it comes from, or why there is none; never a default."""
    gpu = known_gpu(device, known)
    if gpu is None:
        return {"peak_flop_per_s": None, "peak_source": f"the catalogue does not know {device.get('name')}"}
    peak = gpu["peaks"].get(dtype)
    if peak is None:
        return {"peak_flop_per_s": None, "peak_source": f"the catalogue has no {dtype} peak for {gpu['gpu']}"}
    return {"peak_flop_per_s": peak, "peak_source": f"{gpu['gpu']}, dense {dtype}: {gpu['source']}"}


def percentiles(times_s: Sequence[float]) -> dict[str, float | None]:
    """p10, p50 and p90 of the steps' times."""
    return {f"step_p{q}_s": float(np.percentile(times_s, q)) if times_s else None for q in PERCENTILES}
