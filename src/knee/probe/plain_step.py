"""A plain training step on one device: what a simulated step is held against. Needs torch and nothing else."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from knee.probe.kernels import loss, rmsnorm, rope, swiglu
from knee.probe.timing import timing_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A model and a batch."""

    model: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    micro_batch: int
    compiled: bool
    master: str = "fp32"
    """Type of the parameters and moments: fp32 with 16-bit compute, or bf16 throughout."""


def build(case: StepCase, device: str) -> Any:
    """A Llama decoder in plain PyTorch."""
    import torch
    from torch import nn

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

    class Decoder(nn.Module):
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
        model = Decoder()
    model = model.to(torch.bfloat16) if case.master == "bf16" else model
    if case.compiled:
        for i, layer in enumerate(model.layers):
            model.layers[i] = torch.compile(layer)
    return model


def run_step(case: StepCase, device: str, *, steps: int = 8, warmup: int = 3, meter: Any = None) -> dict[str, Any]:
    """Time whole steps: forward, backward, clipping, AdamW. A ``meter`` reads their energy where there is one."""
    import torch

    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = build(case, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    cuda = device == "cuda"
    tokens = torch.randint(case.vocab, (case.micro_batch, case.seq_len + 1), device=device)
    d = case.hidden // case.heads
    angles = torch.outer(torch.arange(case.seq_len, device=device), 1e4 ** (-torch.arange(0, d, 2, device=device) / d))
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
    cast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=cuda and case.master == "fp32")

    def step() -> None:
        with cast:
            logits = model(tokens[:, :-1], turn)
        run_loss(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    run_loss = torch.compile(loss) if case.compiled else loss
    samples = []
    for i in range(warmup + steps):
        if cuda:
            torch.cuda.synchronize()
        if i == warmup and meter is not None:
            meter.start()
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        if i >= warmup:
            samples.append(time.perf_counter() - start)
    joules = meter.stop() if meter is not None else None
    timing = timing_of(samples)
    peak = torch.cuda.max_memory_allocated() if cuda else None
    return asdict(case) | {
        "step_s": timing.median_s,
        "spread_frac": timing.spread_frac,
        "peak_bytes": peak,
        "energy_j": joules,
        "steps": steps,
        "measured_s": sum(samples),
    }
