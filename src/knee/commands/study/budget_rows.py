"""Budgets as rows of a study: the best model that so many GPUs train in some days, beside what FLOP counting took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knee.base.files import digest, make_folder
from knee.base.units import short
from knee.commands.budget.frontier import lost_by
from knee.commands.budget.model_family import family_of
from knee.commands.budget.scaling_laws import assumed_mfu, batch_law, law_of
from knee.commands.budget.search import BudgetLimits, Problem, flop_choice
from knee.commands.budget.throughput import Rates
from knee.commands.study.quantities import Row
from knee.commands.study.record_store import cached, engine
from knee.commands.study.study_file import Budgets
from knee.engine.training_cost import checked_pue
from knee.specs.fields import split_overrides
from knee.specs.load import kept_for_a_question, load_cluster, load_profile
from knee.specs.model import Model
from knee.trust.trust import trust_of

EVERY, AROUND = 4, 2
"""Rungs between the sizes that a study tries, and from the best of them to its neighbours: factors of 2 and of 1.4."""


def budget_rows(study: str, grid: Budgets, folder: Path | None = None) -> Iterator[Row]:
    """A row for each count; kept in a folder while neither engine nor catalogue changes."""
    rows = _rows(grid) if folder is None else keep_budget(grid, folder)
    yield from ({"study": study} | row for row in rows)


def keep_budget(grid: Budgets, folder: Path) -> list[dict[str, Any]]:
    """The rows of a grid from its file in a folder, which is written where there is none."""
    key = key_of(grid)
    rows: list[dict[str, Any]] = cached(make_folder(folder) / f"budget-{key}.json", key, lambda: _rows(grid))
    return rows


def _rows(grid: Budgets) -> list[dict[str, Any]]:
    bounds: dict[Model, float] = {}
    return [_row(grid, gpus, bounds) for gpus in grid.gpus]


def _row(grid: Budgets, gpus: int, bounds: dict[Model, float]) -> dict[str, Any]:
    problem, limits = _problem(grid, bounds), BudgetLimits(gpus=gpus, days=grid.days)
    # all of the GPUs, as the question is what they are worth together
    problem.counts_only = (gpus,)
    common = {"series": grid.series, "cluster": grid.cluster, "profile": grid.profile, "gpus": gpus, "days": grid.days}
    # first, as the best is found sooner beside a good candidate
    flop = flop_choice(problem, limits, assumed_mfu()[0])
    best = problem.optimum(limits, every=EVERY)
    if best is None:
        return common | {"kind": "impossible", "why": "no shape of the family can be trained"}
    least = problem.between(limits, best, every=AROUND)
    # the neighbours may be better than what the coarse ladder had
    best = problem.reachable(limits, (gpus,)) or best
    lost = None if flop.run is None else lost_by(problem, limits, best, flop.run)
    return common | {
        "kind": "simulated",
        "params": best.params,
        "least_params": least,
        "size": short(least),
        "tokens": best.tokens,
        "tokens_per_param": best.tokens_per_param,
        "loss": best.loss,
        "mfu_frac": best.rate.mfu_frac,
        "exposed_frac": best.rate.exposed_frac,
        "flop_params": flop.params,
        "flop_size": short(flop.params),
        "size_ratio": least / flop.params,
        "flop_loss": flop.loss,
        "really_loss": None if flop.run is None else flop.run.loss,
        "reached_frac": flop.reached_frac,
        "lost_frac": None if lost is None else lost.budget_frac,
        "trust": trust_of(problem.rates.job(best.model, best.rate)).label,
    }


@kept_for_a_question
def _parts(cluster: str, profile: str, sets: tuple[tuple[str, str], ...]) -> tuple[Any, Any]:
    _, for_cluster, for_profile, _ = split_overrides(sets)
    return load_cluster(cluster, for_cluster).spec, load_profile(profile, for_profile).spec


def _problem(grid: Budgets, bounds: dict[Model, float]) -> Problem:
    cluster, profile = _parts(grid.cluster, grid.profile, tuple(grid.set.items()))
    rates = Rates(cluster=cluster, profile=profile, seq_len=grid.seq_len, bounds=bounds)
    return Problem(
        rates=rates, law=law_of(grid.law), batch_law=batch_law(), family=family_of(grid.family), pue=checked_pue(None)
    )


def key_of(grid: Budgets) -> str:
    """A digest of the question, of every value behind its names, and of the code that answers it."""
    specs = [asdict(spec) for spec in _parts(grid.cluster, grid.profile, tuple(grid.set.items()))]
    members = [asdict(member) for member in family_of(grid.family).members]
    return digest([asdict(grid), specs, members, engine()])[:24]
