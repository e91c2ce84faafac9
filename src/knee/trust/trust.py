"""How far an answer can be trusted: the published runs that are like it, and how wrong knee was about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from knee.arrays import Bools, Floats, Ints
from knee.specs.job import Job
from knee.specs.notes import Note
from knee.trust.error_table import Errors, read_errors
from knee.trust.own_runs import narrowed
from knee.trust.similarity import ENOUGH, VENDOR, SimilarityLevel, likeness_of

Label = Literal["validated", "near", "extrapolated"]
COVERED_FRAC = 0.8
"""Share of the runs that a band is to hold, where the job is validated."""
WIDER_FRAC = 0.9
"""The same where it is not: of the same runs, so that a weaker label never has a narrower band."""
OTHERS = 2
"""Stacks that the runs of a band must be of, where they are not of the job's own."""
ALL = "all"
PAPER_PROFILES = ("paper", "paper-v100")
"""Entries of the catalogue that are fitted to the paper."""
PAPER = Note(
    "fitted-to-paper",
    "profile paper is fitted to arXiv 2411.13055 (to 2,048 H100s); `knee study` shows which of its claims hold",
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

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def fits(self, memory_bytes: float, has_bytes: float) -> Literal["yes", "no", "unsure"]:
        """Whether a plan fits with the error of memory considered; without a band the prediction is all there is."""
        most, least = max(self.memory_high_frac or 0.0, 0.0), min(self.memory_low_frac or 0.0, 0.0)
        if memory_bytes * (1.0 + most) <= has_bytes:
            return "yes"
        return "no" if memory_bytes * (1.0 + least) > has_bytes else "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Errors of the runs of one level; its ends are no closer than those of stricter levels."""

    level: int
    runs: int
    sources: int
    low_frac: float
    high_frac: float
    median_error_frac: float


def trust_of(job: Job, given: Iterable[str] = (), errors: Errors | None = None) -> Trust:
    """Find the published runs that are like a job, and from their errors how far off its answer may be.

    ``given`` are paths of values that someone wrote, such as ``cluster.gpu.hbm_frac``: they are compared with the
    catalogue's. So is a cluster or a profile with a name that the catalogue does not have.
    """
    errors = read_errors() if errors is None else errors
    found = likeness_of(job, given, errors)
    like = int(np.count_nonzero(found.like))
    if found.absent or job.cluster.gpu.vendor != VENDOR:
        label: Label = "extrapolated"
    else:
        label = "near" if found.doubts or like < ENOUGH else "validated"
    # what no run had may err as any of them did, and more
    levels = found.levels[:1] if label == "validated" else found.levels
    known = job.cluster.gpu.vendor == VENDOR
    covered = COVERED_FRAC if label == "validated" else WIDER_FRAC
    speed = _band(levels, errors, covered, all_runs=label == "extrapolated") if known else None
    if speed and label != "extrapolated":
        low, high = narrowed(job.profile, (speed.low_frac, speed.high_frac), covered)
        speed = replace(speed, low_frac=low, high_frac=high)
    memory = _band(found.memory_levels, errors, COVERED_FRAC, memory=True) if known else None
    reasons = (*found.absent, *found.doubts)
    return Trust(
        label=label,
        runs=0 if label == "extrapolated" else like,
        kind_runs=int(np.count_nonzero(found.kind.chosen)),
        basis_runs=speed.runs if speed else 0,
        sources=speed.sources if speed else 0,
        covered_frac=covered,
        low_frac=speed.low_frac if speed else None,
        high_frac=speed.high_frac if speed else None,
        median_error_frac=speed.median_error_frac if speed else None,
        memory_runs=memory.runs if memory else 0,
        memory_low_frac=memory.low_frac if memory else None,
        memory_high_frac=memory.high_frac if memory else None,
        like=found.levels[speed.level].like or ALL if speed else "none",
        memory_like=found.memory_levels[memory.level].like or ALL if memory else "none",
        reasons=(*reasons, PAPER) if found.stack in PAPER_PROFILES else reasons,
    )


def _band(
    levels: Sequence[SimilarityLevel],
    errors: Errors,
    covered_frac: float,
    *,
    memory: bool = False,
    all_runs: bool = False,
) -> Band | None:
    """Of the first level with enough runs, or of the last; no narrower than before. None where no level has any."""
    low, high = np.inf, -np.inf
    for number, level in enumerate(levels):
        column = "memory_error_frac" if memory else "error_frac" if level.of_stack else "unseen_error_frac"
        error = errors.numbers[column]
        chosen = level.chosen & np.isfinite(error)
        runs = int(np.count_nonzero(chosen))
        last = number == len(levels) - 1
        alone = not level.of_stack and len(set(errors.of("profile", chosen))) < OTHERS
        # runs of one other stack tell of that stack; they count where they are of its kind and not far from it
        if not runs or (alone and not last and (number or all_runs)):
            continue
        ends = truth_band(error[chosen], _weights(errors, chosen), _model_sizes(errors, chosen), covered_frac)
        low, high = min(low, ends[0]), max(high, ends[1])
        if last or (runs >= ENOUGH and not alone and not all_runs):
            return Band(
                level=number,
                runs=runs,
                sources=len(set(errors.of("source", chosen))),
                low_frac=round(low, 4),
                high_frac=round(high, 4),
                median_error_frac=round(_median(np.abs(error[chosen])), 4),
            )
    return None


def _weights(errors: Errors, chosen: Bools) -> Floats:
    """Sources count alike, however many runs they published."""
    sources = errors.of("source", chosen)
    runs = Counter(sources)
    share = {source: 1.0 / (n * len(runs)) for source, n in runs.items()}
    return np.array([share[source] for source in sources])


def _model_sizes(errors: Errors, chosen: Bools) -> Ints:
    """A number for each run: the same for runs of one size in one source, which err in the same direction."""
    sources = errors.of("source", chosen)
    sizes = (errors.numbers[name][chosen] for name in ("layers", "hidden"))
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in zip(sources, *sizes, strict=True)])


def truth_band(error: Floats, weight: Floats, kind: Ints, covered_frac: float = COVERED_FRAC) -> tuple[float, float]:
    """Ends of the band that is to hold a share of the truth over the prediction, less one.

    Formula: truth / predicted = 1 / (1 + error); the outer of the ends of the runs, and of the medians of each kind
    Where: a kind is a model size of one source; both ends as in ``_ends``
    Valid: for a run that is drawn as those were; a new kind errs by itself, so the runs alone would be too narrow.
    """
    ratio = 1.0 / (1.0 + error) - 1.0
    low, high = _ends(ratio, weight, covered_frac)
    medians = np.array([_median(ratio[kind == k]) for k in range(kind.max() + 1)])
    weights = np.array([np.sum(weight[kind == k]) for k in range(kind.max() + 1)])
    least, most = _ends(medians, weights, covered_frac)
    return min(low, least), max(high, most)


def _median(values: Floats) -> float:
    """NumPy's own takes 20 ms when first called: it imports masked arrays."""
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2.0


def _ends(values: Floats, weight: Floats, covered_frac: float) -> tuple[float, float]:
    """Weighted quantiles at 1 - q and q.

    Formula: q = (1 + c) / 2 x (1 + 1 / n), at most 1
    Where: c the share to be covered; n the equal values that values of these weights are worth, 1 / sum(w^2)
    Source: split conformal prediction (Lei et al. 2018, arXiv 1604.04173): the next value is below the k-th of n with
        probability k / (n + 1), so that few values need a wider band; up to 9, from the least to the most.
    """
    order = np.argsort(values)
    values, weight = values[order], weight[order]
    # sums end at 1 but for rounding
    level = min((1.0 + covered_frac) / 2.0 * (1.0 + float(np.sum(weight**2))), 1.0) - 1e-9
    upwards, downwards = np.cumsum(weight), np.cumsum(weight[::-1])
    return float(values[::-1][np.argmax(downwards >= level)]), float(values[np.argmax(upwards >= level)])
