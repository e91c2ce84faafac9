"""A plain training step on one device: what a simulated step is held against. Needs torch and nothing else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from knee.measure.machine.kernel_grid import TINY
from knee.measure.machine.kernel_timing import Timing, backend_of, loss, rmsnorm, rope, swiglu, timing_of
from knee.measure.machine.readings import HostPoint, Record, StepPoint

WARMUP, STEPS = 3, 10
WINDOW_S = 2.5
"""More than twenty refreshes of the energy counter."""


def build(case: StepPoint, device: str) -> Any:
    """A Llama decoder in plain PyTorch."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            h, f, kv = case.hidden, case.ffn, case.hidden // case.heads * case.kv_heads
            self.wq, self.wk, self.wv = (nn.Linear(h, n, bias=False) for n in (h, kv, kv))
            self.wo, self.w1, self.w3 = (nn.Linear(h, n, bias=False) for n in (h, f, f))
            self.w2 = nn.Linear(f, h, bias=False)
            self.an, self.fn = nn.Parameter(torch.ones(h)), nn.Parameter(torch.ones(h))

        def forward(self, x: Any, turn: Any) -> Any:
            b, s, h = x.shape
            d = h // case.heads
            y = rmsnorm(x, self.an)
            q = rope(self.wq(y).view(b, s, case.heads, d), turn).transpose(1, 2)
            k = rope(self.wk(y).view(b, s, case.kv_heads, d), turn).transpose(1, 2)
            v = self.wv(y).view(b, s, case.kv_heads, d).transpose(1, 2)
            same = case.heads == case.kv_heads
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not same)
            x = x + self.wo(a.transpose(1, 2).reshape(b, s, h))
            y = rmsnorm(x, self.fn)
            return x + self.w2(swiglu(self.w1(y), self.w3(y)))

    class PlainDecoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(case.vocab, case.hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(case.layers))
            self.norm = nn.Parameter(torch.ones(case.hidden))
            self.output = nn.Linear(case.hidden, case.vocab, bias=False)

        def forward(self, tokens: Any, turn: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, turn)
            return self.output(rmsnorm(x, self.norm))

    with torch.device(device):
        model = PlainDecoder()
    model = model.to(torch.bfloat16) if case.master == "bf16" else model
    if case.compiled:
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer)
    return model


class PlainTrainer:
    """A model, its optimizer and a batch, ready to step."""

    def __init__(self, case: StepPoint, device: str) -> None:
        torch.manual_seed(0)
        self.case, self.cuda = case, device == "cuda"
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.model = build(case, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(case.vocab, (case.micro_batch, case.seq_len + 1), device=device)
        d = case.hidden // case.heads
        frequencies = 1e4 ** (-torch.arange(0, d, 2, device=device) / d)
        angles = torch.outer(torch.arange(case.seq_len, device=device), frequencies)
        self.turn = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
        self.cast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.cuda and case.master == "fp32")
        self.loss = torch.compile(loss) if case.compiled else loss

    def step(self) -> None:
        """Forward, backward, clipping, AdamW."""
        with self.cast, sdpa_kernel(backend_of(self.case.attention)):
            logits = self.model(self.tokens[:, :-1], self.turn)
        self.loss(logits.flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def whole_step(self) -> None:
        """A step, and nothing left on the device."""
        self.step()
        if self.cuda:
            torch.cuda.synchronize()

    def timed(self, *, steps: int, warmup: int, least_s: float = 0.0) -> Timing:
        """Whole steps, one after another: at least so many, and for at least so long."""
        for _ in range(warmup):
            self.whole_step()
        samples: list[float] = []
        while len(samples) < steps or sum(samples) < least_s:
            start = time.perf_counter()
            self.whole_step()
            samples.append(time.perf_counter() - start)
        return timing_of(samples)


def measure_step(point: StepPoint, device: str, *, meter: Any = None) -> Record:
    """Time whole steps. A ``meter`` reads their draw where there is one, from refresh to refresh of its counter."""
    trainer = PlainTrainer(point, device)
    trainer.timed(steps=1, warmup=WARMUP)
    if meter is not None:
        meter.start(trainer.whole_step)
    timing = trainer.timed(steps=STEPS, warmup=0, least_s=WINDOW_S if meter is not None else 0.0)
    joules = meter.stop(trainer.whole_step) if meter is not None else None
    return {
        "step_s": timing.median_s,
        "spread_frac": timing.spread_frac,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "power_w": joules / meter.window_s if meter is not None else None,
        "steps": timing.repeats,
    }


TINIEST = replace(TINY, model="tiniest", layers=12, hidden=128, ffn=352, heads=2, kv_heads=2, vocab=1024, seq_len=64)


def measure_host(point: HostPoint, device: str) -> Record:
    """Time of a step over the kernels in it."""
    trainer = PlainTrainer(replace(TINIEST, compiled=point.compiled), device)
    timing = trainer.timed(steps=20, warmup=5)
    kernels = _kernels(trainer.step)
    return {
        "median_s": timing.median_s / kernels,
        "spread_frac": timing.spread_frac,
        "repeats": timing.repeats,
        "kernels": kernels,
        "step_s": timing.median_s,
    }


def _kernels(step: Any) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
    found = sum(1 for event in seen.events() if event.device_type.name == "CUDA")
    if not found:
        raise RuntimeError("the profiler saw no kernel")
    return found
