"""Readings of memory-bound kernels -> the rate they stream at; what each takes is the catalogue's ``kernels.toml``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knee.cost.kernel_cost import stream_s
from knee.record.probe_points import StreamPoint
from knee.record.readings import Readings
from knee.specs.hardware import Gpu
from knee.specs.kernel_traffic import passes_of
from knee.specs.profile import Kernels, Profile
from knee.workload.operations import MemoryBound

EXACT = {"copy": 2.0, "residual": 3.0}
"""Memory-bound kernels that read and write every byte once: passes of their tensor."""
CACHED_BYTES = 200e6
"""Less than this may stay in a GPU's last-level cache."""
COPIED_TENSORS = 16.0
"""A copy point copies this many tensors of its shape, so that nothing of it stays in a cache."""


def _moved_bytes(p: StreamPoint, device: str) -> tuple[float, int]:
    """Bytes at the streaming rate, and kernels, as the catalogue has them; a processor's tensors are fp32."""
    wide = 2.0 if device == "cpu" else 1.0
    kernels: Kernels = "compiled" if p.compiled else "eager"
    if p.operation == "copy":
        return EXACT["copy"] * COPIED_TENSORS * p.tensor_bytes, 1
    passes = passes_of(kernels, p.operation)
    count, launched = (
        (passes.forward, passes.forward_kernels) if p.forward else (passes.backward, passes.backward_kernels)
    )
    if p.operation == "residual":  # alone it is a kernel of its own, whatever it is fused with in a layer
        count, launched = EXACT["residual"], 1
    # the optimizer's tensors are fp32, four of them a point
    return count * p.tensor_bytes * (8.0 if p.operation == "adamw" else wide), launched


def fit_streams(readings: Readings, gpu: Gpu) -> Gpu:
    """The streaming rate: the median of kernels whose traffic is exactly known."""
    exact = [
        (moved, moved / max(r["median_s"] - kernels * gpu.kernel_s, 0.1 * r["median_s"]))
        for p, r in readings.good("stream")
        if p.operation in EXACT and not p.compiled
        for moved, kernels in [_moved_bytes(p, readings.machine.kind)]
    ]
    if not exact:
        return gpu
    large = [rate for moved, rate in exact if moved > CACHED_BYTES]
    rate = float(np.median(large or [rate for _, rate in exact]))
    if rate > gpu.hbm_bytes_per_s or readings.machine.kind == "cpu":
        # a processor's memory has no published rate here
        return replace(gpu, hbm_bytes_per_s=rate, hbm_frac=1.0)
    return replace(gpu, hbm_frac=rate / gpu.hbm_bytes_per_s)


def stream_seconds(gpu: Gpu, profile: Profile, p: StreamPoint, device: str) -> float:
    """Seconds by the cost model."""
    moved, kernels = _moved_bytes(p, device)
    op = MemoryBound(name=p.operation, moved_bytes=np.array([moved]), kernels=kernels)
    return float(stream_s(gpu, profile, op)[0])
