"""How far an answer can be trusted: the published runs that are like it, and how wrong knee was about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from knee.base.arrays import normal_deviations
from knee.engine.measurement import Measurement
from knee.specs.job import Job
from knee.specs.notes import Note
from knee.specs.profile import Profile
from knee.trust.bands import CONSTANTS, MOE_CONSTANTS, Band, Label, scores_of
from knee.trust.error_table import Errors, errors_for
from knee.trust.similarity import ENOUGH, VENDOR, Similarity, likeness_of

# A profile that was calibrated on a user's runs, and checked on runs that it had not seen, has a band of its own.

CHECKED_FRAC = 0.8
"""Share of new runs that ``Profile.checked_error_frac`` holds."""


def narrowed(profile: Profile, ends: tuple[float, float], covered_frac: float) -> tuple[float, float]:
    """Ends of a band of the truth over the prediction, less one, no wider than what the user's own runs say.

    Formula: 1 / (1 + e) - 1 to 1 / (1 - e) - 1, e = checked_error_frac * z(covered) / z(0.8)
    Where: z are quantiles of a normal distribution: eight runs are too few to see the ninth of ten
    Valid: for jobs like the runs that were calibrated on; an extrapolated one keeps the published band.
    """
    error = profile.checked_error_frac * normal_deviations(covered_frac) / normal_deviations(CHECKED_FRAC)
    if not 0 < error < 1:
        return ends
    low, high = 1.0 / (1.0 + error) - 1.0, 1.0 / (1.0 - error) - 1.0
    return round(max(ends[0], low), 4), round(min(ends[1], high), 4)


COVERED_FRAC = 0.8
"""Share of the runs of a source that nobody has seen which a band is to hold, where the job is validated."""
WIDER_FRAC = 0.9
"""The same where it is not."""
ALL, MOE = "all", "mixtures of experts"
PAPER_PROFILES = ("paper", "paper-v100")
"""Entries of the catalogue that are fitted to the paper."""
PAPER = Note(
    "fitted-to-paper",
    "profile paper is fitted to arXiv 2411.13055 (up to 2,048 H100s); `knee study` shows which of its claims hold",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What published runs say about one answer. None: there is nothing to say it from."""

    label: Label
    runs: int
    """Published runs like it: of its kind, and close in every size; none where it is extrapolated."""
    kind_runs: int
    """Published runs of its kind: with its GPU, stack or kernel set, and kinds of parallelism."""
    basis_runs: int
    """Runs that the band is from; each was predicted without having been fitted on."""
    sources: int
    """Where those were published."""
    covered_frac: float
    """Share of them that the band holds."""
    low_frac: float | None
    """The true throughput over the predicted one, less one: from this to ``high_frac`` in that share of them."""
    high_frac: float | None
    median_error_frac: float | None
    """Median size of the error, predicted over measured less one."""
    memory_runs: int
    memory_low_frac: float | None
    """The memory that was needed over what was predicted, less one, in the same way."""
    memory_high_frac: float | None
    like: str
    """What the runs of the band have in common."""
    memory_like: str
    """The same for those with a reading of memory."""
    reasons: tuple[str, ...]
    """Why it is not validated."""

    @property
    def band(self) -> tuple[float, float] | None:
        """Both ends of the throughput's band; None without one."""
        return None if self.low_frac is None or self.high_frac is None else (self.low_frac, self.high_frac)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def fits(self, memory_bytes: float, has_bytes: float) -> Literal["yes", "no", "unsure"]:
        """Whether a plan fits with the error of memory considered; without a band the prediction is all there is."""
        most, least = max(self.memory_high_frac or 0.0, 0.0), min(self.memory_low_frac or 0.0, 0.0)
        if memory_bytes * (1.0 + most) <= has_bytes:
            return "yes"
        return "no" if memory_bytes * (1.0 + least) > has_bytes else "unsure"


def trust_of(
    job: Job, given: Iterable[str] = (), errors: Errors | None = None, covered_frac: float | None = None
) -> Trust:
    """Find the published runs that are like a job, and from the errors of all how far off its answer may be.

    ``given`` are paths of values that someone wrote, such as ``cluster.gpu.hbm_frac``: they are compared with the
    catalogue's. So is a cluster or a profile with a name that the catalogue does not have. ``covered_frac`` is the
    share that the bands are to hold, where it is not to be the label's own: 0.8 or 0.9.
    """
    errors = errors_for(job) if errors is None else errors
    found = likeness_of(job, given, errors)
    like, label = int(np.count_nonzero(found.like)), label_of(found)
    covered = covered_frac or (COVERED_FRAC if label == "validated" else WIDER_FRAC)
    # another vendor's software differs in everything: nothing is known of it unless its runs were measured
    known = job.cluster.gpu.vendor == VENDOR or found.gpu in errors.words["gpu"]
    speed, memory = _bands(job, found, errors, label, covered) if known else (None, None)
    if speed and label != "extrapolated":
        low, high = narrowed(job.profile, (speed.low_frac, speed.high_frac), covered)
        speed = replace(speed, low_frac=low, high_frac=high)
    reasons = (*found.absent, *found.doubts)
    every = ALL if job.model.experts is None else MOE
    return Trust(
        label=label,
        runs=0 if label == "extrapolated" else like,
        kind_runs=int(np.count_nonzero(found.kind)),
        basis_runs=speed.runs if speed else 0,
        sources=speed.sources if speed else 0,
        covered_frac=covered,
        low_frac=speed.low_frac if speed else None,
        high_frac=speed.high_frac if speed else None,
        median_error_frac=speed.median_error_frac if speed else None,
        memory_runs=memory.runs if memory else 0,
        memory_low_frac=memory.low_frac if memory else None,
        memory_high_frac=memory.high_frac if memory else None,
        like=every if speed else "none",
        memory_like=every if memory else "none",
        reasons=(*reasons, PAPER) if found.stack in PAPER_PROFILES else reasons,
    )


def label_of(found: Similarity) -> Label:
    """Validated: enough runs of the job's own stack are like it in every size; near: nothing about it is new."""
    if found.absent:
        return "extrapolated"
    return "near" if found.doubts or np.count_nonzero(found.like) < ENOUGH else "validated"


def _bands(
    job: Job, found: Similarity, errors: Errors, label: Label, covered_frac: float
) -> tuple[Band | None, Band | None]:
    """Of throughput and of memory."""
    constants = CONSTANTS if job.model.experts is None else MOE_CONSTANTS
    speed, memory = (
        scores_of(errors, quantity, constants).band(job, found.gpu, found.stack, label, covered_frac)
        for quantity in ("throughput", "memory")
    )
    return speed, memory


def asked_of(job: Job) -> dict[str, Any]:
    """What was asked, as a record names it."""
    return {
        "model": job.model.name,
        "cluster": job.cluster.name,
        "profile": job.profile.name,
        "gpus": job.gpus,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "plan": asdict(job.plan),
    }


def record_of(job: Job, measurement: Measurement, trust: Trust) -> dict[str, Any]:
    """Plain data; every key carries its unit."""
    return {
        **asked_of(job),
        **measurement.as_json(),
        "trust": trust.as_json() | {"fits": trust.fits(measurement.memory_bytes, job.cluster.gpu.hbm_bytes)},
    }
