"""Loads whose draw tells the power model: idle, products and copies at several duties, attention, mixes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knee.probe.nvml import EnergyMeter, Nvml
from knee.record.readings import PowerPoint, Record

SETTLE_S = 0.8
"""Run before a window, so that clocks and the power limit have settled."""
WINDOW_S = 2.6
"""More than twenty refreshes of the counter."""
SIDE = 8192
COPY_BYTES = 2.0**32
SPIN_HZ = 1.6e9
"""Clock by which a spinning kernel's cycles are counted; a duty is nominal, what was done is what counts."""

DUTIES = {"gemm": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2), "copy": (1.0, 0.6, 0.3)}
MIXES = {"mixed_4_1": (4, 1), "mixed_2_2": (2, 2), "mixed_1_4": (1, 4)}
"""Products and copies of half a gigabyte, one after the other."""
ATTENTION = ("flash2", "cudnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work that can be repeated."""

    flop: float
    moved_bytes: float
    run: Callable[[], Any]


def power_points(*, quick: bool = False) -> list[PowerPoint]:
    """Idle first, while the GPU is cool, then every load."""
    names = ["idle", *(() if quick else (f"attention_{kernel}" for kernel in ATTENTION)), *MIXES]
    points = [PowerPoint(load=name, duty_frac=float(name != "idle")) for name in names]
    for load, duties in DUTIES.items():
        points += [PowerPoint(load=load, duty_frac=duty) for duty in (duties[::2] if quick else duties)]
    return points


def load_of(point: PowerPoint) -> Load:
    """What runs."""
    if point.load in MIXES:
        return _mixed(*MIXES[point.load])
    if point.load.startswith("attention_"):
        return _attention(point.load.removeprefix("attention_"))
    load = _mixed(4, 0) if point.load == "gemm" else _copy()
    return Load(flop=load.flop, moved_bytes=load.moved_bytes, run=_at_duty(load.run, point.duty_frac))


def _at_duty(run: Callable[[], Any], duty: float) -> Callable[[], Any]:
    """The work, then a kernel that spins long enough for the duty."""
    import torch

    def paced() -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        if duty < 1:
            end.synchronize()
            torch.cuda._sleep(int(start.elapsed_time(end) * 1e-3 * (1 / duty - 1) * SPIN_HZ))

    return paced


def _mixed(products: int, copies: int) -> Load:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    source = torch.empty(int(COPY_BYTES / 16), device="cuda", dtype=torch.int16) if copies else None
    target = torch.empty_like(source) if source is not None else None

    def run() -> None:
        for _ in range(products):
            torch.mm(a, b, out=c)
        for _ in range(copies):
            target.copy_(source)

    moved = products * 6.0 * SIDE**2 + copies * COPY_BYTES / 4
    return Load(flop=products * 2.0 * SIDE**3, moved_bytes=moved, run=run)


def _copy() -> Load:
    import torch

    source = torch.empty(int(COPY_BYTES / 2), device="cuda", dtype=torch.int16)
    target = torch.empty_like(source)
    return Load(flop=0.0, moved_bytes=2 * COPY_BYTES, run=lambda: target.copy_(source))


def _attention(kernel: str) -> Load:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backend = {"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[kernel]
    batch, heads, seq_len, head_dim, calls = 4, 32, 4096, 128, 8
    q = torch.randn(batch, heads, seq_len, head_dim, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        with sdpa_kernel(backend):
            for _ in range(calls):
                scaled_dot_product_attention(q, q, q, is_causal=True)

    flop = calls * 2.0 * batch * heads * seq_len**2 * head_dim
    return Load(flop=flop, moved_bytes=calls * 8.0 * q.numel(), run=run)


def measure_power(point: PowerPoint, nvml: Nvml, *, window_s: float = WINDOW_S) -> Record:
    """Repeat a load for a window and read the counter; the clock and the instant draw beside it."""
    import torch

    load = load_of(point) if point.load != "idle" else _idle()
    meter, clocks, instants, calls = EnergyMeter(nvml), [], [], 0
    settled = time.perf_counter() + SETTLE_S * (2 if point.load == "idle" else 1)
    while time.perf_counter() < settled:
        load.run()
        torch.cuda.synchronize()
    meter.start()
    end = looked = time.perf_counter()
    end += window_s
    while time.perf_counter() < end:
        load.run()
        torch.cuda.synchronize()
        calls += 1
        if time.perf_counter() - looked > nvml.refresh_s:
            looked = time.perf_counter()
            clocks.append(nvml.sm_hz())
            instants.append(nvml.instant_w())
    joules = meter.stop()
    return {
        "calls": calls,
        "flop_per_call": load.flop,
        "bytes_per_call": load.moved_bytes,
        "window_s": meter.window_s,
        "energy_j": joules,
        "power_w": joules / meter.window_s,
        "instant_w": _mean(instants),
        "sm_hz": _mean(clocks),
    }


def _idle() -> Load:
    """A context and no work."""
    import torch

    torch.zeros(1, device="cuda")
    return Load(flop=0.0, moved_bytes=0.0, run=lambda: time.sleep(0.01))


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None
