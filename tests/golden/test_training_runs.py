"""Whole training runs whose cost was published."""

from __future__ import annotations

from knee.cli.budget_check import checked_sentence
from knee.search.published_runs import WITHIN_FRAC, published_runs, worst_of


def test_gpu_hours_come_within_a_quarter_of_those_published() -> None:
    runs = published_runs()
    by_hours = {run.name: run for run in runs if run.gpu_hours is not None}
    assert set(by_hours) == {"llama2-7b", "llama2-13b", "llama2-70b", "llama3-405b"}
    for run in runs:
        assert run.error_frac is not None, run.name
        assert abs(run.error_frac) <= WITHIN_FRAC, (run.name, run.error_frac)
    assert worst_of(runs).name in checked_sentence(runs)
    # what cannot be compared is said
    chinchilla = next(run for run in runs if run.name == "chinchilla-70b")
    assert chinchilla.predicted_gpu_hours is None
    assert "TPUs" in chinchilla.assumed
