"""The share of left-out sources inside their bands, whose labels and widths come from the errors of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knee.base.arrays import Floats
from knee.specs.job import Job
from knee.trust.bands import CONSTANTS, LABELS, Constants, Label, Quantity, Scores, carried_constants, unseen
from knee.trust.error_table import Distances, Errors, read_errors
from knee.trust.similarity import likeness_of
from knee.trust.trust import label_of
from knee.trust.validation.bundled_runs import PROMISED, Ends, ends_without, jobs_of

QUANTITIES: tuple[Quantity, ...] = ("throughput", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run of a source that is left out."""

    source: str
    label: Label
    quantity: Quantity
    log_truth: float
    """Of truth / predicted, where the prediction saw nothing of the source."""
    distances: Distances
    """From the runs of the other sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What bands promise, and what they hold."""

    quantity: Quantity
    label: Label
    source: str
    """Empty: over all, each source counting once."""
    covered_frac: float
    """Promised."""
    runs: int
    held_frac: float
    half_width_frac: float
    """Median of half the band, as a share of the prediction."""


def judged_runs(errors: Errors, jobs: Sequence[Job | None]) -> list[Judged]:
    """Every run, as the other sources see it."""
    return list(_judged(errors, jobs))


def _judged(errors: Errors, jobs: Sequence[Job | None]) -> Iterator[Judged]:
    for source in dict.fromkeys(errors.words["source"]):
        mine = errors.is_("source", source)
        rest = errors.where(~mine)
        scores = {quantity: Scores(rest, quantity, carried_constants()[quantity]) for quantity in QUANTITIES}
        for i in np.flatnonzero(mine).tolist():
            job = jobs[i]
            if job is None:
                continue
            found = likeness_of(job, (), rest)
            for quantity in QUANTITIES:
                log_truth = float(-np.log1p(unseen(errors, quantity)[i]))
                if np.isfinite(log_truth):
                    yield Judged(
                        source=source,
                        label=label_of(found),
                        quantity=quantity,
                        log_truth=log_truth,
                        distances=scores[quantity].measured.of_job(job, found.gpu, found.stack),
                    )


def coverage(
    errors: Errors | None = None,
    constants: Mapping[str, Mapping[Quantity, Constants]] | None = None,
    judged: Sequence[Judged] | None = None,
    shipped: Path = CONSTANTS,
) -> list[Coverage]:
    """By quantity, label and source, and over the sources of a label, at 80% and at 90%.

    ``constants`` are by source, for constants that were fitted without it; else those of the catalogue's file
    ``shipped``.
    """
    errors = read_errors() if errors is None else errors
    judged = judged_runs(errors, jobs_of(errors)) if judged is None else judged
    found: list[Coverage] = []
    for quantity in QUANTITIES:
        ends = ends_without(errors, quantity, constants or {}, shipped)
        for label in LABELS:
            runs = [run for run in judged if run.quantity == quantity and run.label == label]
            for promised in PROMISED:
                found += _rows(quantity, label, promised, runs, ends)
    return found


def _rows(quantity: Quantity, label: Label, promised: float, runs: Sequence[Judged], ends: Ends) -> Iterator[Coverage]:
    shares, widths = [], []
    for source in dict.fromkeys(run.source for run in runs):
        mine = [run for run in runs if run.source == source]
        constants, at = ends[source]
        holds, width = held(mine, constants, at[promised], constants.labels[label])
        shares.append(float(np.mean(holds)))
        widths += width.tolist()
        yield _row(quantity, label, source, promised, len(mine), shares[-1], width)
    if runs:
        yield _row(quantity, label, "", promised, len(runs), float(np.mean(shares)), np.array(widths))


def _row(
    quantity: Quantity, label: Label, source: str, promised: float, runs: int, held_frac: float, width: Floats
) -> Coverage:
    return Coverage(
        quantity=quantity,
        label=label,
        source=source,
        covered_frac=promised,
        runs=runs,
        held_frac=held_frac,
        half_width_frac=float(np.median(width)),
    )


def held(
    runs: Sequence[Judged], constants: Constants, ends: tuple[float, float], times: float
) -> tuple[Floats, Floats]:
    """Whether each band holds the truth, and half its width."""
    scale = constants.scale(np.array([run.distances for run in runs]).T) * times
    truth = np.array([run.log_truth for run in runs])
    low, high = scale * ends[0], scale * ends[1]
    return ((low <= truth) & (truth <= high)).astype(np.float64), (np.exp(high) - np.exp(low)) / 2.0


def table(rows: Sequence[Coverage]) -> str:
    """For the eye."""
    lines = [f"{'quantity':12}{'label':14}{'source':38}{'promised':>9}{'runs':>6}{'held':>7}{'half width':>12}"]
    lines += [
        f"{row.quantity:12}{row.label:14}{row.source or 'all sources':38}{row.covered_frac:9.0%}{row.runs:6}"
        f"{row.held_frac:7.0%}{row.half_width_frac:12.0%}"
        for row in rows
    ]
    return "\n".join(lines)
