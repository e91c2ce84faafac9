"""What the loss becomes if replicas exchange only every few steps: published laws of DiLoCo."""

from __future__ import annotations

import math

import numpy as np

from knee.base.units import short
from knee.specs.catalog import catalog_file

DEFAULT_OUTER_LAW = "charles-2025"


def fitted_replicas(law: str = DEFAULT_OUTER_LAW) -> tuple[int, ...]:
    """Numbers of replicas that the law was fitted to, one alone left out."""
    return tuple(count for count in catalog_file("outer_sync_laws.toml")[law]["replicas"] if count > 1)


def loss_ratio(params: float, replicas: int, law: str = DEFAULT_OUTER_LAW) -> float:
    """Loss with so many replicas, divided by that of data parallelism on the same tokens.

    Formula: A_M N^alpha_M / (A N^alpha); log A_M and alpha_M between fitted numbers of replicas by a straight line in
             log M, and M^0.0116 beyond the largest
    Source:  arXiv 2503.09799, in catalog/outer_sync_laws.toml
    Valid:   35 million to 2.4 billion parameters, the nearer of which is used outside; up to 8 replicas; the tokens
             that the law was fitted to, 20 per parameter
    """
    fit = catalog_file("outer_sync_laws.toml")[law]
    counts = np.log(fit["replicas"])
    most = fit["replicas"][-1]
    wanted = math.log(min(replicas, most))
    a, alpha = (float(np.interp(wanted, counts, column)) for column in (np.log(fit["A"]), fit["alpha"]))
    base_a, base_alpha = fit["data_parallel"]
    size = min(max(params, fit["params"][0]), fit["params"][1])
    beyond = float(fit["beyond"]) * math.log(max(replicas / most, 1.0))
    return math.exp(a + (alpha - base_alpha) * math.log(size) + beyond) / float(base_a)


def outside_fit(params: float, replicas: int, *, sync_every: int, law: str = DEFAULT_OUTER_LAW) -> list[str]:
    """What of a run is outside the runs that the law was fitted to, as parts of a sentence; empty if nothing is."""
    fit = catalog_file("outer_sync_laws.toml")[law]
    low, high = fit["params"]
    found = []
    if not low <= params <= high:
        nearer = low if params < low else high
        found.append(f"{short(params)} parameters count as {short(nearer)} (fitted: {short(low)} to {short(high)})")
    if replicas > fit["replicas"][-1]:
        found.append(f"{replicas:,} replicas are more than the {fit['replicas'][-1]} that were fitted")
    if sync_every > fit["sync_every"]:
        found.append(f"exchanges are rarer than every {fit['sync_every']} steps, and may lose more")
    return found


def loss_words(params: float, replicas: int, *, sync_every: int, law: str = DEFAULT_OUTER_LAW) -> str:
    """The change of the loss as a sentence, and whether it is extrapolated."""
    change = loss_ratio(params, replicas, law) - 1.0
    said = f"by the law {law} (arXiv 2503.09799), {replicas:,} replicas change the loss by {change:+.2%}"
    outside = outside_fit(params, replicas, sync_every=sync_every, law=law)
    return f"{said}; this is extrapolated: {', and '.join(outside)}" if outside else said
