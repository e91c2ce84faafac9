"""Tables of errors and jobs, made for tests of trust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.trust.error_table import COLUMNS, Errors, read_errors
from knee.trust.trust import Trust

ROW: dict[str, Any] = {
    "source": "a",
    "profile": "llm-foundry",
    "kernels": "eager",
    "gpu": "h100-sxm",
    "fabric": "infiniband",
    "sharding": "fsdp",
    "schedule": "1f1b",
    "precision": "bf16",
    "n_gpus": 64,
    "layers": 32,
    "hidden": 4096,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "dp": 64,
    "error_frac": 0.0,
    "memory_error_frac": "",
    "unseen_error_frac": 0.0,
    "stack": "s",
    "nodes": 8,
    "seq_len": 4096,
    "recompute": "none",
    "nic_bytes_per_s": 50e9,
    "micro_tokens": 4096,
    "tokens_per_gpu": 8192,
    "unseen_memory_error_frac": "",
}


def job(cluster: str = "dgx-h100", profile: str = "eager", gpus: int = 64, **plan: Any) -> Job:
    plan = {"sharding": "fsdp", "micro_batch": 1, **plan}
    seq_len = plan.pop("seq_len", None)
    made, _ = make_job(
        load_model("llama2-7b").spec,
        load_cluster(cluster).spec,
        load_profile(profile).spec,
        gpus=gpus,
        global_batch=2 * gpus,
        seq_len=seq_len,
        plan_options=plan,
    )
    return made


def sized(**sizes: Any) -> Job:
    """The plain job with a model of other sizes."""
    return replace(job(), model=replace(job().model, **sizes))


def ends(trust: Trust) -> tuple[float, float]:
    assert trust.low_frac is not None
    assert trust.high_frac is not None
    return trust.low_frac, trust.high_frac


def table(folder: Path, *rows: dict[str, Any], names: tuple[str, ...] = COLUMNS) -> Errors:
    """Errors as if they were in a file."""
    lines = [",".join(names), *(",".join(str((ROW | row)[name]) for name in names) for row in rows)]
    path = folder / "errors.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read_errors.cache_clear()
    return read_errors(path)


def some(n: int, error: float = 0.0, **changes: Any) -> list[dict[str, Any]]:
    return [{"error_frac": error, "unseen_error_frac": error, **changes} for _ in range(n)]
