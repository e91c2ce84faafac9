"""Other tools, in a virtual environment of their own because they need other packages: ``make bench`` makes it.

Calculon (calculon-ai, the co-design tool for language models) is not compared: it is not on PyPI. The package
``calculon`` there is a producer-consumer library.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import knee

PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
LLM_ANALYSIS, HTA = "llm-analysis 0.2.2", "HTA 0.5.0"
"""As the Makefile installs them."""
LEFT_OUT = "Not compared: Calculon (calculon-ai) is not on PyPI; the package of that name there is another project."

ZERO_STAGE = {"ddp": 0, "zero1": 1, "zero2": 2}
"""Other shardings are its third stage."""
NODE = 8
"""GPUs: its largest tensor parallelism."""
RECOMPUTATION = {"none": 0, "attention": 1}
"""Other policies recompute everything there."""

LLM_ANALYSIS_RATE = """
import json, logging, sys, time
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name
from llm_analysis.logger import logger
logger.setLevel(logging.CRITICAL)
given = json.load(sys.stdin)
model = ModelConfig(**given["model"])
gpu, dtype = get_gpu_config_by_name("h100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")
best = 0.0
for _ in range(3):
    start = time.process_time()
    for tp, pp, dp, micro_batch, stage, recomputation in given["plans"]:
        split = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
        LLMAnalysis(model, gpu, dtype, split, flops_efficiency=0.6).training(
            batch_size_per_gpu=micro_batch, global_batch_size=given["global_batch"], seq_len=given["seq_len"],
            total_num_tokens=1, ds_zero=DSZeRO(stage),
            activation_recomputation=ActivationRecomputation(recomputation), mlp_gated_linear_units=True,
        )
    best = max(best, len(given["plans"]) / (time.process_time() - start))
print(best)
"""


def can_import(module: str) -> bool:
    """Whether a peer is installed."""
    if not PYTHON.exists():
        return False
    return subprocess.run([PYTHON, "-c", f"import {module}"], env=environment(), capture_output=True).returncode == 0


def environment() -> dict[str, str]:
    """Without knee's own paths."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def llm_analysis_rate(jobs: list[knee.Job]) -> float | None:
    """Configurations per CPU-second, one after the other, the best of three passes; None if it is not installed.

    Plans with context parallelism, or with tensor parallelism beyond a node, are left out: it has neither.
    """
    if not can_import("llm_analysis"):
        return None
    first = jobs[0]
    given = {
        "model": _model(first.model),
        "global_batch": first.global_batch,
        "seq_len": first.seq_len,
        "plans": [_plan(job.plan) for job in jobs if job.plan.cp == 1 and job.plan.tp <= NODE],
    }
    done = subprocess.run(
        [PYTHON, "-c", LLM_ANALYSIS_RATE],
        env=environment(),
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def _model(model: knee.Model) -> dict[str, object]:
    return {
        "name": model.name,
        "num_layers": model.layers,
        "n_head": model.heads,
        "hidden_dim": model.hidden,
        "vocab_size": model.vocab,
        "max_seq_len": 1 << 20,
        "num_key_value_heads": model.kv_heads,
        "ffn_embed_dim": model.ffn,
        "expansion_ratio": model.ffn / model.hidden,
        "model_type": "llama",
    }


def _plan(plan: knee.Plan) -> tuple[int, ...]:
    stage, recomputation = ZERO_STAGE.get(plan.sharding, 3), RECOMPUTATION.get(plan.recompute, 2)
    return plan.tp, plan.pp, plan.dp_shard * plan.dp_replicate, plan.micro_batch, stage, recomputation
