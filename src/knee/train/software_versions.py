"""What a run ran on: versions, settings, and the host's parts."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from knee.parallelism.trainer_job import TrainJob


def versions(job: TrainJob) -> dict[str, Any]:
    """What the run ran on."""
    import numpy
    import torch

    import knee

    cuda = job.device == "cuda"
    return {
        "versions": {
            "knee": knee.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": str(numpy.__version__),
            "cuda": torch.version.cuda if cuda else None,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda and torch.version.cuda else None,
            "cudnn": torch.backends.cudnn.version() if cuda else None,
        },
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "TORCH_NCCL_", "PYTORCH_", "CUDA_", "OMP_", "GLOO_"))
        },
    }


def inventory() -> dict[str, Any] | None:
    """Network, links, processors and driver of this host."""
    from knee.probe.inventory import read_inventory

    try:
        found: dict[str, Any] = asdict(read_inventory())
    except Exception as error:  # it promises never to fail, and a run is worth more than its word
        return {"trouble": str(error)}
    return found
