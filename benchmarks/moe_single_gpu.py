"""A mixture of experts on one GPU: knee's trainer beside transformers' model as it comes.

    python benchmarks/moe_single_gpu.py FILE.json [--layers 8] [--batch 2] [--seq-len 4096] [--only NAME ...]

Qwen3-30B-A3B with fewer layers, bf16 parameters and moments, AdamW, SDPA attention. FILE.json has tokens per second and
peak memory of every variant, what failed and why, how far grouped products are from a loop over experts, and how often
the host waited for the GPU in a step of knee's. It is written after every variant.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from knee.specs.model import Experts, Model
from knee.specs.plan import Plan
from knee.training.parallelism.experts import grouped_product
from knee.training.parallelism.mesh import local_device, make_mesh
from knee.training.parallelism.trainer import Trainer
from knee.training.parallelism.trainer_job import TrainJob

VOCAB, LR, CLIP = 151936, 3e-4, 1.0
KNEE = {
    "knee eager": {},
    "knee compiled": {"compile": True},
    "knee compiled, balanced": {"compile": True, "routing": "balanced"},
    "knee compiled, recompute full": {"compile": True, "recompute": "full"},
}
TRANSFORMERS = {
    "transformers eager, grouped_mm": ("grouped_mm", False),
    "transformers compiled, grouped_mm": ("grouped_mm", True),
    "transformers eager, loop": ("eager", False),
}
UNEVEN = (0, 1, 7, 0, 333, 1024, 2, 681)
"""Rows of experts in the check of grouped products; not multiples of anything, some of them none."""
Step = Callable[[Any], Any]


def knee_step(given: argparse.Namespace, settings: dict[str, Any]) -> Step:
    """One step of knee's trainer."""
    job_settings = {name: value for name, value in settings.items() if name != "recompute"}
    model = Model(
        name="qwen3-30b-a3b",
        layers=given.layers,
        hidden=2048,
        ffn=6144,
        heads=32,
        kv_heads=4,
        head_size=128,
        vocab=VOCAB,
        qk_norm="head",
        rope_base=1e6,
        max_seq_len=40960,
        experts=Experts(count=128, top_k=8, ffn=768),
    )
    job = TrainJob(
        model=model,
        plan=Plan(micro_batch=given.batch, state_dtype="bf16", recompute=settings.get("recompute", "none")),
        gpus=1,
        global_batch=given.batch,
        seq_len=given.seq_len,
        device=given.device,
        dtype="bf16",
        lr=LR,
        clip_norm=CLIP,
        **job_settings,
    )
    trainer = Trainer(job, make_mesh(job.plan, local_device(given.device)))
    return lambda tokens: trainer.step(tokens).loss_tensor


def transformers_step(given: argparse.Namespace, experts: str, *, compiled: bool) -> Step:
    """One step of transformers' model."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=given.layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=VOCAB,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        experts_implementation=experts,
    )
    with torch.device(given.device):
        model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    call = torch.compile(model) if compiled else model

    def step(tokens: Any) -> Any:
        loss = call(input_ids=tokens[:, :-1], labels=tokens[:, :-1], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def measured(given: argparse.Namespace, make: Callable[[], Step], *, counts_waits: bool) -> dict[str, Any]:
    """Tokens per second of the steps after the warm-up, and the peak memory of these."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(VOCAB, (given.batch, given.seq_len + 1), generator=generator) for _ in range(4)]
    batches = [batch.to(given.device) for batch in batches]
    began = time.perf_counter()
    step = make()
    first = float(step(batches[0]))
    found: dict[str, Any] = {"first_loss": first, "first_step_s": time.perf_counter() - began}
    for i in range(1, given.warmup):
        step(batches[i % 4])
    if given.device == "cuda" and counts_waits:
        found["host_waits"] = host_waits(lambda: step(batches[0]))
    synchronize(given)
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for i in range(given.steps):
        loss = step(batches[i % 4])
    synchronize(given)
    taken = time.perf_counter() - began
    found |= {
        "tokens_per_s": given.batch * given.seq_len * given.steps / taken,
        "step_s": taken / given.steps,
        "last_loss": float(loss),
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if given.device == "cuda" else None,
    }
    if given.profile and given.device == "cuda":
        found["kernels_ms"] = kernels_ms(lambda: step(batches[0]))
    return found


def synchronize(given: argparse.Namespace) -> None:
    """Wait for the GPU."""
    if given.device == "cuda":
        torch.cuda.synchronize()


def host_waits(run: Callable[[], Any]) -> int:
    """How often a step makes the host wait for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in heard)


def kernels_ms(run: Callable[[], Any], most: int = 25) -> dict[str, float]:
    """The longest kernels of one step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)[:most]
    return {event.key[:120]: event.self_device_time_total / 1e3 for event in events}


def grouped_errors(device: str) -> dict[str, float]:
    """Largest differences of a grouped product and its gradients from a loop over experts, over the largest value."""
    torch.manual_seed(0)
    counts = torch.tensor(UNEVEN, device=device)
    rows = torch.randn(sum(UNEVEN), 256, device=device, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(len(UNEVEN), 384, 256, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(sum(UNEVEN), 384, device=device, dtype=torch.bfloat16)
    out = grouped_product(rows, weights, counts.cumsum(0).to(torch.int32))
    found = (out, *torch.autograd.grad(out, (rows, weights), grad))
    parts = zip(rows.float().split(UNEVEN), weights.float(), strict=True)
    looped = torch.cat([part @ weight.T for part, weight in parts])
    expected = (looped, *torch.autograd.grad(looped, (rows, weights), grad.float()))
    names = ("product", "gradient of rows", "gradient of weights")
    return {
        name: float((a.float() - b.float()).abs().max() / b.float().abs().max())
        for name, a, b in zip(names, found, expected, strict=True)
    }


def main() -> None:
    """Print, and write after every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="Beginnings of names of variants.")
    parser.add_argument("--profile", action="store_true", help="Also list the longest kernels of one step.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if given.device == "cuda" else None,
        "settings": {name: value for name, value in vars(given).items() if name != "out"},
        "grouped_errors": grouped_errors(given.device),
        "variants": {},
    }
    makers: dict[str, Callable[[], Step]] = {
        name: lambda settings=settings: knee_step(given, settings) for name, settings in KNEE.items()
    }
    makers |= {
        name: lambda how=how: transformers_step(given, how[0], compiled=how[1]) for name, how in TRANSFORMERS.items()
    }
    for name, make in makers.items():
        if given.only and not name.startswith(tuple(given.only)):
            continue
        torch._dynamo.reset()
        try:
            result = measured(given, make, counts_waits=name.startswith("knee"))
        except Exception as error:  # a variant that fails does not take the others with it
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        found["variants"][name] = result
        print(name, json.dumps({key: value for key, value in result.items() if key != "kernels_ms"}), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
