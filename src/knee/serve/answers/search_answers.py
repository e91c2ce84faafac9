"""Searches in a process of their own: news while they run, and what the Plan and the Budget view show at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import knee
from knee.errors import InputError
from knee.progress import Progress
from knee.record.plan_words import plan_words
from knee.results.plan_result import PlanSearch
from knee.results.plans.ranked_plan import METRICS, RankedPlan, ranked_plan
from knee.search.cell_bests import CellBest, cell_bests, cell_pairs
from knee.serve.answers.budget_view import budget_done
from knee.serve.answers.questions import asked_of
from knee.serve.answers.scale_view import curve_data
from knee.serve.answers.written import command_of, python_of

EVERY_S = 0.1
"""Between two reports of progress."""
Tell = Callable[[Mapping[str, Any]], None]


def search(body: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """One search of the ``kind`` that the body names."""
    kind = body.get("kind")
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        text = f"kind must be one of {', '.join(KINDS)}"
        raise InputError(text, code="unknown-choice", field="kind")
    return found(body, tell)


def _progress(tell: Tell) -> Progress:
    begun, last = time.monotonic(), 0.0  # the first report comes at once

    def progress(what: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_S or (total and done == total):
            last = now
            seconds = round(now - begun, 3)
            tell({"event": "progress", "what": what, "done": done, "total": total, "seconds": seconds})

    return progress


def _plan(body: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    question = asked_of(body, "plan")
    begun = time.monotonic()

    def better(plan: RankedPlan) -> None:
        tell({"event": "best", "row": row_data(plan), "seconds": round(time.monotonic() - begun, 3)})

    progress = _progress(tell)
    answer = knee.plan(**question, progress=progress, on_better=better)
    ranked = _ranked(answer, question)
    tell({"event": "ranked", **ranked})
    heat, pairs = [], len(cell_pairs(answer.found))
    for number, cell in enumerate(cell_bests(answer.found), start=1):
        heat.append(_cell(cell, answer))
        progress("pairs of tp and pp", number, pairs)
    return ranked | {"heat": heat}


def _ranked(answer: PlanSearch, question: Mapping[str, Any]) -> dict[str, Any]:
    """All but the heat map, which takes longer than the search itself."""
    data = answer.to_dict()
    return {
        "kind": "plan",
        "ranking": [row_data(plan) for plan in answer.plans],
        "front": [row_data(plan) for plan in answer.front],
        "recommended": row_data(answer.best),
        "baseline": None if answer.baseline is None else row_data(answer.baseline),
        **{name: data[name] for name in ("counts", "why", "alike", "robustness", "sensitivity", "trust", "objective")},
        "training": data.get("training"),
        "command": command_of("plan", question),
        "python": python_of("plan", question),
    }


def row_data(plan: RankedPlan) -> dict[str, Any]:
    """A plan with its words; ``options`` are what a state has to say to be that plan."""
    data = plan.to_dict()
    given = {
        name: value for name, value in data["plan"].items() if getattr(plan.plan, name) != getattr(_DEFAULTS, name)
    }
    return data | {"words": plan_words(plan.plan), "options": given}


def _cell(cell: CellBest, answer: PlanSearch) -> dict[str, Any]:
    base = {"tp": cell.tp, "pp": cell.pp, "plans": cell.plans, "fits": cell.plan is not None}
    if cell.plan is None or cell.results is None:
        needs = "none of its plans fits in memory"
        return base | {"reason": needs, "words": None, "options": None} | dict.fromkeys(METRICS)
    values = {name: float(getattr(cell.results, name)[0]) for name in METRICS}
    row = ranked_plan(cell.plan, values, answer.found.cluster.gpu.hbm_bytes)
    return base | row_data(row) | {"reason": None}


_DEFAULTS = knee.Plan()


def _scale_best(body: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    question = asked_of({**body, "gpus": body.get("counts") or body.get("gpus"), "best": True}, "scale")
    answer = knee.scale(**question, progress=_progress(tell))
    return {"kind": "scale_best", "curves": [curve_data(answer, question, {"best": True})]}


def _budget(body: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    question = asked_of(body, "budget")
    return budget_done(knee.budget(**question, progress=_progress(tell)), question)


KINDS: dict[str, Callable[[Mapping[str, Any], Tell], dict[str, Any]]] = {
    "plan": _plan,
    "scale_best": _scale_best,
    "budget": _budget,
}
