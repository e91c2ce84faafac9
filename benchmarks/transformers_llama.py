"""The reference of a real step: transformers' LlamaForCausalLM as it comes, on one GPU.

    python benchmarks/transformers_llama.py [--steps 60] [--warmup 10] [--out FILE.json]

Llama-2-7B, two sequences of 4,096 tokens, bf16 parameters, fused AdamW, SDPA attention, eager and compiled: what
``knee train llama2-7b --state-dtype bf16`` is held against, measured in the same session on the same GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import time

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"skipped: {error}")
    raise SystemExit(0) from None

BATCH, SEQ_LEN = 2, 4096
SHAPE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}


def tokens_per_s(*, compiled: bool, steps: int, warmup: int) -> float:
    """All tokens of the measured steps over all their time."""
    config = LlamaConfig(
        **SHAPE, vocab_size=32000, max_position_embeddings=SEQ_LEN, use_cache=False, attn_implementation="sdpa"
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(32000, (BATCH, SEQ_LEN), device="cuda")
    call = torch.compile(model) if compiled else model

    def step() -> None:
        call(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps - warmup):
        step()
    torch.cuda.synchronize()
    return BATCH * SEQ_LEN * (steps - warmup) / (time.perf_counter() - start)


def main() -> None:
    """Print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--out")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return
    found = {}
    for name, compiled in (("eager", False), ("compiled", True)):
        torch._dynamo.reset()
        found[name] = tokens_per_s(compiled=compiled, steps=given.steps, warmup=given.warmup)
        print(f"transformers {name}: {found[name]:,.0f} tokens/s", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "tokens_per_s": found,
                    "steps": given.steps,
                    "warmup": given.warmup,
                    "torch": torch.__version__,
                    "gpu": torch.cuda.get_device_name(),
                },
                file,
                indent=2,
            )


if __name__ == "__main__":
    main()
