"""Claims about model size, sequence length, context parallelism, memory and collectives (Figures 2, 8, 9, 12, 14)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from knee.cost import nccl
from knee.study.claim import LENGTHS, NOISE, SIZES, Finding, efficiency, falling, listed, per_gpu, rising, weak
from knee.study.runs import Bench, Run

# ---- model size, sequence length, context parallelism, memory: Figures 8, 9, 12 and 14 -----------------------------


def _sizes(b: Bench, get: Callable[[Run], float]) -> list[float]:
    return [get(b.best(gpus=256, global_batch=256, model=m)) for m in SIZES]


def _baseline(b: Bench, model: str) -> Run:
    """Pure FSDP where it fits, else the least total model parallelism that does."""
    for total in (1, 2, 4, 8, 16, 32):
        runs = []
        for t in DEGREES_OF[total]:
            jobs = b.candidates(gpus=256, global_batch=256, model=model, tp=(t,), pp=(total // t,))
            if jobs:
                runs.append(b.best(gpus=256, global_batch=256, model=model, tp=(t,), pp=(total // t,)))
        runs = [r for r in runs if r.result.fits]
        if runs:
            return max(runs, key=per_gpu)
    raise AssertionError(f"{model} fits nowhere on 256 GPUs")


DEGREES_OF = {
    total: tuple(t for t in (1, 2, 4, 8, 16) if total % t == 0 and total // t <= 16) for total in (1, 2, 4, 8, 16, 32)
}


def t51(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.comm_load_s)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t52(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.compute_load_s)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t53(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.exposed_s)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t54(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.mfu_frac)
    return Finding(holds=falling(values, NOISE), value=listed(values))


def t55(b: Bench) -> Finding:
    pairs = []
    for m in SIZES:
        base = _baseline(b, m)
        limit = base.job.plan.tp * base.job.plan.pp
        better = [
            r
            for r in (
                b.best(gpus=256, global_batch=256, model=m, tp=(t,), pp=(p,))
                for t in (1, 2, 4, 8)
                for p in (1, 2, 4, 8)
                if t * p > limit and b.candidates(gpus=256, global_batch=256, model=m, tp=(t,), pp=(p,))
            )
            if r.result.fits
        ]
        best = max(better, key=per_gpu)
        pairs.append(best.exposed_s / base.exposed_s - 1)
    return Finding(
        holds=all(v < -NOISE for v in pairs),
        value=", ".join(f"{m} {v:+.0%}" for m, v in zip(SIZES, pairs, strict=True)),
    )


def t56(b: Bench) -> Finding:
    gains = []
    for m in SIZES:
        base = _baseline(b, m)
        gains.append(per_gpu(b.best(gpus=256, global_batch=256, model=m)) / per_gpu(base) - 1)
    return Finding(
        holds=all(v > NOISE for v in gains), value=", ".join(f"{m} {v:+.1%}" for m, v in zip(SIZES, gains, strict=True))
    )


def _lengths(b: Bench, get: Callable[[Run], float]) -> list[float]:
    return [get(b.run(gpus=256, global_batch=256, seq_len=s)) for s in LENGTHS]


def t57(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.exposed_frac)
    return Finding(holds=falling(values, NOISE), value="share " + listed(values))


def t58(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.mfu_frac)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t59(b: Bench) -> Finding:
    values = _lengths(b, efficiency)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t60(b: Bench) -> Finding:
    values = _lengths(b, per_gpu)
    return Finding(holds=rising(values, NOISE), value=listed(values, ",.0f"))


def t61(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.comm_load_s - r.result.straggler_s)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < NOISE, value=f"load varies by {spread:.1%}, waiting for stragglers apart")


def t62(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.compute_load_s)
    return Finding(holds=rising(values, NOISE), value=listed(values))


def t63(b: Bench) -> Finding:
    gains = [
        per_gpu(b.weak(256, cp=d, cp_method=how, micro_batch=2 * d)) / per_gpu(b.weak(256, tp=d)) - 1
        for d in (2, 4, 8)
        for how in ("allgather", "ring")
    ]
    return Finding(holds=max(gains) < -NOISE, value=f"CP against TP: {min(gains):+.1%} to {max(gains):+.1%}")


def t64(b: Bench) -> Finding:
    values = weak(b, lambda r: r.result.memory_bytes / 2**30)
    drops = [x - y for x, y in pairwise(values)]
    # beyond about a thousand ranks FSDP2's padding of dimension 0 eats what sharding still saves
    return Finding(holds=all(d > 0 for d in drops[:-1]) and falling(drops[:-1]), value=listed(values, ".1f") + " GiB")


# ---- collectives, Figure 2 -----------------------------------------------------------------------------------------

_NODES = np.array([4, 8, 16, 32, 64, 128, 256, 512])


def _busbw(collective: Literal["all_reduce", "all_gather"], size_bytes: float) -> list[float]:
    seconds, _, _ = nccl.best(
        version="2.20",
        arch="hopper",
        collective=collective,
        message_bytes=np.full(8, size_bytes),
        ranks=8 * _NODES,
        nodes=_NODES,
    )
    return [
        float(x) / 1e9 for x in nccl.bus_bandwidth_bytes_per_s(collective, np.full(8, size_bytes), 8 * _NODES, seconds)
    ]


def t65(b: Bench) -> Finding:
    del b
    loss = 1 - _busbw("all_reduce", 2.0**30)[-1] / _busbw("all_reduce", 2.0**30)[0]
    return Finding(holds=loss < 0.25, value=f"1 GiB loses {loss:.0%} from 4 to 512 nodes (figure 2a: 15%)")


def t66(b: Bench) -> Finding:
    del b
    values = _busbw("all_gather", 2.0**30)
    return Finding(holds=falling(values, NOISE), value=listed(values, ",.0f") + " GB/s at 1 GiB")


def t67(b: Bench) -> Finding:
    del b
    gather, reduce = _busbw("all_gather", 2.0**28)[-1], _busbw("all_reduce", 2.0**28)[-1]
    return Finding(
        holds=gather < reduce * (1 - NOISE), value=f"{gather:.0f} against {reduce:.0f} GB/s at 512 nodes, 256 MiB"
    )
