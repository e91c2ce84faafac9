"""Bandwidths that others measured: those that knee carries, figure 2a among them, and the gathered ones it was not
fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from knee.hardware_fit.residuals import Residuals
from knee.validation.bandwidth_errors import BandwidthValidation, validate_bandwidths
from knee.validation.published_bandwidths import BandwidthSetting, carried_bandwidths, read_bandwidths

GATHERED = Path(__file__).parents[1] / "data" / "published_bandwidths.csv"
BAR_FRAC = 0.1


@pytest.fixture(scope="module")
def own() -> BandwidthValidation:
    return validate_bandwidths(carried_bandwidths())


def median(residuals: Residuals | None) -> float:
    assert residuals is not None
    return residuals.median_frac


def test_large_messages_are_within_a_tenth(own: BandwidthValidation) -> None:
    assert median(own.headline["all_reduce"]) < 0.05
    assert median(own.headline["all_gather"]) < 0.07


def test_figure_2a(own: BandwidthValidation) -> None:
    score = own.sources["paper_figure_2a"]
    assert score.rows == 104
    assert score.large is not None
    assert score.large.points == 88
    assert score.large.median_frac < 0.05
    assert score.large.p90_frac < BAR_FRAC


def test_every_number_of_nodes(own: BandwidthValidation) -> None:
    """One row stands for three nodes, and a table without a method for all-gathers on 128."""
    beyond = {
        (name, nodes)
        for name in ("all_reduce", "all_gather")
        for nodes, r in own.nodes[name].items()
        if r.median_frac > BAR_FRAC
    }
    assert beyond == {("all_reduce", "3"), ("all_gather", "128")}


def test_the_gathered_file() -> None:
    file = read_bandwidths(GATHERED)
    found = validate_bandwidths(file)
    assert file.ignored == ()
    assert set(found.all.skipped) == {
        "alltoall is not modelled",
        "busbw_GBps is 0.0; it must be positive",
        "the source calls its system misconfigured",
    }
    for name in ("all_reduce", "all_gather"):
        assert median(found.headline[name]) < 0.06


def test_what_nothing_was_fitted_to() -> None:
    """Rows of the gathered file that knee does not carry: other sizes, other nodes, other sources."""
    known = {_key(reading.setting) for reading in carried_bandwidths().readings}
    file = read_bandwidths(GATHERED)
    rows = [row for row in file.rows if row.setting is not None and _key(row.setting) not in known]
    found = validate_bandwidths(replace(file, rows=tuple(rows)))
    assert found.all.tests > 150
    for name in ("all_reduce", "all_gather"):
        assert median(found.headline[name]) < BAR_FRAC


def _key(setting: BandwidthSetting) -> tuple[object, ...]:
    """Enough to know a row again that is written in other words."""
    return setting.source, setting.gpu[:4], setting.operation, setting.n_gpus, setting.message_bytes
