"""How long the host takes to launch a kernel: a training step too small to keep the device busy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from knee.probe.kernel_grid import TINY
from knee.probe.plain_step import PlainTrainer
from knee.record.probe_points import HostPoint, Record

TINIEST = replace(TINY, model="tiniest", layers=12, hidden=128, ffn=352, heads=2, kv_heads=2, vocab=1024, seq_len=64)


def measure_host(point: HostPoint, device: str) -> Record:
    """Time of a step over the kernels in it."""
    trainer = PlainTrainer(replace(TINIEST, compiled=point.compiled), device)
    timing = trainer.timed(steps=20, warmup=5)
    kernels = _kernels(trainer.step)
    return {
        "median_s": timing.median_s / kernels,
        "spread_frac": timing.spread_frac,
        "repeats": timing.repeats,
        "kernels": kernels,
        "step_s": timing.median_s,
    }


def _kernels(step: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
    found = sum(1 for event in seen.events() if event.device_type.name == "CUDA")
    if not found:
        raise RuntimeError("the profiler saw no kernel")
    return found
