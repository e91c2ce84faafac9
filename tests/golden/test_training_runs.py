"""Whole training runs whose cost was published."""

from __future__ import annotations

from typing import Any

import pytest

from knee.commands.budget.published_budgets import WITHIN_FRAC, predicted_gpu_hours, published_runs
from knee.commands.budget.result import BudgetCheck
from knee.specs.catalog import ROOT, read_toml

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["llama2-7b-2T", "llama2-13b-2T", "llama2-70b-2T"])
def test_what_the_assumptions_move_is_as_stated(name: str) -> None:
    raw = read_toml(ROOT / "training_runs.toml")[name]
    fewer, faster = (_error(raw | change) for change in ({"gpus": 1024}, {"profile": "compiled"}))
    both = _error(raw | {"gpus": 1024, "profile": "compiled"})
    assert (
        f"on 1,024 GPUs it is {fewer:.0%}, with profile compiled {faster:.0%} (2,048) and {both:.0%} (1,024)"
        in (raw["assumed"])
    )


def test_what_the_stack_of_llama_3_moves_is_as_stated() -> None:
    raw = read_toml(ROOT / "training_runs.toml")["llama3-405b-15T"]
    compiled, eager = (_error(raw | {"profile": profile}) for profile in ("compiled", "eager"))
    assert f"with compiled it is {compiled:+.0%}, with eager {eager:+.0%}" in raw["assumed"]


def _error(raw: dict[str, Any]) -> float:
    hours = predicted_gpu_hours(raw)[0]
    assert hours is not None
    return hours / raw["gpu_hours"] - 1.0


def test_gpu_hours_come_within_a_quarter_of_those_published() -> None:
    runs = published_runs()
    by_hours = {run.name: run for run in runs if run.gpu_hours is not None}
    assert set(by_hours) == {"llama2-7b-2T", "llama2-13b-2T", "llama2-70b-2T", "llama3-405b-15T"}
    for run in runs:
        assert run.error_frac is not None, run.name
        assert abs(run.error_frac) <= WITHIN_FRAC, (run.name, run.error_frac)
    worst = max(runs, key=lambda run: abs(run.error_frac or 0.0))
    assert worst.name in BudgetCheck(runs=tuple(runs)).sentence
    # what cannot be compared is said
    chinchilla = next(run for run in runs if run.name == "chinchilla-70b-1.4T")
    assert chinchilla.predicted_gpu_hours is None
    assert "TPUs" in chinchilla.assumed
