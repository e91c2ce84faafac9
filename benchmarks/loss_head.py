"""Output projection and loss on one GPU: the trainer's loss beside a chunked one that never holds all logits.

    PYTHONPATH=src python benchmarks/loss_head.py [--json FILE] [--chunks 4,8,16] [--shapes 7b,8b]

Forward and backward in bf16, by CUDA events; ``peak_bytes`` is what a pass takes beyond its inputs. The chunked loss
computes the gradients of a chunk of tokens while its logits are there, so it has the same three products, and the
weight's gradient is summed over chunks: in bf16, or in fp32 at the price of more bytes. ``residual_norm`` is the sum at
the end of a block and the norm at the start of the next: two programs, as the trainer compiles them, and one.

    PYTHONPATH=src python benchmarks/loss_head.py --device cpu --dtype float32 --shapes tiny   # do they agree?
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from knee.training.parallelism.decoder import cross_entropy
from knee.training.parallelism.layer_functions import linear, rms_norm
from knee.training.parallelism.trainer import compiled

SHAPES = {"7b": (8192, 4096, 32_000), "8b": (8192, 4096, 128_256), "tiny": (96, 32, 160)}
"""Tokens, width, vocabulary."""
WARM_UP, RUNS, SHARE = 5, 20, 0.25
"""``SHARE`` of the loss is what backward starts from, as with four microbatches."""


def loss_and_gradient(logits: Any, target: Any, each: float) -> tuple[Any, Any]:
    """The sum of a chunk's losses, and its gradient with each token's loss times ``each``."""
    wide = logits.float()
    shifted = wide - wide.amax(-1, keepdim=True)
    total = shifted.exp().sum(-1, keepdim=True)
    picked = shifted.gather(-1, target.unsqueeze(-1))
    column = torch.arange(logits.shape[-1], device=logits.device)
    gradient = (shifted.exp() / total - (column == target.unsqueeze(-1)).float()) * each
    return (total.log() - picked).sum(), gradient.to(logits.dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, target: Any, chunks: int, sum_dtype: Any, of_chunk: Any) -> Any:
        loss = torch.zeros((), device=x.device)
        of_weight = torch.zeros(weight.shape, dtype=sum_dtype, device=x.device)
        of_x = torch.empty_like(x)
        rows = -(-x.shape[0] // chunks)
        for part, out, labels in zip(x.split(rows), of_x.split(rows), target.split(rows), strict=True):
            part_loss, gradient = of_chunk(part @ weight.t(), labels, 1 / x.shape[0])
            loss += part_loss
            torch.mm(gradient, weight, out=out)
            _add_product(of_weight, gradient.t(), part)
        ctx.save_for_backward(of_x, of_weight)
        ctx.dtype = weight.dtype
        return loss / x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_x, of_weight = ctx.saved_tensors
        return of_x.mul_(grad), of_weight.mul_(grad).to(ctx.dtype), None, None, None, None


def _add_product(total: Any, a: Any, b: Any) -> None:
    """Add ``a`` times ``b``; in fp32 without a copy of the product where torch can."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a.to(total.dtype) @ b.to(total.dtype)


def present(loss: Callable[..., Any], x: Any, weight: Any, target: Any) -> Any:
    """The trainer's head: an eager product and the compiled loss."""
    return loss(linear(x.unsqueeze(0), weight), target.unsqueeze(0), None)


def chunked(of_chunk: Callable[..., Any], chunks: int, sum_dtype: Any, x: Any, weight: Any, target: Any) -> Any:
    """The same, a chunk of tokens at a time."""
    return _ChunkedLoss.apply(x, weight, target, chunks, sum_dtype, of_chunk)


def run(head: Callable[..., Any], x: Any, weight: Any, target: Any) -> tuple[Any, Any, Any]:
    """Loss and gradients."""
    x.grad = weight.grad = None
    loss = head(x, weight, target)
    (loss * SHARE).backward()
    return loss.detach(), x.grad, weight.grad


def measure(work: Callable[[], Any], device: str) -> dict[str, float]:
    """The median, the least and the peak of memory."""
    if device != "cuda":
        work()
        start = time.perf_counter()
        work()
        return {"median_ms": 1e3 * (time.perf_counter() - start)}
    gc.collect()
    before, times = torch.cuda.memory_allocated(), []
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    ms = [start.elapsed_time(end) for start, end in times]
    peak = torch.cuda.max_memory_allocated() - before
    return {"median_ms": statistics.median(ms), "least_ms": min(ms), "peak_bytes": peak}


def difference(found: Any, right: Any) -> float:
    """The norm of the difference, relative."""
    return float((found.float() - right.float()).norm() / right.float().norm())


def heads(name: str, device: str, dtype: Any, chunk_counts: list[int]) -> list[dict[str, Any]]:
    """Every variant of the head for one shape."""
    tokens, width, vocabulary = SHAPES[name]
    generator = torch.Generator(device).manual_seed(1)
    x = torch.empty(tokens, width, dtype=dtype, device=device).normal_(generator=generator).requires_grad_()
    weight = torch.empty(vocabulary, width, dtype=dtype, device=device).normal_(0, 0.02, generator=generator)
    weight.requires_grad_()
    target = torch.randint(vocabulary, (tokens,), device=device, generator=generator)
    variants: dict[str, Callable[..., Any]] = {"present": partial(present, compiled(cross_entropy))}
    of_chunk = compiled(loss_and_gradient)
    for chunks in chunk_counts:
        for sum_dtype in dict.fromkeys((dtype, torch.float32)):
            label = f"chunked {chunks}, weight's gradient in {str(sum_dtype).removeprefix('torch.')}"
            variants[label] = partial(chunked, of_chunk, chunks, sum_dtype)
    first: list[Any] | None = None
    rows: list[dict[str, Any]] = []
    for label, head in variants.items():
        row: dict[str, Any] = {"case": "head", "shape": name, "variant": label}
        rows.append(row)
        try:
            results = [t.cpu() for t in run(head, x, weight, target)]
            first = first or results
            differences = [difference(*pair) for pair in zip(results, first, strict=True)]
            row.update(zip(("loss_diff", "input_gradient_diff", "weight_gradient_diff"), differences, strict=True))
            x.grad = weight.grad = None
            row.update(measure(partial(run, head, x, weight, target), device))
        except (RuntimeError, TypeError) as error:
            row["error"] = str(error).splitlines()[0]
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def residual_norm(name: str, device: str, dtype: Any) -> list[dict[str, Any]]:
    """A sum and a norm in two compiled programs, and in one."""
    tokens, width, _ = SHAPES[name]
    x, y = (torch.randn(tokens, width, dtype=dtype, device=device, requires_grad=True) for _ in range(2))
    scale = torch.ones(width, dtype=dtype, device=device, requires_grad=True)
    outer = torch.randn(tokens, width, dtype=dtype, device=device)
    add = compiled(lambda x, y: x + y)
    norm = compiled(lambda x, scale: (x, rms_norm(x, scale, 1e-5)))
    variants = {
        "two programs": lambda: norm(add(x, y), scale),
        "one program": partial(compiled(lambda x, y, scale: (x + y, rms_norm(x + y, scale, 1e-5))), x, y, scale),
    }

    def both(forward: Callable[[], Any]) -> None:
        x.grad = y.grad = scale.grad = None
        torch.autograd.backward(forward(), (outer, outer))

    rows: list[dict[str, Any]] = []
    for label, forward in variants.items():
        x.grad = y.grad = scale.grad = None
        row = {"case": "residual_norm", "shape": name, "variant": label, **measure(partial(both, forward), device)}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure what is asked for and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there instead of to stdout")
    parser.add_argument("--shapes", default="7b,8b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--chunks", default="4,8,16", help="numbers of chunks")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    asked = parser.parse_args()
    dtype = getattr(torch, asked.dtype)
    rows = residual_norm(asked.shapes.split(",")[0], asked.device, dtype)
    for name in asked.shapes.split(","):
        rows += heads(name, asked.device, dtype, [int(n) for n in asked.chunks.split(",")])
        gc.collect()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    text = json.dumps({"torch": torch.__version__, "device": name, "rows": rows}, indent=1)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
