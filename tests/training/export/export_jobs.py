"""Jobs for the tests of exports, and models with experts in plans that Megatron-LM or torchtitan can run."""

from __future__ import annotations

from typing import Any

from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job


def made(
    model: str = "llama3-8b",
    cluster: str = "dgx-h100",
    profile: str = "compiled",
    *,
    gpus: int = 64,
    batch: int = 128,
    seq_len: int = 8192,
    sets: dict[str, Any] | None = None,
    **plan: Any,
) -> Job:
    """A job; ``sets`` are overrides of its model, cluster and profile by dotted path."""
    changes = [
        (
            kind,
            [(key.removeprefix(kind + "."), text) for key, text in (sets or {}).items() if key.startswith(kind + ".")],
        )
        for kind in ("model", "cluster", "profile")
    ]
    loaders = {"model": load_model, "cluster": load_cluster, "profile": load_profile}
    names = {"model": model, "cluster": cluster, "profile": profile}
    parts = [loaders[kind](names[kind], pairs).spec for kind, pairs in changes]
    job, _ = make_job(*parts, gpus=gpus, global_batch=batch, seq_len=seq_len, plan_options=plan)
    return job


def sparse(model: str = "mixtral-8x22b", **asked: Any) -> Job:
    """A mixture of experts on 64 GPUs, sharded as Megatron-LM can."""
    return made(model, **{"seq_len": 4096, "sharding": "zero1", "ep": 8} | asked)


def expert_jobs() -> list[Job]:
    """One job for each option that concerns experts, latent attention or sinks."""
    overlap = {"ep_overlap": True, "schedule": "interleaved", "virtual_stages": 2, "micro_batch": 1}
    modules = {"recompute": "modules", "recompute_modules": ["mla_up_proj", "moe_act"], "precision": "fp8"}
    return [
        sparse("deepseek-v3", gpus=1024, batch=8192, pp=16, ep=64, dispatcher="deepep", **overlap, **modules),
        sparse("qwen3-30b-a3b", sharding="fsdp", dispatcher="hybridep"),
        sparse(tp=2, capacity_factor=1.5, pp=4),
        sparse("gpt-oss-120b", ep=16, profile="fused"),
        sparse("qwen1.5-moe-a2.7b", ep=4, sets={"model.experts.top_k": "1"}),
    ]
