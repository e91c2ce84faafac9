"""What ``second_process`` runs beside a large study: its answers, last ones first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knee.base.second_process import asked_of_this, while_wanted
from knee.commands.study.budget_rows import budget_rows
from knee.commands.study.record_store import Store, cached_fidelity
from knee.commands.study.run_study import points_to_run, with_needs

KEPT, RECORDS = ".kept", "records"
"""Below a study's folder: budgets and fidelity, and what was simulated."""
WORTH_IT = 64
"""Answers that are missing, from which a second interpreter pays."""


def answer_from_the_end(folder: Path, names: Sequence[str], changes: Mapping[str, Any]) -> None:
    """Fidelity, budgets and points: the first process comes to them the other way round."""
    cached_fidelity(folder / KEPT)
    budgets = [(study.name, grid) for study in with_needs(names) for grid in study.budget]
    for name, grid in while_wanted(reversed(budgets)):
        list(budget_rows(name, grid, folder / KEPT))
    questions = [point.question for point in reversed(points_to_run(names, changes))]
    store = Store(folder / RECORDS, lambda _: None, coming=questions)
    for question in while_wanted(questions):
        store.record(question)


if __name__ == "__main__":
    asked = asked_of_this()
    answer_from_the_end(Path(asked["folder"]), asked["names"], asked["changes"])
