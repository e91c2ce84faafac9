"""Errors of predictions on published runs, and the table of them that the catalogue carries."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from knee.trust.error_table import COLUMNS, Pair, error_rows
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_errors import Ask, cases_of, predicted
from knee.trust.validation.run_to_job import RunJob


def errors_of(runs: Iterable[PublishedRun], ask: Ask) -> dict[Setting, tuple[float, float]]:
    """Errors of throughput and of memory, predicted over measured less one; NaN where nothing was measured."""
    cases, _ = cases_of(runs, ask)
    answer, flat = predicted(cases), [run for case in cases for run in case.runs]
    rate = answer.tokens_per_s_per_gpu / np.array([run.tokens_per_s_per_gpu or np.nan for run in flat]) - 1.0
    memory = answer.memory_bytes / np.array([run.memory_bytes or np.nan for run in flat]) - 1.0
    return {run.setting: (float(a), float(b)) for run, a, b in zip(flat, rate, memory, strict=True)}


def write_errors(
    path: Path,
    runs: Iterable[PublishedRun],
    ask: Callable[[Setting], RunJob],
    shipped: Mapping[Setting, Pair],
    unseen: Mapping[Setting, Pair],
) -> None:
    """Write the errors of the runs that were predicted without their source."""
    settings = [(run, run.setting) for run in runs if run.setting in unseen]
    rows = error_rows((run, ask(setting), shipped[setting], unseen[setting]) for run, setting in settings)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {len(rows)} errors")
