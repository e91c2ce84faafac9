"""Every column that a row may have: what study files may name."""

from __future__ import annotations

COLUMNS: tuple[str, ...] = (
    "study", "series", "kind", "model", "cluster", "profile", "gpus", "nodes", "global_batch", "local_batch",
    "seq_len", "set", "plan", "tp", "pp", "cp", "dp_shard", "dp_replicate", "sharding", "schedule", "virtual_stages",
    "micro_batch", "cp_method", "recompute", "recompute_frac", "precision", "reduce_dtype", "sync_every", "degree",
    "step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu_frac", "flop_convention", "compute_s", "compute_load_s",
    "comm_s", "comm_load_s", "exposed_comm_s", "overlapped_comm_s", "bubble_s", "idle_s", "straggler_s",
    "memory_bytes", "fits", "power_w_per_gpu", "tokens_per_j", "usd_per_mtoken", "trust", "low_frac", "high_frac",
    "exposed_s", "exposed_frac", "compute_frac", "bubble_frac", "transfer_load_s", "all_gather_s", "reduce_scatter_s",
    "gather_bytes", "fsdp_ranks", "total_power_w", "gpu", "node_gpus", "nic_bytes_per_s", "memory_frac", "collective",
    "message_bytes", "message", "time_s", "bus_bytes_per_s", "published_bus_bytes_per_s", "compared", "error_frac",
    "peak_flop_per_s", "hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s", "node_nic_bytes_per_s", "tdp_w",
    "days", "params", "least_params", "size", "tokens", "tokens_per_param", "loss", "flop_params", "flop_size",
    "size_ratio", "flop_loss", "really_loss", "reached_frac", "lost_frac",
)  # fmt: skip
"""Of training steps, of bandwidths, of data sheets and of budgets."""
