"""A trace of gloo on a processor, with every kind of call."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def span(
    name: str, start: float, duration: float, *, thread: int = 1, category: str = "cpu_op", **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 9,
        "tid": thread,
        "ts": 4458676416788.066 + start,
        "dur": duration,
        "args": args,
    }


def gloo_trace(path: Path, *, backend: str = "gloo") -> Path:
    """One step on a processor: FSDP's gather and scatter, a tensor-parallel gather, a pipeline's send, the norm."""

    def tensors(*sizes: int) -> dict[str, Any]:
        return {"Input Dims": [[size] for size in sizes], "Input type": ["float"] * len(sizes)}

    issue, annotation = {"thread": 1}, {"thread": 2, "category": "user_annotation"}
    events = [
        span("ProfilerStep#3", 0, 1000, category="user_annotation"),
        span("FSDP::all_gather (blocks.0)", 10, 20, category="user_annotation"),
        span("c10d::_allgather_base_", 12, 10, **issue, **tensors(64, 32)),
        span("gloo:all_gather", 30, 100, **annotation, **tensors(32)),
        span("aten::linear", 50, 100),
        span("aten::mm", 60, 50),
        span("autograd::engine::evaluate_function: MmBackward0", 200, 300),
        span("aten::mm", 210, 50),
        span("FSDP::post_backward_reduce", 300, 50, category="user_annotation"),
        span("c10d::_reduce_scatter_base_", 310, 10, **issue, **tensors(32, 64)),
        span("gloo:all_reduce", 330, 100, **annotation, **tensors(64)),
        span("aten::add", 500, 80),  # a DTensor's: it gathers inside
        span("Redistribute", 505, 30, category="user_annotation"),
        span(
            "c10d::allgather_into_tensor_coalesced_",
            510,
            10,
            **{"Input Dims": [[[8]], [[4]]], "Input type": ["TensorList", "TensorList"]},
        ),
        span("gloo:all_gather", 515, 20, thread=3, category="user_annotation", **tensors(4)),
        span("aten::add", 550, 20),
        span("c10d::send", 600, 5, **{"Input Dims": [[[3]]], "Input type": ["TensorList"]}),
        span("gloo:send", 602, 30, category="user_annotation", **tensors(3)),
        span("c10d::allreduce_", 700, 10, **{"Input Dims": [[[]]], "Input type": ["TensorList"]}),
        span(
            "gloo:all_reduce",
            705,
            40,
            thread=4,
            category="user_annotation",
            **{"Input Dims": [[]], "Input type": ["float"]},
        ),
    ]
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_dp_shard", "pg_size": 2, "ranks": [0, 2]},
        {"pg_name": "2", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    ]
    info = {"backend": backend, "rank": 0, "world_size": 4, "pg_config": groups}
    path.write_bytes(gzip.compress(json.dumps({"distributedInfo": info, "traceEvents": events}).encode()))
    return path
