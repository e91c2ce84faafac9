"""The claims of arXiv 2411.13055 that one step of the simulator can be held against, each as a test.

Assumptions where the paper is silent, written down before any result was seen:
- plans are FSDP without resharding in forward, no recomputation, sequence parallelism inside TP, gradients reduced in
  fp32; a plan must fit in memory to count;
- TP is innermost and PP next to it, so that groups of up to 8 stay inside a node: section 4.3 calls both kinds of
  groups "across multiple nodes" only above 8 (a first run had stages outermost, which that sentence rules out);
- a pipeline plan runs its best schedule (1F1B, zero bubble, interleaved with 2, 4 or 8 chunks) and micro-batch;
- exposed communication of a pipeline counts its bubble, because in a Kineto trace a waiting stage sits in a receive
  kernel, which is how the paper measured it;
- Figure 7 has Figure 6's load (local batch 2); Figure 8 ran on 32 nodes with local batch 1 for every size, where the
  three smaller models fit under pure FSDP, and 70B's baseline is the least model parallelism that fits;
- Figure 9 swept 1,024 to 8,192 tokens at local batch 1 under pure FSDP on 32 nodes; Figure 12 compares equal degrees
  (2, 4, 8) of CP and TP on 32 nodes at local batch 2; Figure 2 is NCCL 2.20's own cost model on idle nodes;
- orderings must hold beyond 1% noise where the paper says better, worse, higher or lower, and within 1% where it says
  constant or comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from knee.cost import nccl
from knee.study.runs import Bench, Run

NOISE = 0.01
WEAK = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
STRONG = (16, 32, 64, 128, 256)
SIZES = ("llama-1b", "llama2-7b", "llama2-13b", "llama2-70b")
LENGTHS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the simulator says to a claim."""

    holds: bool
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper."""

    id: str
    statement: str
    paper: str
    """What the paper says, as it says it."""
    bar: str
    """What counts as reproduced."""
    test: Callable[[Bench], Finding]
    fitted: bool = False
    """Whether a parameter of the profile was fitted on it."""


def _within(value: float, low: float, high: float, shown: str) -> Finding:
    return Finding(holds=low <= value <= high, value=shown)


def _rising(values: list[float], noise: float = 0.0) -> bool:
    return all(b > a * (1.0 + noise) for a, b in zip(values, values[1:], strict=False))


def _falling(values: list[float], noise: float = 0.0) -> bool:
    return all(b < a * (1.0 - noise) for a, b in zip(values, values[1:], strict=False))


def _list(values: list[float], form: str = ".3g") -> str:
    return ", ".join(format(v, form) for v in values)


def _weak(b: Bench, get: Callable[[Run], float], counts: tuple[int, ...] = WEAK) -> list[float]:
    return [get(b.weak(n)) for n in counts]


def _strong(b: Bench, get: Callable[[Run], float]) -> list[float]:
    return [get(b.best(gpus=n, global_batch=32)) for n in STRONG]


def _per_gpu(r: Run) -> float:
    return r.result.tokens_per_s_per_gpu


def _watts(r: Run) -> float:
    return float(r.result.power_w_per_gpu or np.nan)


def _efficiency(r: Run) -> float:
    return float(r.result.tokens_per_j or np.nan)


def _load(r: Run, collective: str) -> float:
    return sum(c.load_s for c in r.result.comm_loads if c.collective == collective and c.group == "dp_shard")


def _change(b: Bench, get: Callable[[Run], float], start: int, end: int) -> float:
    return get(b.weak(end)) / get(b.weak(start)) - 1.0


# ---- numbers -------------------------------------------------------------------------------------------------------


def t01(b: Bench) -> Finding:
    value = 100 * _change(b, _per_gpu, 128, 2048)
    return _within(value, -42.22, -32.22, f"{value:+.2f}%")


def small_scale(b: Bench) -> Finding:
    value = 100 * _change(b, _per_gpu, 8, 128)
    return _within(value, -6.0, 100.0, f"{value:+.2f}%")


def t06(b: Bench) -> Finding:
    base = b.weak(2048)
    gain = max(_per_gpu(b.weak(2048, tp=t)) for t in (2, 4)) / _per_gpu(base) - 1
    return _within(100 * gain, 40.0, 60.0, f"{100 * gain:+.2f}%")


def tp2_at_256(b: Bench) -> Finding:
    gain = 100 * (_per_gpu(b.weak(256, tp=2)) / _per_gpu(b.weak(256)) - 1)
    return _within(gain, -2.0, 100.0, f"{gain:+.2f}%")


def t09(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=512).result.mfu_frac
    return _within(value, 36.77, 44.77, f"{value:.2f}%")


def t08(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=512, cluster="dgx-a100").result.mfu_frac
    return _within(value, 55.67, 63.67, f"{value:.2f}%")


def t10(b: Bench) -> Finding:
    h100 = b.best(gpus=256, global_batch=512).exposed_frac
    a100 = b.best(gpus=256, global_batch=512, cluster="dgx-a100").exposed_frac
    value = 100 * (h100 - a100)
    return _within(value, 0.9 * 12.83, 1.1 * 12.83, f"{value:+.2f} points")


def t03(b: Bench) -> Finding:
    value = _watts(b.weak(128))
    return _within(value, 658 * 0.97, 658 * 1.03, f"{value:.0f} W")


def t05(b: Bench) -> Finding:
    value = 100 * _change(b, _watts, 128, 2048)
    return _within(value, -7.5, -4.5, f"{value:+.2f}%")


def t07(b: Bench) -> Finding:
    best = max((b.weak(2048, tp=t) for t in (2, 4)), key=_per_gpu)
    value = _watts(best) - _watts(b.weak(2048))
    return _within(value, 15.0, 45.0, f"{value:+.0f} W")


def t12(b: Bench) -> Finding:
    value = 100 * b.best(gpus=16, global_batch=32).result.mfu_frac
    return _within(value, 36.0, 44.0, f"{value:.1f}%")


def t13(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=32).result.mfu_frac
    return _within(value, 0.0, 15.0, f"{value:.1f}%")


# ---- weak scaling, Figures 3 and 4 ---------------------------------------------------------------------------------


def t19(b: Bench) -> Finding:
    total = _weak(b, lambda r: r.result.tokens_per_s)
    below = all(v <= total[0] * n / WEAK[0] * (1 + 1e-9) for n, v in zip(WEAK, total, strict=True))
    return Finding(holds=_rising(total) and below, value=_list(total))


def t20(b: Bench) -> Finding:
    values = _weak(b, _per_gpu)
    flat = all(y <= x * (1 + NOISE) for x, y in zip(values, values[1:], strict=False))
    return Finding(holds=flat and _falling(values[4:]), value=_list(values, ".0f"))


def t21(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.result.mfu_frac)
    return Finding(holds=all(y <= x * (1 + NOISE) for x, y in zip(values, values[1:], strict=False)) and values[-1] < values[0] * (1 - NOISE),
                   value=_list(values))


def t22(b: Bench) -> Finding:
    values = _weak(b, _efficiency)
    return Finding(holds=all(y <= x * (1 + NOISE) for x, y in zip(values, values[1:], strict=False)) and values[-1] < values[0] * (1 - NOISE),
                   value=_list(values))


def t23(b: Bench) -> Finding:
    values = _weak(b, _watts)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < 0.10, value=f"watts per GPU within {spread:.1%}")


def t24(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.result.compute_load_s)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < NOISE, value=f"compute time varies by {spread:.1%}")


def t25(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.result.comm_load_s)
    return Finding(holds=_rising(values), value=_list(values))


def t26(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.result.exposed_comm_s)
    return Finding(holds=_rising(values), value=_list(values))


def t27(b: Bench) -> Finding:
    values = _weak(b, lambda r: _load(r, "all_gather"))
    return Finding(holds=_rising(values), value=_list(values))


def t28(b: Bench) -> Finding:
    values = _weak(b, lambda r: _load(r, "reduce_scatter"))
    return Finding(holds=_rising(values), value=_list(values))


def t29(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.exposed_frac, (8, 16, 32))
    return Finding(holds=max(values) < 0.05, value="exposed " + _list([100 * v for v in values]) + "% at 8, 16, 32 GPUs")


# ---- strong scaling, Figure 5 --------------------------------------------------------------------------------------


def t30(b: Bench) -> Finding:
    total = _strong(b, lambda r: r.result.tokens_per_s)
    ratios = [y / x for x, y in zip(total, total[1:], strict=False)]
    return Finding(holds=_rising(total, NOISE) and all(r < 2 for r in ratios) and ratios[-1] < ratios[0],
                   value="each doubling buys " + _list(ratios) + "x")


def t31(b: Bench) -> Finding:
    values = _strong(b, _per_gpu)
    return Finding(holds=_falling(values, NOISE), value=_list(values, ".0f"))


def t32(b: Bench) -> Finding:
    values = _strong(b, lambda r: r.result.mfu_frac)
    return Finding(holds=_falling(values, NOISE), value=_list(values))


def t33(b: Bench) -> Finding:
    values = _strong(b, _efficiency)
    return Finding(holds=_falling(values, NOISE), value=_list(values))


def t34(b: Bench) -> Finding:
    values = _strong(b, lambda r: r.result.compute_load_s)
    return Finding(holds=_falling(values, NOISE), value=_list(values))


def t35(b: Bench) -> Finding:
    shares = _strong(b, lambda r: r.result.compute_s / r.result.step_s)
    return Finding(holds=shares[0] > 0.5 and shares[-1] < 0.5, value="compute share " + _list(shares))


# ---- model parallelism, Figures 6, 7, 10 and 13 --------------------------------------------------------------------


def _small_plans(b: Bench) -> dict[str, Run]:
    """TP 2 and 4 without a pipeline, PP 2 and 4 without TP, at 256 GPUs and local batch 2."""
    runs = {f"tp{t}": b.weak(256, tp=t) for t in (2, 4)}
    return runs | {f"pp{p}": b.best(gpus=256, global_batch=512, tp=(1,), pp=(p,)) for p in (2, 4)}


def t36(b: Bench) -> Finding:
    base = b.weak(256).exposed_s
    shares = {name: r.exposed_s / base - 1 for name, r in _small_plans(b).items()}
    return Finding(holds=all(v < -NOISE for v in shares.values()), value=", ".join(f"{k} {v:+.0%}" for k, v in shares.items()))


def t37(b: Bench) -> Finding:
    base = _per_gpu(b.weak(256))
    gains = {name: _per_gpu(r) / base - 1 for name, r in _small_plans(b).items()}
    comparable = all(v >= -NOISE for v in gains.values())
    return Finding(holds=comparable and max(gains.values()) > NOISE, value=", ".join(f"{k} {v:+.1%}" for k, v in gains.items()))


def t38(b: Bench) -> Finding:
    base = _efficiency(b.weak(256))
    gains = {name: _efficiency(r) / base - 1 for name, r in _small_plans(b).items()}
    return Finding(holds=all(v >= -NOISE for v in gains.values()) and max(gains.values()) > NOISE,
                   value="tokens/J " + ", ".join(f"{k} {v:+.1%}" for k, v in gains.items()))


def t39(b: Bench) -> Finding:
    gains = [_per_gpu(b.weak(n, tp=t)) / _per_gpu(b.weak(n)) - 1 for n in (256, 512, 1024, 2048) for t in (2, 4)]
    return Finding(holds=min(gains) >= -NOISE, value=f"least {min(gains):+.1%}, most {max(gains):+.1%}")


def t40(b: Bench) -> Finding:
    parts = []
    for cluster in ("dgx-h100", "dgx-a100"):
        for axis in ("tp", "pp"):
            rest = {"tp": {"pp": (1,)}, "pp": {"tp": (1,)}}[axis]
            inside, across = (b.best(gpus=256, global_batch=512, cluster=cluster, **{axis: (d,)}, **rest).exposed_frac
                              for d in (8, 16))
            parts.append((f"{cluster} {axis}", across / inside - 1))
    return Finding(holds=all(v > 0.10 for _, v in parts), value=", ".join(f"{k} {v:+.0%}" for k, v in parts))


def t41(b: Bench) -> Finding:
    speeds = [_per_gpu(b.weak(256, tp=t)) for t in (1, 2, 4, 8, 16)]
    peak = int(np.argmax(speeds))
    return Finding(holds=0 < peak < 4 and speeds[-1] < max(speeds) * (1 - NOISE), value=_list(speeds, ".0f"))


def t42(b: Bench) -> Finding:
    found = []
    for cluster in ("dgx-h100", "dgx-a100"):
        base = b.weak(256, cluster=cluster)
        runs = [b.weak(256, cluster=cluster, tp=t) for t in (2, 4)]
        runs += [b.best(gpus=256, global_batch=512, cluster=cluster, tp=(1,), pp=(p,)) for p in (2, 4)]
        runs += [b.best(gpus=256, global_batch=512, cluster=cluster, tp=(2,), pp=(2,))]
        found.append(any(_per_gpu(r) > _per_gpu(base) * (1 + NOISE) and r.exposed_s < base.exposed_s * (1 - NOISE) for r in runs))
    return Finding(holds=all(found), value=f"H100 {'yes' if found[0] else 'no'}, A100 {'yes' if found[1] else 'no'}")


def t43(b: Bench) -> Finding:
    sizes = {c.group_size for t, p in ((2, 1), (4, 1), (2, 2)) for c in
             b.best(gpus=256, global_batch=512, tp=(t,), pp=(p,)).result.comm_loads if c.group == "dp_shard" and t * p == 4}
    return Finding(holds=sizes == {64}, value=f"group of {sizes} for a total degree of 4 on 256 GPUs")


def t44(b: Bench) -> Finding:
    degrees = []
    for gpus in (256, 2048):
        best = _per_gpu(b.best(gpus=gpus, global_batch=2 * gpus))
        runs = [b.weak(gpus, tp=t) for t in (1, 2, 4, 8)]
        runs += [b.best(gpus=gpus, global_batch=2 * gpus, tp=(t,), pp=(p,)) for t in (1, 2, 4) for p in (2, 4)]
        degrees.append(min(r.job.plan.tp * r.job.plan.pp for r in runs if _per_gpu(r) >= best * (1 - NOISE)))
    return Finding(holds=degrees[1] > degrees[0], value=f"{degrees[0]} at 256 GPUs, {degrees[1]} at 2,048")


def t47(b: Bench) -> Finding:
    options = {"cluster": "dgx-v100", "profile": "paper-v100"}
    base = b.run(gpus=256, global_batch=256, **options)
    best = b.best(gpus=256, global_batch=256, **options)
    gain = _per_gpu(best) / _per_gpu(base) - 1
    mp = best.job.plan.tp * best.job.plan.pp
    return Finding(holds=gain > NOISE and mp > 1, value=f"{gain:+.1%} with a total degree of {mp}; FSDP fits: {base.result.fits}")


def t48(b: Bench) -> Finding:
    v100 = b.best(gpus=256, global_batch=256, cluster="dgx-v100", profile="paper-v100").result.mfu_frac
    a100 = b.best(gpus=256, global_batch=512, cluster="dgx-a100").result.mfu_frac
    return Finding(holds=v100 < a100 * (1 - NOISE), value=f"V100 {v100:.1%}, A100 {a100:.1%}")


def t49(b: Bench) -> Finding:
    ratio = b.cluster("dgx-h100").gpu.fp16_flop_per_s / b.cluster("dgx-a100").gpu.fp16_flop_per_s
    return Finding(holds=ratio > 3, value=f"{ratio:.2f}x")


def t50(b: Bench) -> Finding:
    ratio = b.cluster("dgx-h100").node.link_bytes_per_s / b.cluster("dgx-a100").node.link_bytes_per_s
    return Finding(holds=abs(ratio - 1.5) < 0.015, value=f"NVLink {ratio:.2f}x")


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
            return max(runs, key=_per_gpu)
    raise AssertionError(f"{model} fits nowhere on 256 GPUs")


DEGREES_OF = {total: tuple(t for t in (1, 2, 4, 8, 16) if total % t == 0 and total // t <= 16) for total in (1, 2, 4, 8, 16, 32)}


def t51(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.comm_load_s)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t52(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.compute_load_s)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t53(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.exposed_s)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t54(b: Bench) -> Finding:
    values = _sizes(b, lambda r: r.result.mfu_frac)
    return Finding(holds=_falling(values, NOISE), value=_list(values))


def t55(b: Bench) -> Finding:
    pairs = []
    for m in SIZES:
        base = _baseline(b, m)
        limit = base.job.plan.tp * base.job.plan.pp
        better = [r for r in (b.best(gpus=256, global_batch=256, model=m, tp=(t,), pp=(p,)) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8)
                              if t * p > limit and b.candidates(gpus=256, global_batch=256, model=m, tp=(t,), pp=(p,))) if r.result.fits]
        best = max(better, key=_per_gpu)
        pairs.append(best.exposed_s / base.exposed_s - 1)
    return Finding(holds=all(v < -NOISE for v in pairs), value=", ".join(f"{m} {v:+.0%}" for m, v in zip(SIZES, pairs, strict=True)))


def t56(b: Bench) -> Finding:
    gains = []
    for m in SIZES:
        base = _baseline(b, m)
        gains.append(_per_gpu(b.best(gpus=256, global_batch=256, model=m)) / _per_gpu(base) - 1)
    return Finding(holds=all(v > NOISE for v in gains), value=", ".join(f"{m} {v:+.1%}" for m, v in zip(SIZES, gains, strict=True)))


def _lengths(b: Bench, get: Callable[[Run], float]) -> list[float]:
    return [get(b.run(gpus=256, global_batch=256, seq_len=s)) for s in LENGTHS]


def t57(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.exposed_frac)
    return Finding(holds=_falling(values, NOISE), value="share " + _list(values))


def t58(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.mfu_frac)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t59(b: Bench) -> Finding:
    values = _lengths(b, _efficiency)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t60(b: Bench) -> Finding:
    values = _lengths(b, _per_gpu)
    return Finding(holds=_rising(values, NOISE), value=_list(values, ".0f"))


def t61(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.comm_load_s - r.result.straggler_s)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < NOISE, value=f"load varies by {spread:.1%}, waiting for stragglers apart")


def t62(b: Bench) -> Finding:
    values = _lengths(b, lambda r: r.result.compute_load_s)
    return Finding(holds=_rising(values, NOISE), value=_list(values))


def t63(b: Bench) -> Finding:
    gains = [_per_gpu(b.weak(256, cp=d, cp_method=how, micro_batch=2 * d)) / _per_gpu(b.weak(256, tp=d)) - 1
             for d in (2, 4, 8) for how in ("allgather", "ring")]
    return Finding(holds=max(gains) < -NOISE, value=f"CP against TP: {min(gains):+.1%} to {max(gains):+.1%}")


def t64(b: Bench) -> Finding:
    values = _weak(b, lambda r: r.result.memory_bytes / 2**30)
    drops = [x - y for x, y in zip(values, values[1:], strict=False)]
    # beyond about a thousand ranks FSDP2's padding of dimension 0 eats what sharding still saves
    return Finding(holds=all(d > 0 for d in drops[:-1]) and _falling(drops[:-1]), value=_list(values, ".1f") + " GiB")


# ---- collectives, Figure 2 -----------------------------------------------------------------------------------------

_NODES = np.array([4, 8, 16, 32, 64, 128, 256, 512])


def _busbw(collective: Literal["all_reduce", "all_gather"], size_bytes: float) -> list[float]:
    seconds, _, _ = nccl.best(version="2.20", arch="hopper", collective=collective, message_bytes=np.full(8, size_bytes),
                              ranks=8 * _NODES, nodes=_NODES)
    return [float(x) / 1e9 for x in nccl.bus_bandwidth_bytes_per_s(collective, np.full(8, size_bytes), 8 * _NODES, seconds)]


def t65(b: Bench) -> Finding:
    del b
    loss = 1 - _busbw("all_reduce", 2.0**30)[-1] / _busbw("all_reduce", 2.0**30)[0]
    return Finding(holds=loss < 0.25, value=f"1 GiB loses {loss:.0%} from 4 to 512 nodes (figure 2a: 15%)")


def t66(b: Bench) -> Finding:
    del b
    values = _busbw("all_gather", 2.0**30)
    return Finding(holds=_falling(values, NOISE), value=_list(values, ".0f") + " GB/s at 1 GiB")


def t67(b: Bench) -> Finding:
    del b
    gather, reduce = _busbw("all_gather", 2.0**28)[-1], _busbw("all_reduce", 2.0**28)[-1]
    return Finding(holds=gather < reduce * (1 - NOISE), value=f"{gather:.0f} against {reduce:.0f} GB/s at 512 nodes, 256 MiB")


def _claim(id: str, statement: str, paper: str, bar: str, test: Callable[[Bench], Finding], fitted: bool = False) -> Claim:
    return Claim(id=id, statement=statement, paper=paper, bar=bar, test=test, fitted=fitted)


CLAIMS: tuple[Claim, ...] = (
    _claim("T01", "FSDP throughput per GPU, 128 to 2,048 H100s", "-37.22%", "within 5 points", t01, True),
    _claim("T01a", "FSDP throughput per GPU, 8 to 128 H100s", "hidden behind compute", "less than 6% lost", small_scale),
    _claim("T03", "power per GPU at 128 GPUs", "658 W", "within 3%", t03, True),
    _claim("T05", "power per GPU, 128 to 2,048 GPUs", "-5.87%", "-7.5 to -4.5%", t05, True),
    _claim("T06", "best of TP 2 and 4 over FSDP at 2,048 GPUs", "+52.60%", "+40 to +60%", t06, True),
    _claim("T07", "extra power of TP at 2,048 GPUs", "+30 W", "+15 to +45 W", t07),
    _claim("T08", "MFU of the best plan on 256 A100s", "59.67%", "within 4 points", t08, True),
    _claim("T09", "MFU of the best plan on 256 H100s", "40.77%", "within 4 points", t09, True),
    _claim("T10", "exposed share, 256 H100s against 256 A100s", "+12.83", "within 10%", t10),
    _claim("T12", "strong scaling at batch 32: MFU on 2 nodes", "about 40%", "36 to 44%", t12),
    _claim("T13", "strong scaling at batch 32: MFU on 32 nodes", "less than 15%", "less than 15%", t13),
    _claim("T19", "global throughput rises with GPUs, below the ideal line", "rises, sub-linear", "every doubling", t19),
    _claim("T20", "throughput per GPU does not rise; clear decline above 128", "falls", "every doubling", t20),
    _claim("T21", "MFU falls with GPUs", "falls", "beyond noise in all", t21),
    _claim("T22", "tokens per joule fall with GPUs", "fall", "beyond noise in all", t22),
    _claim("T23", "total power is about linear in GPUs", "linear", "watts per GPU within 10%", t23),
    _claim("T24", "compute time per GPU is constant", "constant", "within 1%", t24),
    _claim("T25", "communication load rises with GPUs", "rises", "every doubling", t25),
    _claim("T26", "exposed communication rises with GPUs", "rises", "every doubling", t26),
    _claim("T27", "all-gather time rises with world size", "rises", "every doubling", t27),
    _claim("T28", "reduce-scatter time rises with world size", "rises", "every doubling", t28),
    _claim("T29", "at small scale communication hides behind compute", "minimal overhead", "below 5% of the step to 32 GPUs", t29),
    _claim("T30", "strong scaling: diminishing returns", "rises, less and less", "each doubling below 2x, the last below the first", t30),
    _claim("T31", "strong scaling: throughput per GPU falls", "falls", "every doubling", t31),
    _claim("T32", "strong scaling: MFU falls", "falls", "every doubling", t32),
    _claim("T33", "strong scaling: tokens per joule fall", "fall", "every doubling", t33),
    _claim("T34", "strong scaling: compute time per GPU falls", "falls", "every doubling", t34),
    _claim("T35", "strong scaling: from compute-bound to communication-bound", "turns", "compute above, then below half of the step", t35),
    _claim("T36", "TP or PP of 2 or 4 expose less than FSDP at 256 GPUs", "less", "each of the four, beyond 1%", t36),
    _claim("T37", "TP or PP of 2 or 4 are as fast as FSDP at 256 GPUs, the best faster", "better or comparable", "none 1% slower, one 1% faster", t37),
    _claim("T38", "the same for tokens per joule", "higher", "none 1% lower, one 1% higher", t38),
    _claim("T39", "TP 2 and 4 no slower than FSDP above 128 GPUs", "better or comparable", "none 1% slower, 256 to 2,048", t39),
    _claim("T40", "degrees above 8 expose substantially more", "more", "10% more share at 16 than at 8, TP and PP, both GPUs", t40),
    _claim("T41", "throughput rises, then falls with model parallelism", "interior optimum", "TP 1 to 16 at 256 GPUs", t41),
    _claim("T42", "some plan is faster and exposes less, on both A100 and H100", "exists", "beyond 1% in both", t42),
    _claim("T43", "FSDP's group is GPUs over the total model-parallel degree", "n / m", "exact", t43),
    _claim("T44", "the best total degree is larger at 2,048 GPUs than at 256", "larger", "least degree within 1% of the best", t44),
    _claim("T47", "V100: the best plan has model parallelism", "higher", "beyond 1%", t47),
    _claim("T48", "V100's utilisation is below A100's", "below", "beyond 1%", t48),
    _claim("T49", "H100 over A100, tensor-core rate", "more than 3x", "more than 3x", t49),
    _claim("T50", "H100 over A100, NVLink", "1.5x", "within 1%", t50),
    _claim("T51", "communication grows with model size", "grows", "1B, 7B, 13B, 70B, beyond 1%", t51),
    _claim("T52", "compute grows with model size", "grows", "beyond 1%", t52),
    _claim("T53", "exposed communication grows with model size", "grows", "beyond 1%", t53),
    _claim("T54", "MFU falls with model size", "falls", "beyond 1%", t54),
    _claim("T55", "the best model-parallel plan exposes less than the baseline at every size", "less", "beyond 1%", t55),
    _claim("T56", "the best plan is faster than the baseline at every size", "faster", "beyond 1%", t56),
    _claim("T57", "exposed communication falls with sequence length", "falls", "share of the step, every doubling", t57),
    _claim("T58", "MFU rises with sequence length", "rises", "every doubling", t58),
    _claim("T59", "tokens per joule rise with sequence length", "rise", "every doubling", t59),
    _claim("T60", "throughput rises with sequence length", "rises", "every doubling", t60),
    _claim("T61", "communication load is constant in sequence length", "constant", "within 1%", t61),
    _claim("T62", "compute grows with sequence length", "grows", "every doubling", t62),
    _claim("T63", "context parallelism is slower than tensor parallelism at 4k", "slower", "at 2, 4 and 8, both methods", t63),
    _claim("T64", "memory falls with data-parallel size, less and less", "falls", "to 1,024 GPUs", t64),
    _claim("T65", "all-reduce scales well with nodes", "well", "1 GiB loses less than a quarter to 512 nodes", t65),
    _claim("T66", "all-gather bandwidth falls with nodes", "falls", "every doubling", t66),
    _claim("T67", "all-gather is slower than all-reduce at many nodes", "slower", "at 512 nodes", t67),
)
