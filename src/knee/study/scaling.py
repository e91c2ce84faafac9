"""Claims about more GPUs: weak and strong scaling, power (Figures 1, 3, 4 and 5, sections 4.1, 4.2 and 5)."""

from __future__ import annotations

from itertools import pairwise

from knee.study.claim import (
    NOISE,
    WEAK,
    Finding,
    change,
    efficiency,
    falling,
    listed,
    load,
    per_gpu,
    rising,
    strong,
    watts,
    weak,
    within,
)
from knee.study.runs import Bench

# ---- numbers -------------------------------------------------------------------------------------------------------


def t01(b: Bench) -> Finding:
    value = 100 * change(b, per_gpu, 128, 2048)
    return within(value, -42.22, -32.22, f"{value:+.2f}%")


def small_scale(b: Bench) -> Finding:
    value = 100 * change(b, per_gpu, 8, 128)
    return within(value, -6.0, 100.0, f"{value:+.2f}%")


def t06(b: Bench) -> Finding:
    base = b.weak(2048)
    gain = max(per_gpu(b.weak(2048, tp=t)) for t in (2, 4)) / per_gpu(base) - 1
    return within(100 * gain, 40.0, 60.0, f"{100 * gain:+.2f}%")


def tp2_at_256(b: Bench) -> Finding:
    gain = 100 * (per_gpu(b.weak(256, tp=2)) / per_gpu(b.weak(256)) - 1)
    return within(gain, -2.0, 100.0, f"{gain:+.2f}%")


def t09(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=512).result.mfu_frac
    return within(value, 36.77, 44.77, f"{value:.2f}%")


def t08(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=512, cluster="dgx-a100").result.mfu_frac
    return within(value, 55.67, 63.67, f"{value:.2f}%")


def t10(b: Bench) -> Finding:
    h100 = b.best(gpus=256, global_batch=512).exposed_frac
    a100 = b.best(gpus=256, global_batch=512, cluster="dgx-a100").exposed_frac
    value = 100 * (h100 - a100)
    return within(value, 0.9 * 12.83, 1.1 * 12.83, f"{value:+.2f} points")


def t03(b: Bench) -> Finding:
    value = watts(b.weak(128))
    return within(value, 658 * 0.97, 658 * 1.03, f"{value:.0f} W")


def t05(b: Bench) -> Finding:
    value = 100 * change(b, watts, 128, 2048)
    return within(value, -7.5, -4.5, f"{value:+.2f}%")


def t07(b: Bench) -> Finding:
    best = max((b.weak(2048, tp=t) for t in (2, 4)), key=per_gpu)
    value = watts(best) - watts(b.weak(2048))
    return within(value, 15.0, 45.0, f"{value:+.0f} W")


def t12(b: Bench) -> Finding:
    value = 100 * b.best(gpus=16, global_batch=32).result.mfu_frac
    return within(value, 36.0, 44.0, f"{value:.1f}%")


def t13(b: Bench) -> Finding:
    value = 100 * b.best(gpus=256, global_batch=32).result.mfu_frac
    return within(value, 0.0, 15.0, f"{value:.2f}%")


# ---- weak scaling, Figures 3 and 4 ---------------------------------------------------------------------------------


def t19(b: Bench) -> Finding:
    total = weak(b, lambda r: r.result.tokens_per_s)
    below = all(v <= total[0] * n / WEAK[0] * (1 + 1e-9) for n, v in zip(WEAK, total, strict=True))
    return Finding(holds=rising(total) and below, value=listed(total))


def t20(b: Bench) -> Finding:
    values = weak(b, per_gpu)
    flat = all(y <= x * (1 + NOISE) for x, y in pairwise(values))
    return Finding(holds=flat and falling(values[4:]), value=listed(values, ",.0f"))


def t21(b: Bench) -> Finding:
    values = weak(b, lambda r: r.result.mfu_frac)
    return Finding(
        holds=all(y <= x * (1 + NOISE) for x, y in pairwise(values)) and values[-1] < values[0] * (1 - NOISE),
        value=listed(values),
    )


def t22(b: Bench) -> Finding:
    values = weak(b, efficiency)
    return Finding(
        holds=all(y <= x * (1 + NOISE) for x, y in pairwise(values)) and values[-1] < values[0] * (1 - NOISE),
        value=listed(values),
    )


def t23(b: Bench) -> Finding:
    values = weak(b, watts)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < 0.10, value=f"watts per GPU within {spread:.1%}")


def t24(b: Bench) -> Finding:
    values = weak(b, lambda r: r.result.compute_load_s)
    spread = max(values) / min(values) - 1
    return Finding(holds=spread < NOISE, value=f"compute time varies by {spread:.1%}")


def t25(b: Bench) -> Finding:
    values = weak(b, lambda r: r.result.comm_load_s)
    return Finding(holds=rising(values), value=listed(values))


def t26(b: Bench) -> Finding:
    values = weak(b, lambda r: r.result.exposed_comm_s)
    return Finding(holds=rising(values), value=listed(values))


def t27(b: Bench) -> Finding:
    values = weak(b, lambda r: load(r, "all_gather"))
    return Finding(holds=rising(values), value=listed(values))


def t28(b: Bench) -> Finding:
    values = weak(b, lambda r: load(r, "reduce_scatter"))
    return Finding(holds=rising(values), value=listed(values))


def t29(b: Bench) -> Finding:
    values = weak(b, lambda r: r.exposed_frac, (8, 16, 32))
    return Finding(
        holds=max(values) < 0.05, value="exposed " + listed([100 * v for v in values]) + "% at 8, 16, 32 GPUs"
    )


# ---- strong scaling, Figure 5 --------------------------------------------------------------------------------------


def t30(b: Bench) -> Finding:
    total = strong(b, lambda r: r.result.tokens_per_s)
    ratios = [y / x for x, y in pairwise(total)]
    return Finding(
        holds=rising(total, NOISE) and all(r < 2 for r in ratios) and ratios[-1] < ratios[0],
        value="each doubling buys " + listed(ratios) + "x",
    )


def t31(b: Bench) -> Finding:
    values = strong(b, per_gpu)
    return Finding(holds=falling(values, NOISE), value=listed(values, ",.0f"))


def t32(b: Bench) -> Finding:
    values = strong(b, lambda r: r.result.mfu_frac)
    return Finding(holds=falling(values, NOISE), value=listed(values))


def t33(b: Bench) -> Finding:
    values = strong(b, efficiency)
    return Finding(holds=falling(values, NOISE), value=listed(values))


def t34(b: Bench) -> Finding:
    values = strong(b, lambda r: r.result.compute_load_s)
    return Finding(holds=falling(values, NOISE), value=listed(values))


def t35(b: Bench) -> Finding:
    shares = strong(b, lambda r: r.result.compute_s / r.result.step_s)
    return Finding(holds=shares[0] > 0.5 and shares[-1] < 0.5, value="compute share " + listed(shares))
