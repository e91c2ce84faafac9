"""Traces of a few kernels, written as torch.profiler writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 4_458_676_416_788_066
Kernel = tuple[str, int, int, int]
"""(name, stream, start, duration), in nanoseconds."""


def write(
    path: Path,
    kernels: Sequence[Kernel],
    *,
    rank: int = 0,
    steps: Sequence[tuple[int, int, int]] = (),
    base_ns: int = BASE_NS,
    group_size: int = 2,
) -> Path:
    """Each kernel is launched 2 µs before it begins; ``steps`` are (number, start, duration) on the host."""
    events: list[dict[str, Any]] = []
    for number, (name, stream, start, duration) in enumerate(kernels, 1):
        args: dict[str, Any] = {"device": 0, "stream": stream, "correlation": number}
        if name.startswith("nccl"):
            collective = "_allgather_base" if "Gather" in name else "allreduce"
            args |= {
                "Collective name": collective,
                "In msg nelems": 1000,
                "Out msg nelems": 2000,
                "dtype": "BFloat16",
                "Group size": group_size,
                "Process Group Name": "1",
                "Process Group Description": "mesh_fsdp",
                "Process Group Ranks": str(list(range(group_size))),
            }
        category = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.partition(" ")[0], "kernel")
        events.append(_event(name, category, 0, stream, base_ns + start, duration, args))
        events.append(
            _event("cudaLaunchKernel", "cuda_runtime", 9, 9, base_ns + start - 2000, 1000, {"correlation": number})
        )
    events += [
        _event(f"ProfilerStep#{number}", "user_annotation", 9, 9, base_ns + start, duration, {})
        for number, start, duration in steps
    ]
    text = json.dumps(
        {
            "distributedInfo": {"rank": rank, "world_size": group_size},
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
            "traceEvents": events,
        }
    )
    for time in {event[key] for event in events for key in ("ts", "dur")}:
        text = text.replace(json.dumps(time), time)  # numbers, not text, with all their digits
    path.write_text(text)
    return path


def _event(
    name: str, category: str, pid: int, tid: int, start: int, duration: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": _us(start),
        "dur": _us(duration),
        "args": args,
    }


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


GATHER, REDUCE, GEMM, ADD = (
    "ncclDevKernel_AllGather_RING_LL(x)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "sm90_xmma_gemm_bf16",
    "vectorized_elementwise_kernel",
)


def job(
    path: Path,
    *,
    gather: int = 300_001,
    gemm: int = 200_003,
    steps: int = 3,
    rank: int = 0,
    copy: bool = True,
    gather_stream: int = 20,
    base_ns: int = BASE_NS,
) -> Path:
    """Steps of 2 ms: a gather half hidden behind a product, far from it other kernels, the reduction hidden."""
    kernels: list[Kernel] = []
    for step in range(steps):
        at = 10_000 + step * 2_000_000
        kernels += [(GEMM, 7, at, gemm), (GATHER, gather_stream, at + 100_000, gather)]
        kernels += [(ADD, 7, at + 600_000 + i * 20_000, 20_000) for i in range(20)]  # each touches the next
        kernels += [(GEMM, 7, at + 1_200_000, gemm), (REDUCE, 21, at + 1_210_000, 50_000)]
        if copy:
            kernels.append(("Memcpy DtoH (Device -> Pinned)", 7, at + 1_700_000, 30_000))
    return write(
        path, kernels, rank=rank, base_ns=base_ns, steps=[(i + 5, i * 2_000_000, 1_999_000) for i in range(steps)]
    )
