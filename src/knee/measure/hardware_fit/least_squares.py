"""The parameters that leave the least error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import MissingExtra


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
