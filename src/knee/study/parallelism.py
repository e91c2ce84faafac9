"""Claims about model parallelism and GPU generations (Figures 6, 7, 10 and 13)."""

from __future__ import annotations

import numpy as np

from knee.study.claim import NOISE, Finding, efficiency, listed, per_gpu
from knee.study.runs import Bench, Run

# ---- model parallelism, Figures 6, 7, 10 and 13 --------------------------------------------------------------------


def _small_plans(b: Bench) -> dict[str, Run]:
    """TP 2 and 4 without a pipeline, PP 2 and 4 without TP, at 256 GPUs and local batch 2."""
    runs = {f"tp{t}": b.weak(256, tp=t) for t in (2, 4)}
    return runs | {f"pp{p}": b.best(gpus=256, global_batch=512, tp=(1,), pp=(p,)) for p in (2, 4)}


def t36(b: Bench) -> Finding:
    base = b.weak(256).exposed_s
    shares = {name: r.exposed_s / base - 1 for name, r in _small_plans(b).items()}
    return Finding(
        holds=all(v < -NOISE for v in shares.values()), value=", ".join(f"{k} {v:+.0%}" for k, v in shares.items())
    )


def t37(b: Bench) -> Finding:
    base = per_gpu(b.weak(256))
    gains = {name: per_gpu(r) / base - 1 for name, r in _small_plans(b).items()}
    comparable = all(v >= -NOISE for v in gains.values())
    return Finding(
        holds=comparable and max(gains.values()) > NOISE, value=", ".join(f"{k} {v:+.1%}" for k, v in gains.items())
    )


def t38(b: Bench) -> Finding:
    base = efficiency(b.weak(256))
    gains = {name: efficiency(r) / base - 1 for name, r in _small_plans(b).items()}
    return Finding(
        holds=all(v >= -NOISE for v in gains.values()) and max(gains.values()) > NOISE,
        value="tokens/J " + ", ".join(f"{k} {v:+.1%}" for k, v in gains.items()),
    )


def t39(b: Bench) -> Finding:
    gains = [per_gpu(b.weak(n, tp=t)) / per_gpu(b.weak(n)) - 1 for n in (256, 512, 1024, 2048) for t in (2, 4)]
    return Finding(holds=min(gains) >= -NOISE, value=f"least {min(gains):+.1%}, most {max(gains):+.1%}")


def t40(b: Bench) -> Finding:
    parts = []
    for cluster in ("dgx-h100", "dgx-a100"):
        for axis in ("tp", "pp"):
            rest = {"tp": {"pp": (1,)}, "pp": {"tp": (1,)}}[axis]
            inside, across = (
                b.best(gpus=256, global_batch=512, cluster=cluster, **{axis: (d,)}, **rest).exposed_frac
                for d in (8, 16)
            )
            parts.append((f"{cluster} {axis}", across / inside - 1))
    return Finding(holds=all(v > 0.10 for _, v in parts), value=", ".join(f"{k} {v:+.0%}" for k, v in parts))


def t41(b: Bench) -> Finding:
    speeds = [per_gpu(b.weak(256, tp=t)) for t in (1, 2, 4, 8, 16)]
    peak = int(np.argmax(speeds))
    return Finding(holds=0 < peak < 4 and speeds[-1] < max(speeds) * (1 - NOISE), value=listed(speeds, ",.0f"))


def t42(b: Bench) -> Finding:
    found = []
    for cluster in ("dgx-h100", "dgx-a100"):
        base = b.weak(256, cluster=cluster)
        runs = [b.weak(256, cluster=cluster, tp=t) for t in (2, 4)]
        runs += [b.best(gpus=256, global_batch=512, cluster=cluster, tp=(1,), pp=(p,)) for p in (2, 4)]
        runs += [b.best(gpus=256, global_batch=512, cluster=cluster, tp=(2,), pp=(2,))]
        found.append(
            any(per_gpu(r) > per_gpu(base) * (1 + NOISE) and r.exposed_s < base.exposed_s * (1 - NOISE) for r in runs)
        )
    return Finding(holds=all(found), value=f"H100 {'yes' if found[0] else 'no'}, A100 {'yes' if found[1] else 'no'}")


def t43(b: Bench) -> Finding:
    sizes = {
        c.group_size
        for t, p in ((2, 1), (4, 1), (2, 2))
        for c in b.best(gpus=256, global_batch=512, tp=(t,), pp=(p,)).result.comm_loads
        if c.group == "dp_shard" and t * p == 4
    }
    return Finding(holds=sizes == {64}, value=f"group of {sizes} for a total degree of 4 on 256 GPUs")


def t44(b: Bench) -> Finding:
    degrees = []
    for gpus in (256, 2048):
        best = per_gpu(b.best(gpus=gpus, global_batch=2 * gpus))
        runs = [b.weak(gpus, tp=t) for t in (1, 2, 4, 8)]
        runs += [b.best(gpus=gpus, global_batch=2 * gpus, tp=(t,), pp=(p,)) for t in (1, 2, 4) for p in (2, 4)]
        degrees.append(min(r.job.plan.tp * r.job.plan.pp for r in runs if per_gpu(r) >= best * (1 - NOISE)))
    return Finding(holds=degrees[1] > degrees[0], value=f"{degrees[0]} at 256 GPUs, {degrees[1]} at 2,048")


def t47(b: Bench) -> Finding:
    options = {"cluster": "dgx-v100", "profile": "paper-v100"}
    base = b.run(gpus=256, global_batch=256, **options)
    best = b.best(gpus=256, global_batch=256, **options)
    gain = per_gpu(best) / per_gpu(base) - 1
    mp = best.job.plan.tp * best.job.plan.pp
    return Finding(
        holds=gain > NOISE and mp > 1, value=f"{gain:+.1%} with a total degree of {mp}; FSDP fits: {base.result.fits}"
    )


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
