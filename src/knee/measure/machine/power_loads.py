"""Loads whose draw tells the power model: idle, products and copies at several duties, attention, mixes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from knee.base.errors import InputError
from knee.base.units import GIB, show
from knee.measure.machine.machine_facts import describe, need_torch, same_gpu
from knee.measure.machine.nvml import VISIBLE, Nvml, meter_of, refuse_if_shared
from knee.measure.machine.readings import Machine, PowerPoint, Record

SETTLE_S = 1.2
"""Run before a window, so that clocks, the power limit and readings that are means of a second have settled."""
WINDOW_S = 2.6
"""More than twenty refreshes of the counter."""
SIDE = 8192
COPY_BYTES = GIB
"""Far above any cache, and small enough for small GPUs."""
NEEDED_BYTES = 3 * GIB
"""Two buffers, the products' operands, and what a context takes."""
SPIN_HZ = 1.6e9
"""Clock by which a spinning kernel's cycles are counted; a duty is nominal, what was done is what counts."""

DUTIES = {"gemm": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2), "copy": (1.0, 0.6, 0.3)}
OTHER_DUTIES = (1.0, 0.5)
"""Of mixes and attention: at the cap, where they say how it bends, and well below it, where they say what they draw."""
MIXES = {"mixed_4_1": (4, 1), "mixed_2_2": (2, 2), "mixed_1_4": (1, 4)}
"""Products and copies of half a gigabyte, one after the other."""
ATTENTION = ("flash2", "cudnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLoad:
    """Work that can be repeated."""

    flop: float
    moved_bytes: float
    run: Callable[[], Any]


def power_points(*, quick: bool = False) -> list[PowerPoint]:
    """Idle first, while the GPU is cool, then every load."""
    attention = () if quick else tuple(f"attention_{kernel}" for kernel in ATTENTION)
    duties = {"idle": (0.0,)} | dict.fromkeys((*attention, *MIXES), OTHER_DUTIES[: 1 if quick else None])
    duties |= {load: every[:: 2 if quick else 1] for load, every in DUTIES.items()}
    return [PowerPoint(load=load, duty_frac=duty) for load, every in duties.items() for duty in every]


def ready_gpu(*, anyway: bool) -> tuple[Machine, Nvml]:
    """The GPU that will be measured, or one sentence about why it cannot be; no CUDA context before it is sure."""
    need_torch("knee probe power")
    nvml = Nvml()
    if not anyway:
        refuse_if_shared(nvml)
    if nvml.mig:
        raise InputError(
            f"{nvml.called} is split into MIG instances, which have no power readings of their own",
            hint=f"choose a GPU without MIG instances with {VISIBLE}",
            code="split-gpu",
            field=VISIBLE,
        )
    if (free := nvml.free_bytes()) < NEEDED_BYTES:
        raise InputError(
            f"the loads need {show(NEEDED_BYTES, 'bytes')} of GPU memory, but only {show(free, 'bytes')} of "
            f"{show(nvml.limits().memory_bytes, 'bytes')} are free on {nvml.called}",
            hint=f"stop the processes that use the rest, or choose another GPU with {VISIBLE}",
            code="out-of-memory",
            field=VISIBLE,
        )
    import torch

    if not torch.cuda.is_available():
        why = "finds no GPU" if torch.version.cuda else "was built without CUDA"
        text = f"{nvml.called} is installed, but torch {torch.__version__} {why}"
        raise InputError(text, hint="`knee doctor` shows the devices of this machine", code="no-gpu")
    nvml = same_gpu(nvml)
    return describe("power", "cuda", nvml=nvml), nvml


def load_of(point: PowerPoint) -> PowerLoad:
    """The work of a point; none but a CUDA context for idle."""
    if point.load == "idle":
        import torch

        torch.zeros(1, device="cuda")
        return PowerLoad(flop=0.0, moved_bytes=0.0, run=lambda: time.sleep(0.01))
    if point.load in MIXES:
        load = _mixed(*MIXES[point.load])
    elif point.load.startswith("attention_"):
        load = _attention(point.load.removeprefix("attention_"))
    else:
        load = _mixed(4, 0) if point.load == "gemm" else _mixed(0, 8)
    return PowerLoad(flop=load.flop, moved_bytes=load.moved_bytes, run=_at_duty(load.run, point.duty_frac))


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


def _mixed(products: int, copies: int) -> PowerLoad:
    import torch

    a, b = (_random(SIDE, SIDE) for _ in range(2))
    c = torch.empty_like(a)
    source = torch.empty(int(COPY_BYTES / 4), device="cuda", dtype=torch.int16)
    target = torch.empty_like(source)

    def run() -> None:
        for _ in range(products):
            torch.mm(a, b, out=c)
        for _ in range(copies):
            target.copy_(source)

    # a product reads two matrices and writes one, a copy reads and writes half a gigabyte
    moved = products * 6.0 * SIDE**2 + copies * COPY_BYTES
    return PowerLoad(flop=products * 2.0 * SIDE**3, moved_bytes=moved, run=run)


def _random(*shape: int) -> Any:
    """Random values draw more than zeros do; in the 16-bit type that the GPU's tensor cores take."""
    import torch

    both = torch.cuda.get_device_capability()[0] >= 8
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16 if both else torch.float16)


def _attention(kernel: str) -> PowerLoad:
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from knee.measure.machine.kernel_timing import backend_of

    backend = backend_of(kernel)
    batch, heads, seq_len, head_dim, calls = 4, 32, 4096, 128, 8
    q = _random(batch, heads, seq_len, head_dim)

    def run() -> None:
        with sdpa_kernel(backend):
            for _ in range(calls):
                scaled_dot_product_attention(q, q, q, is_causal=True)

    flop = calls * 2.0 * batch * heads * seq_len**2 * head_dim
    return PowerLoad(flop=flop, moved_bytes=calls * 8.0 * q.numel(), run=run)


def measure_power(point: PowerPoint, nvml: Nvml, *, window_s: float = WINDOW_S) -> Record:
    """Repeat a load for a window and read its energy; the clock and the instant draw beside it."""
    import torch

    load, meter, calls = load_of(point), meter_of(nvml), 0
    clocks: list[float] = []
    instants: list[float] = []
    held: list[tuple[bool, bool]] = []

    def work() -> None:
        nonlocal calls
        load.run()
        torch.cuda.synchronize()
        calls += 1

    settled = time.perf_counter() + SETTLE_S
    while time.perf_counter() < settled:
        work()
    meter.start(work)
    before, looked = calls, time.perf_counter()
    end = looked + window_s
    while (now := time.perf_counter()) < end:
        work()
        if now - looked > nvml.refresh_s:
            looked = now
            clocks.append(nvml.sm_hz())
            instants.append(nvml.instant_w())
            held.append(nvml.held_by())
    # the load goes on until the counter's next refresh: a GPU that rests there would pull the mean down
    joules = meter.stop(work)
    return {
        "calls": calls - before,
        "flop_per_call": load.flop,
        "bytes_per_call": load.moved_bytes,
        "window_s": meter.window_s,
        "energy_j": joules,
        "power_w": joules / meter.window_s,
        "by": meter.by,
        "uncertainty_frac": meter.uncertainty_frac,
        "instant_w": _mean(instants),
        "sm_hz": _mean(clocks),
        "capped_frac": _mean([float(cap) for cap, _ in held]),
        "hot_frac": _mean([float(heat) for _, heat in held]),
    }


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None
