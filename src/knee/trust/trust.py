"""How far an answer can be trusted: the published runs that are like it, and how wrong knee was about them,
and about what more GPUs buy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from knee.base.arrays import normal_deviations
from knee.engine.doublings import per_doubling
from knee.engine.measurement import Measurement
from knee.specs.job import Job
from knee.specs.notes import Note
from knee.specs.profile import Profile
from knee.trust.bands import CONSTANTS, MOE_CONSTANTS, Band, Label, carried_constants, scores_of, spread_ends
from knee.trust.error_table import NAMES, Errors, errors_for, read_errors
from knee.trust.similarity import ENOUGH, VENDOR, Similarity, likeness_of

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


SAME_WORDS = ("source", "profile", "gpu", "fabric", "sharding", "schedule", "precision", "recompute")
SAME_NUMBERS = ("layers", "hidden", "tp", "pp", "cp", "seq_len", "micro_tokens", "nic_bytes_per_s")
"""What the runs of a pair have in common; the batch may differ, which widens the band."""
ASSUMED = 0.03
"""Standard deviation of an error of a doubling, between sources and within, while few have pairs (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoublingBand:
    """True over predicted speed-up of a doubling, less one, in most of the pairs of published runs."""

    low_frac: float
    high_frac: float
    pairs: int
    """Pairs of published runs that are alike but for their GPUs and batch."""
    largest_gpus: int
    """Of any of them."""
    covered_frac: float

    def factors(self, gpus: int) -> tuple[float, float]:
        """The least and the most that a doubling to so many GPUs is of the predicted one.

        Formula: (1 + end)^(f^d)
        Where:   d doublings beyond the largest pair, f the factor by which bands of throughput widen with each
        """
        per_doubling = float(carried_constants()["throughput"].factors[NAMES.index("doublings")])
        times = per_doubling ** math.log2(max(gpus / self.largest_gpus, 1.0))
        return (1.0 + self.low_frac) ** times, (1.0 + self.high_frac) ** times


Groups = defaultdict[tuple[object, ...], defaultdict[float, list[float]]]
"""What runs have in common -> GPUs -> errors."""


@lru_cache(maxsize=8)
def doubling_band(errors: Errors | None = None, covered_frac: float = WIDER_FRAC) -> DoublingBand | None:
    """The band of the true speed-up of a doubling over the predicted one, less one; None without pairs.

    Formula: truth / predicted = ((1 + e1) / (1 + e2))^(1 / log2(N2 / N1)); ends as in ``bands.spread_ends``
    Where:   e1, e2 errors of throughput on N1 and N2 GPUs by a profile that saw nothing of their source (medians where
             several runs are alike); sources count alike
    Valid:   to the largest count of the pairs; beyond it ``factors`` widens it
    """
    errors = read_errors() if errors is None else errors
    groups: Groups = defaultdict(lambda: defaultdict(list))
    words = [errors.words[name] for name in SAME_WORDS]
    numbers = [errors.numbers[name] for name in SAME_NUMBERS]
    for i, error in enumerate(errors.numbers["unseen_error_frac"].tolist()):
        if np.isfinite(error):
            same: tuple[object, ...] = (*(w[i] for w in words), *(str(n[i]) for n in numbers))
            groups[same][float(errors.numbers["n_gpus"][i])].append(error)
    found, sources, largest = [], [], 0
    for same, runs in groups.items():
        for before, after in pairwise(sorted(runs)):
            middle = [float(np.sort(runs[n])[(len(runs[n]) - 1) // 2]) for n in (before, after)]
            found.append(math.log(per_doubling((1.0 + middle[0]) / (1.0 + middle[1]), before, after)))
            sources.append(str(same[0]))
            largest = max(largest, int(after))
    if not found:
        return None
    low, high = spread_ends(np.array(found), sources, covered_frac, ASSUMED, ASSUMED)
    low_frac, high_frac = round(math.expm1(low), 4), round(math.expm1(high), 4)
    return DoublingBand(
        low_frac=low_frac, high_frac=high_frac, pairs=len(found), largest_gpus=largest, covered_frac=covered_frac
    )
