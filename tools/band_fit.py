"""Fitting how errors grow with distance, and how wide bands must be, on sources that are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from band_coverage import QUANTITIES, Judged, held, judged_runs

from knee.base.arrays import Floats
from knee.specs.job import Job
from knee.trust.bands import FEW_SOURCES, LABELS, Constants, Label, Quantity, Scores, carried_constants, unseen
from knee.trust.error_table import NAMES, Distances, Errors, Measured
from knee.trust.validation.bundled_runs import PROMISED

ASSUMED: Mapping[Quantity, Mapping[str, float]] = {
    "throughput": {
        "small_layers": 1.2,
        "stack": 1.5,
        "doublings": 1.1,
        "gpu": 1.3,
        "precision": 1.3,
        "parallelism": 1.3,
        "tp_across_nodes": 1.3,
    },
    "memory": {
        "small_layers": 1.0,
        "stack": 1.5,
        "doublings": 1.05,
        "gpu": 1.1,
        "precision": 1.2,
        "parallelism": 1.2,
        "tp_across_nodes": 1.5,
    },
}
"""Factors before any run was seen (kind assumed): what is not known of a job does not make its error smaller."""
FACTOR_SPREAD = 0.3
"""Standard deviation of the logarithm of a factor around what was assumed (assumed)."""
FEW_RUNS = 8
"""Runs from which on a source counts fully."""
MARGIN_FRAC = 0.02
"""Held above the promise where widths are fitted: a source that they were not fitted on is held that much less."""
STEP, WIDEST = 0.02, 4.0
EACH_LABEL = 2 * FEW_SOURCES
"""Sources below which all labels have one widening: too few of them have runs of each label."""


def fit_factors(errors: Errors, quantity: Quantity) -> Floats:
    """Factors of distance; those assumed where fewer than ``FEW_SOURCES`` sources measured the quantity.

    Formula: the least of sum over sources of the mean of |y| / (b S) + log(b S), + sum of (log f - log f0)^2 / (2 s^2)
    Where:   y = log(truth / predicted) of a run whose source was left out, S the product of f^distance from the runs
             of other sources, b the scale at no distance (Laplace's likelihood), f0 what was assumed, s its spread
    """
    start = np.log([ASSUMED[quantity][name] for name in NAMES])
    logs = -np.log1p(unseen(errors, quantity))
    chosen = np.isfinite(logs)
    names = errors.of("source", chosen)
    if len(set(names)) < FEW_SOURCES:
        return np.exp(start)
    distances = Measured(errors, chosen).of_runs()[:, chosen]
    weight = np.array([1.0 / names.count(name) for name in names])
    return np.exp(_least(start, np.abs(logs[chosen]), distances, weight))


def _least(start: Floats, size: Floats, distances: Distances, weight: Floats) -> Floats:
    """Coordinate by coordinate: the function has one valley in each."""

    def loss(log_factors: Floats) -> float:
        log_scale = log_factors @ distances
        base = float(np.sum(weight * size / np.exp(log_scale)) / np.sum(weight))
        misfit = np.sum(weight) * (1.0 + math.log(base)) + np.sum(weight * log_scale)
        return float(misfit + np.sum((log_factors - start) ** 2) / (2.0 * FACTOR_SPREAD**2))

    best, grid = start.copy(), np.linspace(0.0, 1.2, 61)
    for _ in range(4):
        for i in range(len(best)):
            tried = [np.where(np.arange(len(best)) == i, value, best) for value in grid]
            best = min(tried, key=loss)
    return np.round(best, 2)


def fit_labels(errors: Errors, quantity: Quantity, constants: Constants, judged: Sequence[Judged]) -> Constants:
    """The least widening of each label with which bands hold what they promise on sources that are left out.

    Validated bands are judged on near runs of a known stack too: few are validated without their own source, and those
    are closer. A weaker label is never widened less. One that fewer than ``FEW_SOURCES`` sources have is widened like
    the stronger. With fewer than ``EACH_LABEL`` sources, each label is judged on all runs.
    """
    mine = [run for run in judged if run.quantity == quantity]
    ends = {}
    for source in dict.fromkeys(run.source for run in mine):
        scores = Scores(errors.where(~errors.is_("source", source)), quantity, constants)
        ends[source] = {promised: scores.ends(promised) for promised in PROMISED}
    times, found = 1.0, {}
    for label in LABELS:
        chosen = [r for r in mine if len(ends) < EACH_LABEL or _stands_for(r, label)]
        groups = {source: [r for r in chosen if r.source == source] for source in ends}
        groups = {source: group for source, group in groups.items() if group}
        if len(groups) >= FEW_SOURCES:
            while times < WIDEST and not _hold(groups, constants, ends, times):
                times += STEP
        found[label] = round(times, 2)
    return replace(constants, labels=found)


def _stands_for(run: Judged, label: Label) -> bool:
    is_of_stack = run.distances[NAMES.index("stack")] == 0.0
    return run.label == label or (label == "validated" and run.label == "near" and is_of_stack)


def _hold(
    groups: Mapping[str, Sequence[Judged]],
    constants: Constants,
    ends: Mapping[str, Mapping[float, tuple[float, float]]],
    times: float,
) -> bool:
    """Whether bands hold their promise, however sources and runs are counted."""
    for promised in PROMISED:
        found = [held(group, constants, ends[source][promised], times)[0] for source, group in groups.items()]
        by_source, by_run = np.mean([np.mean(some) for some in found]), np.mean(np.concatenate(found))
        # a source counts by its runs up to a few: one run is held or not
        weights = [min(len(some), FEW_RUNS) for some in found]
        weighted = np.average([np.mean(some) for some in found], weights=weights)
        if weighted < promised + MARGIN_FRAC or min(by_source, by_run) < promised:
            return False
    return True


def fit_constants(errors: Errors, jobs: Sequence[Job | None]) -> dict[Quantity, Constants]:
    """From all runs of a table."""
    judged = judged_runs(errors, jobs)
    found: dict[Quantity, Constants] = {}
    for quantity in QUANTITIES:
        none: dict[Label, float] = dict.fromkeys(LABELS, 1.0)
        start = replace(carried_constants()[quantity], factors=fit_factors(errors, quantity), labels=none)
        found[quantity] = fit_labels(errors, quantity, start, judged)
    return found


def constants_without_each(errors: Errors, jobs: Sequence[Job | None]) -> dict[str, dict[Quantity, Constants]]:
    """Source -> constants that were fitted without it."""
    found = {}
    for source in dict.fromkeys(errors.words["source"]):
        rest = ~errors.is_("source", source)
        found[source] = fit_constants(errors.where(rest), [job for job, kept in zip(jobs, rest, strict=True) if kept])
    return found
