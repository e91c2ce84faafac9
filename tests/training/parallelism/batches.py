"""The tokens of the workers' steps: the same global batch whatever the plan, and each rank's rows of it."""

from __future__ import annotations

import torch

from knee.training.datasets.token_batches import Share, Synthetic
from knee.training.parallelism.mesh import Mesh
from knee.training.parallelism.trainer_job import TrainJob


def local_tokens(job: TrainJob, mesh: Mesh, step: int) -> torch.Tensor:
    """This data-parallel rank's rows of a step's global batch, (sequences, seq_len + 1)."""
    share = Share(seq_len=job.seq_len, global_batch=job.global_batch, seed=job.seed)
    tokens = torch.from_numpy(Synthetic(share, vocab_size=job.model.vocab).batch(step))
    return tokens.split(job.local_sequences)[mesh.index("dp_replicate") * job.plan.dp_shard + mesh.index("dp_shard")]
