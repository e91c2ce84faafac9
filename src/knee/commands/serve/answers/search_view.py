"""Searches in a process of their own: news while they run, and what the Plan and the Budget view show at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import knee
from knee.base.errors import InputError
from knee.base.progress import Progress
from knee.commands.budget.model_family import LEAST_PARAMS, MOST_PARAMS
from knee.commands.budget.result import Budget
from knee.commands.budget.scaling_laws import FLOP_PER_PARAM_TOKEN, Law, assumed_mfu, law_of, sizes_around
from knee.commands.budget.search import BudgetLimits, gpu_seconds
from knee.commands.job_request import amount_of, count_of
from knee.commands.plan.result import METRICS, PlanSearch, RankedPlan, ranked_plan
from knee.commands.serve.answers.questions import asked_of, command_of, python_of
from knee.commands.serve.answers.views import curve_data
from knee.engine.training_cost import checked_pue
from knee.search.plan_search import CellBest, cell_bests, cell_pairs
from knee.specs.defaults import DEFAULT_LAW
from knee.specs.load import load_cluster
from knee.specs.plan import KNOBS, Plan, plan_words

# What the Budget view needs: curves of equal loss, what each limit affords, and the choice of plain FLOP counting.
# The quick part is closed formulas: a scaling law, and GPUs x peak x an assumed MFU x time. The search adds the run
# that a simulated cluster affords, and the same limits with its throughput.


def budget_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the limits afford by plain FLOP counting, with the law's curves around it."""
    asked = asked_of(body, "budget")
    if "cluster" not in asked:
        raise InputError("cluster is missing", hint='for example "dgx-h100"', code="missing-argument", field="cluster")
    name = asked.get("law", DEFAULT_LAW)
    if not isinstance(name, str):
        raise InputError("law must be a text", code="wrong-type", field="law")
    cluster, law = load_cluster(asked["cluster"]).spec, law_of(name)
    mfu, pue = _number(asked, "mfu") or assumed_mfu()[0], checked_pue(_number(asked, "pue"))
    limits = BudgetLimits(
        gpus=int(_number(asked, "gpus") or cluster.max_gpus),
        days=_number(asked, "days"),
        usd=amount_of("usd", _amount(asked, "usd")),
        mwh=amount_of("mwh", _amount(asked, "mwh")),
        tokens_max=count_of("tokens_max", _amount(asked, "tokens_max")),
    )
    data, peak = limits.tokens_max, cluster.gpu.peak_flop_per_s(asked.get("precision") or Plan().precision)
    flop = {name: seconds * peak * mfu for name, seconds in gpu_seconds(cluster, limits, pue).items()}
    if not flop or not all(0 < value < 1e40 for value in flop.values()):
        hint = "give days, usd or mwh, each a number above 0"
        raise InputError("no compute limit is given", hint=hint, code="missing-argument", field="days")
    least = min(flop.values())
    params, tokens = law.split(least)
    if data is not None and tokens > data:
        params, tokens = least / FLOP_PER_PARAM_TOKEN / data, data
    sizes = sizes_around(params)
    lines = {name: [[n, value / FLOP_PER_PARAM_TOKEN / n] for n in sizes] for name, value in flop.items()}
    return {
        "law": _law_data(law),
        "flop_counting": {
            "mfu_frac": mfu,
            "flop": least,
            "params": params,
            "tokens": tokens,
            "loss": float(law.loss(params, tokens)),
            "binding": min(flop, key=lambda name: flop[name]),
        },
        "equal_loss": law.equal_loss_curves(params, tokens),
        "limits": lines | ({} if data is None else {"tokens_max": [[n, data] for n in sizes]}),
        "outside": law.outside(params, tokens),
        "range": {"params": [LEAST_PARAMS, MOST_PARAMS]},
        "command": command_of("budget", asked),
        "python": python_of("budget", asked),
    }


def budget_done(answer: Budget, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the search found; its limits are with the throughput of each size's best plan."""
    data, best, law = answer.to_dict(), answer.best, answer.problem.law
    return {
        "kind": "budget",
        "budget": data,
        "law": _law_data(law),
        "equal_loss": law.equal_loss_curves(best.counted, best.tokens),
        "limits": answer.afforded_tokens(),
        "trust": data["best"]["trust"],
        "command": command_of("budget", asked),
        "python": python_of("budget", asked),
    }


def _law_data(law: Law) -> dict[str, Any]:
    names = ("name", "form", "values", "counts", "loss_of", "params", "tokens", "flop", "kind", "source")
    return {name: getattr(law, name) for name in names}


def _number(asked: Mapping[str, Any], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18:
        raise InputError(f"{name} must be a number above 0", code="out-of-range", field=name)
    return float(value)


def _amount(asked: Mapping[str, Any], name: str) -> str | float | None:
    value = asked.get(name)
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise InputError(f"{name} must be a number, or a text such as 2M", code="wrong-type", field=name)
    return value


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
    """A plan with its words; ``options`` are what a state has to say to be that plan: what is not the default, and what
    knee would choose by itself."""
    data = plan.to_dict()
    chosen = (*CHOSEN, *(("recompute_frac",) if plan.plan.recompute == "blocks" else ()))
    given = {
        name: value
        for name, value in data["plan"].items()
        if name in chosen or getattr(plan.plan, name) != getattr(_DEFAULTS, name)
    }
    return data | {"words": plan_words(plan.plan), "options": given}


def _cell(cell: CellBest, answer: PlanSearch) -> dict[str, Any]:
    base = {"tp": cell.tp, "pp": cell.pp, "plans": cell.plans, "fits": cell.plan is not None}
    if cell.plan is None or cell.results is None:
        needs = "none of its plans fits in memory"
        return base | {"reason": needs, "words": None, "options": None} | dict.fromkeys(METRICS)
    row = ranked_plan(cell.plan, cell.results, answer.found.cluster.gpu.hbm_bytes)
    return base | row_data(row) | {"reason": None}


_DEFAULTS = knee.Plan()
CHOSEN = ("sharding", *(name for name, knob in KNOBS.items() if knob.filled))


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
