"""Measure one GPU: kernels, power, plain training steps. Writes JSON lines as it goes; a second call goes on.

    PYTHONPATH=src python tools/probe_gpu.py OUT [kernels] [power] [steps]

Needs torch 2.11 or later, NumPy for knee, and nvidia-ml-py for power. About four minutes on an H200.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from knee.probe.kernels import measure
from knee.probe.nvml import EnergyMeter, Nvml
from knee.probe.plain_step import StepCase, run_step
from knee.probe.points import attention_points, gemm_points, key_of, shuffled, stream_points
from knee.probe.power import loads, measure_idle, measure_load, record_of

LLAMA_1B = {"model": "llama-1b", "layers": 25, "hidden": 2048, "ffn": 5632, "heads": 16, "kv_heads": 16, "vocab": 32000}
LLAMA_7B = {
    "model": "llama2-7b",
    "layers": 32,
    "hidden": 4096,
    "ffn": 11008,
    "heads": 32,
    "kv_heads": 32,
    "vocab": 32000,
}

Task = tuple[str, Callable[[], dict[str, Any]]]


def kernels() -> Iterator[Task]:
    """Every point of the grid, mixed."""
    points = [*gemm_points(dtypes=("bf16", "fp16", "fp8")), *attention_points(("flash2", "cudnn", "cutlass"))]
    for point in [*shuffled(points), *stream_points()]:
        yield key_of(point), lambda p=point: asdict(p) | asdict(measure(p, "cuda"))


def power() -> Iterator[Task]:
    """Idle and every load."""
    nvml = Nvml("GPU-" + str(torch.cuda.get_device_properties(0).uuid))
    yield "idle", lambda: record_of(measure_idle(nvml))
    for load in loads():
        yield f"{load.name}/{load.duty_frac}", lambda x=load: record_of(measure_load(x, nvml))


def steps() -> Iterator[Task]:
    """1B with fp32 masters and 7B in bf16 throughout, eager and compiled, local batch 1, 2 and 4."""
    meter = EnergyMeter(Nvml("GPU-" + str(torch.cuda.get_device_properties(0).uuid)))
    for shape, master in ((LLAMA_1B, "fp32"), (LLAMA_7B, "bf16")):
        for batch in (1, 2, 4):
            for compiled in (False, True):
                case = StepCase(**shape, seq_len=4096, micro_batch=batch, compiled=compiled, master=master)
                key = f"{case.model}/{batch}/{compiled}/{master}"
                yield key, lambda c=case: run_step(c, "cuda", steps=12, meter=meter)


def collect(path: Path, tasks: Iterator[Task]) -> None:
    """Run what the file does not have yet; errors are records too."""
    done = {json.loads(line)["key"] for line in path.read_text().splitlines()} if path.exists() else set()
    with path.open("a", encoding="utf-8") as file:
        for number, (key, run) in enumerate(tasks):
            if key in done:
                continue
            try:
                record = run()
            except (RuntimeError, torch.OutOfMemoryError) as error:
                record = {"error": str(error).splitlines()[0]}
            file.write(json.dumps({"key": key} | record) + "\n")
            file.flush()
            gc.collect()
            torch.cuda.empty_cache()
            if number % 100 == 0:
                print(path.name, number, file=sys.stderr)


def main() -> None:
    """Whatever was named, or everything."""
    out, *wanted = Path(sys.argv[1]), *sys.argv[2:]
    out.mkdir(parents=True, exist_ok=True)
    for name, tasks in (("kernels", kernels), ("power", power), ("steps", steps)):
        if not wanted or name in wanted:
            collect(out / f"{name}.jsonl", tasks())


if __name__ == "__main__":
    main()
