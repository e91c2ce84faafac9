"""What the page on budgets says of published training runs is what knee predicts; tests/docs runs its commands."""

from __future__ import annotations

from pathlib import Path

from knee.commands.budget.published_budgets import published_runs

PAGE = (Path(__file__).parents[2] / "docs/how-to/budget.md").read_text(encoding="utf-8")


def test_published_runs_are_as_stated() -> None:
    off = [f"{run.error_frac or 0.0:+.1%}" for run in published_runs()]
    said = (
        "{} for Llama-2 7B, {} for Llama-2 13B, {} for Llama-2 70B and {} for Llama-3 405B. "
        "The error of Chinchilla's FLOP is {}."
    )
    assert said.format(*off) in " ".join(PAGE.split())
