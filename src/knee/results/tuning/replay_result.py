"""The loop of ``tune`` on published sweeps: how many runs it needs, beside other ways to choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from knee.results.result import Result
from knee.tuning.replay import ReplayedJob, TrialCounts
from knee.tuning.transfer_pairs import TransferErrors

FEW_TRIALS = 6
"""Runs within which the loop should stop by itself."""


@dataclass(frozen=True, kw_only=True)
class TuneReplay(Result):
    """How the loop does on jobs that were published, each predicted as if nothing of its source were known."""

    file: str
    within_frac: float
    jobs: tuple[ReplayedJob, ...]
    methods: tuple[TrialCounts, ...]
    """Runs until a plan within 2% of the best is found: the loop first, then other ways to choose."""
    small_jobs: int
    """Jobs with fewer measured plans, which are not played."""
    transfers: tuple[TransferErrors, ...] = ()
    """How wrong predictions from runs with fewer GPUs or layers are, where the file has such runs."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Why rows of the file cannot be used -> how many."""

    @property
    def few_trials_frac(self) -> float:
        """Share of jobs in which the loop stops within six runs."""
        return float(np.mean([job.trials_to_stop <= FEW_TRIALS for job in self.jobs]))

    @property
    def bound_holds_frac(self) -> float:
        """Share of jobs in which the bound that is stated at the end holds."""
        return float(np.mean([job.bound_holds for job in self.jobs]))

    @property
    def gpu_h_frac(self) -> float:
        """GPU-hours of the loop over those of running every plan, all jobs together."""
        return sum(job.gpu_h for job in self.jobs) / sum(job.sweep_gpu_h for job in self.jobs)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee tune --replay --json`` prints it."""
        stops = [job.trials_to_stop for job in self.jobs]
        return {
            "file": self.file,
            "within_frac": self.within_frac,
            "jobs": [asdict(job) for job in self.jobs],
            "small_jobs": self.small_jobs,
            "methods": [asdict(method) for method in self.methods],
            "median_trials_to_stop": float(np.median(stops)),
            "p90_trials_to_stop": float(np.quantile(stops, 0.9)),
            "few_trials": FEW_TRIALS,
            "few_trials_frac": self.few_trials_frac,
            "bound_holds_frac": self.bound_holds_frac,
            "gpu_h_frac": self.gpu_h_frac,
            "transfers": [asdict(one) for one in self.transfers],
            "skipped": dict(self.skipped),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The jobs, one per row."""
        return [asdict(job) for job in self.jobs]
