"""How far a prediction is from what was measured, the parameters of least error, and what is held back from a fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.base.errors import MissingExtra

HELD_FRAC = 0.3
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Relative errors, predicted over measured less one."""

    points: int
    median_frac: float
    """Of the absolute errors, as the next two."""
    p90_frac: float
    worst_frac: float
    bias_frac: float
    """Median of the signed errors."""

    @classmethod
    def of(cls, predicted: Floats, measured: Floats) -> Self:
        """Errors of pairs."""
        signed = np.asarray(predicted / measured - 1.0)
        size = np.abs(signed)
        return cls(
            points=len(signed),
            median_frac=float(np.median(size)),
            p90_frac=float(np.quantile(size, 0.9)),
            worst_frac=float(np.max(size)),
            bias_frac=float(np.median(signed)),
        )

    @classmethod
    def of_measured(cls, predicted: Sequence[float] | Floats, measured: Sequence[float | None] | Floats) -> Self | None:
        """Errors where something was measured (neither None nor NaN) and predicted; None where that is nowhere."""
        # None becomes NaN
        answer, truth = np.array(predicted, dtype=np.float64), np.array(measured, dtype=np.float64)
        known = np.isfinite(answer) & np.isfinite(truth)
        return cls.of(answer[known], truth[known]) if known.any() else None

    @property
    def words(self) -> str:
        """In one phrase, for sources."""
        return f"{self.points} points, error median {self.median_frac:.1%}, p90 {self.p90_frac:.1%}"


def held_back(settings: Sequence[Hashable], *, seed: int = SEED) -> Bools:
    """True for points whose whole setting is kept from the fit: about three in ten of the distinct ones."""
    distinct = sorted(set(settings), key=repr)
    chosen = set(random.Random(seed).sample(distinct, round(HELD_FRAC * len(distinct))))
    return np.array([setting in chosen for setting in settings], dtype=np.bool_)


def distance(predicted: Floats, measured: Floats) -> float:
    """Mean absolute log error: relative, and not moved by a few outliers."""
    return float(np.mean(np.abs(np.log(predicted / measured))))


def minimum(
    loss: Callable[[Floats], float], start: Sequence[float], *, low: Sequence[float], high: Sequence[float]
) -> Floats:
    """The parameters of least loss, within bounds; searched in their logarithms, without derivatives, because waves and
    medians have steps."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtra("the fit needs scipy; the readings are saved", hint="pip install 'knee[train]'") from None
    bounds: list[Any] = [(float(np.log(a)), float(np.log(b))) for a, b in zip(low, high, strict=True)]
    x0 = np.clip(np.log(start), [b[0] for b in bounds], [b[1] for b in bounds])
    options = {"maxiter": 2000, "xatol": 1e-3, "fatol": 1e-5, "adaptive": True}
    found = minimize(lambda x: loss(np.exp(x)), x0, method="Nelder-Mead", bounds=bounds, options=options)
    return np.asarray(np.exp(found.x), dtype=np.float64)
