"""What this machine can train."""

from __future__ import annotations

import os
from dataclasses import dataclass

from knee.measure.machine.inventory import read_inventory
from knee.specs.hardware import Cluster
from knee.training.sweeps.job_for_trainer import PROCESSOR

PROCESSES_PER_CORE = 4
"""On a processor ranks wait for each other, not for their core alone; more than this only measures the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevices:
    """What can be trained here."""

    gpus: tuple[str, ...]
    """Names of the GPUs that torch can use."""
    cores: int

    @classmethod
    def here(cls) -> LocalDevices:
        """This machine."""
        found = read_inventory()
        gpus = found.gpus if found.software.torch_uses_gpus else ()
        return cls(gpus=tuple(gpu.name or "" for gpu in gpus), cores=os.cpu_count() or 1)

    def refuses(self, cluster: Cluster, ranks: int) -> str | None:
        """Why a run of a cluster's GPUs cannot be trained here, if it cannot."""
        if cluster.gpu.vendor == PROCESSOR:
            most = PROCESSES_PER_CORE * self.cores
            return None if ranks <= most else f"{ranks:,} processes are too many for {self.cores} cores"
        if not self.gpus:
            return f"{cluster.gpu.name} is required, but no GPU can be used here"
        if ranks > len(self.gpus):
            return f"{ranks:,} GPUs are required, but this machine has {len(self.gpus)}"
        word = cluster.gpu.name.partition("-")[0]
        others = [name for name in self.gpus if name and word.lower() not in name.lower().replace("-", " ").split()]
        return f"{cluster.gpu.name} is required, but this machine has {others[0]}" if others else None
