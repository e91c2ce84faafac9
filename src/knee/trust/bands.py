"""Bands of the truth, from the errors of runs of sources that nothing was fitted to: between sources, then within."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from knee.base.arrays import Floats, normal_deviations
from knee.specs.job import Job
from knee.trust.error_table import NAMES, Distances, Errors, Measured

Label = Literal["validated", "near", "extrapolated"]
LABELS: tuple[Label, ...] = ("validated", "near", "extrapolated")
Quantity = Literal["throughput", "memory"]
CONSTANTS = Path(__file__).parent.parent / "catalog" / "validation" / "bands.toml"
"""Of dense models."""
MOE_CONSTANTS = CONSTANTS.with_name("moe_bands.toml")
"""Of mixtures of experts."""
FEW_SOURCES = 5
"""Sources below which assumed ones are added: fewer say nothing about the next."""
WITHIN = 15
"""Quantiles that stand for the runs of a source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """How errors grow with distance, of throughput or of memory."""

    factors: Floats
    """For each of ``distances.NAMES``: times larger per unit."""
    labels: Mapping[Label, float]
    """Times wider, so that bands hold what they promise on sources that are left out."""
    assumed_between: float
    """Standard deviation of log(truth / predicted) between sources at no distance, where few were measured."""
    assumed_within: float
    """The same within a source."""

    def scale(self, distances: Distances) -> Floats:
        """Times that an error is larger than at no distance.

        Formula: product of factor^distance
        """
        scale: Floats = np.exp(np.log(self.factors) @ distances)
        return scale


@cache
def carried_constants(path: Path = CONSTANTS) -> Mapping[Quantity, Constants]:
    """Those of the catalogue, each with its kind and source."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        quantity: Constants(
            factors=np.array([table["distance"][name]["value"] for name in NAMES], dtype=np.float64),
            labels={label: float(table["label"][label]["value"]) for label in LABELS},
            assumed_between=float(table["assumed_between"]["value"]),
            assumed_within=float(table["assumed_within"]["value"]),
        )
        for quantity in ("throughput", "memory")
        for table in (tables[quantity],)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Ends of truth / predicted - 1, and what they are from."""

    low_frac: float
    high_frac: float
    median_error_frac: float
    """Median size of predicted / truth - 1 at this distance."""
    runs: int
    sources: int


class Scores:
    """Errors of all runs with a measurement, each divided by how much larger its distance makes it."""

    def __init__(self, errors: Errors, quantity: Quantity, constants: Constants):
        logs = -np.log1p(unseen(errors, quantity))
        chosen = np.isfinite(logs)
        self.constants, self.measured = constants, Measured(errors, chosen)
        self.runs = int(np.count_nonzero(chosen))
        self.scores = (logs / constants.scale(self.measured.of_runs()))[chosen]
        self.names = errors.of("source", chosen)
        self.sources = len(set(self.names))
        self._ends: dict[float, tuple[float, float]] = {}
        self._median: float | None = None

    def ends(self, covered_frac: float) -> tuple[float, float]:
        """Both ends of the band, as logarithms of measured over predicted, for a job like the published runs."""
        if covered_frac not in self._ends:
            constants = self.constants
            spread = (constants.assumed_between, constants.assumed_within)
            self._ends[covered_frac] = spread_ends(self.scores, self.names, covered_frac, *spread)
        return self._ends[covered_frac]

    def median(self) -> float:
        """Size of an error at no distance, the median over sources of each one's median."""
        if self._median is None:
            groups = _by_name(self.names, np.abs(self.scores))
            self._median = _median([_median(group) for group in groups.values()])
        return self._median

    def band(self, job: Job, gpu: str, stack: str, label: Label, covered_frac: float) -> Band | None:
        """For a job; None where nothing was measured."""
        if not self.runs:
            return None
        scale = float(self.constants.scale(self.measured.of_job(job, gpu, stack))) * self.constants.labels[label]
        low, high = (math.expm1(scale * end) for end in self.ends(covered_frac))
        return Band(
            low_frac=round(low, 4),
            high_frac=round(high, 4),
            median_error_frac=round(math.expm1(scale * self.median()), 4),
            runs=self.runs,
            sources=self.sources,
        )


@lru_cache(maxsize=8)
def scores_of(errors: Errors, quantity: Quantity, constants: Path = CONSTANTS) -> Scores:
    """With the catalogue's constants; kept, since every answer asks for it."""
    return Scores(errors, quantity, carried_constants(constants)[quantity])


def unseen(errors: Errors, quantity: Quantity) -> Floats:
    """Errors of predictions that saw nothing of the run's source; of memory as shipped where a file has no others."""
    if quantity == "throughput":
        return errors.numbers["unseen_error_frac"]
    found, shipped = errors.numbers["unseen_memory_error_frac"], errors.numbers["memory_error_frac"]
    return shipped if np.isnan(found).all() else found


def spread_ends(
    values: Floats, names: Sequence[str], covered_frac: float, assumed_between: float, assumed_within: float
) -> tuple[float, float]:
    """Ends that hold a share of the values of a source that is not among these.

    Formula: quantiles at (1 - c) / 2 and (1 + c) / 2 of all sums m_s + r_t, moved from their median by
             sqrt(1 + 1/K) x (1 + (z^2 + 1) / (4 (K - 1)))
    Where:   m_s the median of source s, r_t what runs of source t are from theirs, each source counting once; K the
             sources; z the normal quantile of c. Sources are independent of what varies within another, so that all
             sums are as likely; below ``FEW_SOURCES``, assumed ones are added.
    Source:  a prediction interval of the next of K normal values; Student's t to first order (Abramowitz and Stegun
             26.7.5). Sources as the unit: hierarchical conformal prediction, arXiv 2306.06342.
    """
    groups, middles, around = _by_name(names, values), [], []
    for group in groups.values():
        # at the middles of equal shares
        at = (np.arange(WITHIN) + 0.5) / WITHIN * len(group) - 0.5
        quantiles = np.interp(at, np.arange(len(group)), np.sort(np.array(group)))
        middles.append(float(quantiles[WITHIN // 2]))
        around.append(quantiles - quantiles[WITHIN // 2])
    missing = max(FEW_SOURCES - len(groups), 0)
    middles += (assumed_between * _logistic(missing)).tolist()
    around += [assumed_within * _logistic(WITHIN)] * missing
    sums = np.sort(np.add.outer(np.array(middles), np.concatenate(around)).ravel())
    k, z = len(middles), normal_deviations(covered_frac)
    more = math.sqrt(1.0 + 1.0 / k) * (1.0 + (z * z + 1.0) / (4.0 * (k - 1)))
    shares = ((1.0 - covered_frac) / 2.0, 0.5, (1.0 + covered_frac) / 2.0)
    low, middle, high = (float(sums[round(q * (len(sums) - 1))]) for q in shares)
    return middle + more * (low - middle), middle + more * (high - middle)


def _by_name(names: Sequence[str], values: Floats) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for name, value in zip(names, values.tolist(), strict=True):
        groups.setdefault(name, []).append(value)
    return groups


def _logistic(n: int) -> Floats:
    """Quantiles of a logistic distribution of standard deviation 1, at the middles of n equal shares."""
    at = (np.arange(n) + 0.5) / n
    found: Floats = np.log(at / (1.0 - at)) * (math.sqrt(3.0) / math.pi)
    return found


def _median(values: list[float]) -> float:
    """NumPy's own takes 20 ms when first called: it imports masked arrays."""
    ordered = sorted(values)
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2.0
