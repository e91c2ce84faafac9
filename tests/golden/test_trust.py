"""Bands of trust hold what they promise of sources that are left out: labels, bands and constants without them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from band_coverage import QUANTITIES, Coverage, coverage, table
from band_fit import fit_constants

from knee.trust.bands import LABELS, Label, Quantity, carried_constants
from knee.trust.error_table import read_errors
from knee.trust.validation.bundled_runs import PROMISED, jobs_of

pytestmark = pytest.mark.slow

SLACK = 0.03
WIDEST = {"validated": 0.25, "near": 0.45, "extrapolated": 0.6}
"""Median half width of bands of throughput that promise 80%: a band that holds everything says nothing."""


@cache
def left_out() -> list[Coverage]:
    # labels and bands without the source, constants as they are carried: tools/fit_bands.py fits those anew for each
    found = coverage(read_errors())
    print(table(found))
    return found


def rows(quantity: Quantity, label: Label, promised: float) -> list[Coverage]:
    """Of each source."""
    key = (quantity, label, promised)
    return [row for row in left_out() if (row.quantity, row.label, row.covered_frac) == key]


@pytest.mark.parametrize("promised", PROMISED)
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_bands_hold_what_they_promise(quantity: Quantity, label: Label, promised: float) -> None:
    found = rows(quantity, label, promised)
    if not found:
        pytest.skip(f"no run with a reading of {quantity} is {label} without its source")
    (total,) = (row for row in found if not row.source)
    by_source = [row for row in found if row.source]
    by_run = np.average([row.held_frac for row in by_source], weights=[row.runs for row in by_source])
    assert total.held_frac >= promised - SLACK, table(found)
    assert by_run >= promised - SLACK, table(found)


@pytest.mark.parametrize("label", LABELS)
def test_bands_are_of_use(label: Label) -> None:
    (total,) = (row for row in rows("throughput", label, 0.8) if not row.source)
    assert total.half_width_frac < WIDEST[label]


def test_every_source_is_judged() -> None:
    errors = read_errors()
    assert None not in jobs_of(errors)
    judged = {row.source for row in left_out() if row.quantity == "throughput"} - {""}
    assert judged == set(errors.words["source"])


def test_the_constants_are_those_that_are_fitted() -> None:
    errors = read_errors()
    for quantity, found in fit_constants(errors, jobs_of(errors)).items():
        carried = carried_constants()[quantity]
        assert carried.factors == pytest.approx(found.factors, abs=0.01)
        assert carried.labels == pytest.approx(found.labels, abs=0.011)
