"""How wrong knee is about what more GPUs buy: pairs of published runs that are alike but for them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from knee.engine.doublings import per_doubling
from knee.trust.bands import carried_constants, spread_ends
from knee.trust.error_table import NAMES, Errors, read_errors
from knee.trust.trust import WIDER_FRAC

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
    return DoublingBand(
        low_frac=round(math.expm1(low), 4),
        high_frac=round(math.expm1(high), 4),
        pairs=len(found),
        largest_gpus=largest,
        covered_frac=covered_frac,
    )
