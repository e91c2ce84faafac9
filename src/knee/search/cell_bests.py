"""The best plan of every pair of tp and pp: what a heat map of a search shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from knee.engine.simulator import Results
from knee.search.best_first import BestFirst
from knee.search.plan_search import SearchResult, results_rows, score, wanted_by
from knee.specs.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBest:
    """One pair; without a plan, none of its plans fits in memory."""

    tp: int
    pp: int
    plans: int
    """Plans of the pair before their sharding is chosen."""
    plan: Plan | None = None
    results: Results | None = None
    """Of that plan alone."""


def cell_pairs(found: SearchResult) -> list[tuple[int, int]]:
    """Pairs of tp and pp that have plans."""
    found.start.extend_to(np.inf)
    pairs = np.stack((found.start.table.tp, found.start.table.pp), axis=1)
    return [(tp, pp) for tp, pp in np.unique(pairs, axis=0).tolist()]


def cell_bests(found: SearchResult) -> Iterator[CellBest]:
    """Each of them, searched as the whole space was, for its best plan alone."""
    start = found.start
    for tp, pp in cell_pairs(found):
        rows = np.flatnonzero((start.table.tp == tp) & (start.table.pp == pp))
        best = BestFirst(start.part(rows), hbm_bytes=found.cluster.gpu.hbm_bytes, wanted=wanted_by(found.only))
        best.rank(1)
        if not len(best.table):
            yield CellBest(tp=tp, pp=pp, plans=len(rows))
            continue
        row = int(np.argmax(score(best.results, found.objective)))
        results = results_rows(best.results, np.array([row]))
        yield CellBest(tp=tp, pp=pp, plans=len(rows), plan=best.table.plan(row), results=results)
