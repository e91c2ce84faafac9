"""A profile that was calibrated on a user's runs, and checked on runs that it had not seen, has a band of its own."""

from __future__ import annotations

from knee.specs.profile import Profile

CHECKED_FRAC = 0.8
"""Share of new runs that ``Profile.checked_error_frac`` holds."""
QUANTILES = {0.8: 1.2816, 0.9: 1.6449}
"""Share that is covered -> standard deviations of a normal distribution to both sides."""


def narrowed(profile: Profile, ends: tuple[float, float], covered_frac: float) -> tuple[float, float]:
    """Ends of a band of the truth over the prediction, less one, no wider than what the user's own runs say.

    Formula: 1 / (1 + e) - 1 to 1 / (1 - e) - 1, e = checked_error_frac * z(covered) / z(0.8)
    Where: z are quantiles of a normal distribution: eight runs are too few to see the ninth of ten
    Valid: for jobs like the runs that were calibrated on; an extrapolated one keeps the published band.
    """
    error = profile.checked_error_frac * QUANTILES[covered_frac] / QUANTILES[CHECKED_FRAC]
    if not 0 < error < 1:
        return ends
    low, high = 1.0 / (1.0 + error) - 1.0, 1.0 / (1.0 - error) - 1.0
    return round(max(ends[0], low), 4), round(min(ends[1], high), 4)
