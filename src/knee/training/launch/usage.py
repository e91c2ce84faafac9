"""What an attempt took, also where its supervisor was killed before it could write that."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import SweepRun, read_record
from knee.training.run.run_record import HEARTBEATS, LOGS, PIECES, RECORD


def with_usage(status: Status, entry: SweepRun, run: Path, *, ended_s: float | None = None) -> Status:
    """The status with the GPU-hours and the energy of its last attempt added.

    Energy is the draw of the measured window over the whole attempt, of all GPUs. Without a moment of its end, the
    attempt ended at its last sign of life.
    """
    ended_s = last_sign_s(run) if ended_s is None else ended_s
    if status.started_s is None or ended_s is None:
        return status
    elapsed_s = max(0.0, ended_s - status.started_s)
    watts = read_record(run).get("power_w_per_gpu")
    energy_j = status.energy_j
    if isinstance(watts, (int, float)):
        energy_j = (energy_j or 0.0) + watts * entry.gpus * elapsed_s
    return replace(status, ended_s=ended_s, gpu_h=status.gpu_h + entry.gpus * elapsed_s / 3600, energy_j=energy_j)


def last_sign_s(run: Path) -> float | None:
    """When a run last wrote anything, in seconds since 1970; None where it never did."""
    times = []
    for path in (run / RECORD, *(file for name in (HEARTBEATS, LOGS, PIECES) for file in (run / name).glob("*"))):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times, default=None)
