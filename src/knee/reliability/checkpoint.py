"""What a checkpoint costs: how long training waits, when it is safe, and how long a restart reads."""

from __future__ import annotations

from dataclasses import dataclass

from knee.reliability.defaults import Conditions, default_of
from knee.specs.hardware import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run."""

    total_bytes: float
    wait_s: float
    """Training waits."""
    write_s: float
    """Time after that until the checkpoint can be used, while training goes on."""
    read_s: float
    """Time that a restart takes to read it."""


def checkpoint_of(params: float, cluster: Cluster, gpus: int, conditions: Conditions) -> Checkpoint:
    """A checkpoint by bytes, rates and method.

    Formula: wait = bytes / (GPUs * rate), with the storage's rate if it blocks, and that of the copy to the host if not
    Where:   bytes = 14 per parameter; all GPUs write equal parts at the same time
    Source:  ``run.checkpoint_bytes_per_param`` in catalog/reliability.toml; in-memory replicas as in Gemini (SOSP 2023)
    Valid:   the rate of the storage grows with the GPUs of the run
    """
    total = default_of("run", "checkpoint_bytes_per_param")[0] * params
    part = total / gpus
    stored_s, copied_s = part / conditions.storage_bytes_per_s, part / conditions.host_copy_bytes_per_s
    # a replica goes to another node, and comes back from there
    sent_s = part / (cluster.fabric.nic_bytes_per_s * cluster.fabric.nic_frac)
    waits = {"blocking": stored_s, "async": copied_s, "memory": copied_s}
    writes = {"blocking": 0.0, "async": stored_s, "memory": sent_s}
    reads = {"blocking": stored_s, "async": stored_s, "memory": sent_s + copied_s}
    method = conditions.checkpoint
    return Checkpoint(total_bytes=total, wait_s=waits[method], write_s=writes[method], read_s=reads[method])
