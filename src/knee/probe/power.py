"""Loads whose draw tells the power model: idle, products and copies at several duties, attention, mixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from knee.probe.nvml import EnergyMeter, Nvml

SETTLE_S = 0.8
"""Run before a window, so that clocks and the power limit have settled."""
WINDOW_S = 2.6
"""More than twenty refreshes of the counter."""
SIDE = 8192
SPIN_HZ = 1.6e9
"""Clock by which a spinning kernel's cycles are counted; a duty is nominal, what was done is what counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One load over one window."""

    load: str
    duty_frac: float
    calls: int
    flop_per_call: float
    bytes_per_call: float
    window_s: float
    energy_j: float
    sm_hz: float
    """Mean clock of the multiprocessors."""

    @property
    def power_w(self) -> float:
        """Mean draw."""
        return self.energy_j / self.window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work that can be repeated."""

    name: str
    duty_frac: float
    flop: float
    moved_bytes: float
    run: Callable[[], Any]


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


def loads() -> Iterator[Load]:
    """One after another, so that each can free its memory."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    a, b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    product_flop, product_bytes = 2.0 * SIDE**3, 6.0 * SIDE**2

    def products(n: int) -> None:
        for _ in range(n):
            torch.mm(a, b, out=c)

    for duty in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2):
        run = _at_duty(lambda: products(4), duty)
        yield Load(name="gemm", duty_frac=duty, flop=4 * product_flop, moved_bytes=4 * product_bytes, run=run)
    x = torch.empty(2**31, device="cuda", dtype=torch.int16)
    y = torch.empty_like(x)
    for duty in (1.0, 0.6, 0.3):
        run = _at_duty(lambda: y.copy_(x), duty)
        yield Load(name="copy", duty_frac=duty, flop=0.0, moved_bytes=4.0 * x.numel(), run=run)
    q = torch.randn(4, 32, 4096, 128, device="cuda", dtype=torch.bfloat16)
    for name, backend in (("flash2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):

        def attend(backend: Any = backend) -> None:
            with sdpa_kernel(backend):
                for _ in range(8):
                    scaled_dot_product_attention(q, q, q, is_causal=True)

        flop = 8 * 2.0 * 4 * 32 * 4096**2 * 128
        yield Load(name=f"attention_{name}", duty_frac=1.0, flop=flop, moved_bytes=64.0 * q.numel(), run=attend)
    part, other = x[: 2**28], y[: 2**28]
    for n, copies in ((4, 1), (2, 2), (1, 4)):

        def mixed(n: int = n, copies: int = copies) -> None:
            products(n)
            for _ in range(copies):
                other.copy_(part)

        moved = n * product_bytes + copies * 4.0 * part.numel()
        yield Load(name=f"mixed_{n}_{copies}", duty_frac=1.0, flop=n * product_flop, moved_bytes=moved, run=mixed)


def measure_load(load: Load, nvml: Nvml, *, window_s: float = WINDOW_S) -> Reading:
    """Repeat a load for a window and read the counter."""
    import torch

    meter, clocks, calls = EnergyMeter(nvml), [], 0
    settled = time.perf_counter() + SETTLE_S
    while time.perf_counter() < settled:
        load.run()
        torch.cuda.synchronize()
    meter.start()
    end = time.perf_counter() + window_s
    while time.perf_counter() < end:
        load.run()
        torch.cuda.synchronize()
        calls += 1
        if calls % 20 == 0:
            clocks.append(nvml.sm_hz())
    joules = meter.stop()
    return Reading(
        load=load.name,
        duty_frac=load.duty_frac,
        calls=calls,
        flop_per_call=load.flop,
        bytes_per_call=load.moved_bytes,
        window_s=meter.window_s,
        energy_j=joules,
        sm_hz=sum(clocks) / max(len(clocks), 1),
    )


def measure_idle(nvml: Nvml, *, window_s: float = WINDOW_S) -> Reading:
    """The draw with a context and no work."""
    import torch

    torch.zeros(1, device="cuda")
    time.sleep(2 * SETTLE_S)
    meter = EnergyMeter(nvml)
    meter.start()
    time.sleep(window_s)
    joules = meter.stop()
    return Reading(
        load="idle",
        duty_frac=0.0,
        calls=0,
        flop_per_call=0.0,
        bytes_per_call=0.0,
        window_s=meter.window_s,
        energy_j=joules,
        sm_hz=nvml.sm_hz(),
    )


def record_of(reading: Reading) -> dict[str, Any]:
    """Plain data, the mean draw beside."""
    return asdict(reading) | {"power_w": reading.power_w}
