"""Answers as plain data: functions of ``import knee``, whose keyword arguments are the body, and the page's views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import knee
from knee.base.errors import InputError
from knee.commands.scale.result import Scaling
from knee.commands.serve.answers.published_points import points_like
from knee.commands.serve.answers.questions import MOST_CURVES, arguments_of, asked_of, command_of, python_of
from knee.commands.simulate.result import Simulation
from knee.specs.plan import plan_words

Body = Mapping[str, Any]


def scale(body: Body) -> Any:
    """``knee.scale``; a search at every count is another route's."""
    _refuse_best(body)
    return knee.scale(**arguments_of(body, "scale")).to_dict()


def _refuse_best(body: Body) -> None:
    if body.get("best"):
        text = "best searches for a plan at every count, which takes long"
        raise InputError(text, hint="POST /api/searches with kind scale_best", code="contradiction", field="best")


def validate(body: Body) -> Any:
    """``knee.validate`` of the runs that knee carries; files are another route's."""
    if body:
        raise InputError("this takes no arguments", hint="POST a file to /api/read", code="unknown-argument")
    return knee.validate().to_dict()


def catalog_entry(body: Body) -> Any:
    """``knee.catalog_entry``: every value of an entry, with its source."""
    name, kind = body.get("name"), body.get("kind")
    known = {entry.name for entry in knee.catalog_entries().entries}
    if not isinstance(name, str) or name not in known:
        text = f"nothing named {str(name)[:80]!r} is in the catalogue"
        raise InputError(text, hint="GET /api/catalog lists all names", code="unknown-name", field="name")
    return knee.catalog_entry(name, kind=kind).to_dict()


def toml_file(body: Body) -> bytes:
    """The job of a state as a file for knee's commands."""
    from knee.training.export.formats import export

    return export(knee.simulate(**asked_of(body, "simulate")).job, "knee").encode()


# The Step view.


def step_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """One step: numbers, memory, lanes, collectives, power, cost and trust."""
    asked = asked_of(body, "simulate")
    answer = knee.simulate(**asked)
    data = answer.to_dict()
    trust, assumptions = data.pop("trust"), data.pop("assumptions")
    gpu, names = answer.job.cluster.gpu, ("power_w_per_gpu", "power_w", "tokens_per_j", "energy_j_per_step")
    return {
        "measurement": data,
        "words": plan_words(answer.job.plan),
        "memory": _memory(answer, trust),
        **answer.lanes(),
        "collectives": data["comm_loads"],
        "power": ({"tdp_w": gpu.tdp_w, "idle_w": gpu.idle_w} | {name: getattr(answer, name) for name in names}),
        "cost": {
            "usd_per_gpu_h": answer.job.cluster.usd_per_gpu_h,
            "training": data.get("training"),
            **{name: getattr(answer, name) for name in ("usd_per_mtoken", "usd_per_h", "usd_per_step")},
        },
        "trust": trust,
        "assumptions": assumptions,
        "command": command_of("simulate", asked),
        "python": python_of("simulate", asked),
    }


def _memory(answer: Simulation, trust: Mapping[str, Any]) -> dict[str, Any]:
    parts = answer.memory
    assert parts is not None
    names = [field.name for field in fields(parts)]
    return {
        "parts": [{"name": name.removesuffix("_bytes"), "bytes": getattr(parts, name)} for name in names],
        "total_bytes": answer.memory_bytes,
        "capacity_bytes": answer.job.cluster.gpu.hbm_bytes,
        "fits": answer.fits,
        "likely_fits": trust["fits"],
        "low_frac": trust["memory_low_frac"],
        "high_frac": trust["memory_high_frac"],
    }


def why(body: Mapping[str, Any]) -> dict[str, Any]:
    """The formulas, constants and sources behind a step; ``number`` names the line to start from."""
    number = body.get("number")
    asked = asked_of(body, "simulate")
    answer = knee.simulate(**asked)
    keys = ("name", "value", "formula", "source", "depth")
    lines = [{key: getattr(line, key) for key in keys} for line in answer.why()]
    return {"number": number, "lines": lines if number is None else _below(lines, str(number))}


def _below(lines: list[dict[str, Any]], number: str) -> list[dict[str, Any]]:
    """The line of that name with those that explain it."""
    at = next((i for i, line in enumerate(lines) if line["name"] == number), None)
    if at is None:
        names = ", ".join(line["name"] for line in lines if line["depth"] == 0)
        raise InputError(
            f"number {number[:80]!r} is not explained", hint=f"use one of {names}", code="unknown-name", field="number"
        )
    depth = lines[at]["depth"]
    end = next((i for i in range(at + 1, len(lines)) if lines[i]["depth"] <= depth), len(lines))
    return lines[at:end]


# The Scale view.

COUNTS = "8..2048"
"""GPU counts where none are given."""


def scale_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Curves over GPU counts, each with its knees, its band and published runs of its kind."""
    counts = body.get("counts") or (body["gpus"] if isinstance(body.get("gpus"), (str, list)) else COUNTS)
    curves = body.get("curves") or [{}]
    if not isinstance(curves, list) or len(curves) > MOST_CURVES or not all(isinstance(one, dict) for one in curves):
        text = f"curves must be a list of at most {MOST_CURVES} objects"
        raise InputError(text, hint='for example [{"tp": 2}, {"tp": 4}]', code="too-many", field="curves")
    found = []
    for changes in curves:
        own = [part["overrides"] for part in (body, changes) if isinstance(part.get("overrides"), dict)]
        asked = asked_of(
            {**body, **changes, **({"overrides": own[0] | own[1]} if len(own) == 2 else {}), "gpus": counts}, "scale"
        )
        _refuse_best(asked)
        found.append(curve_data(knee.scale(**asked), asked, changes))
    return {"counts": counts, "curves": found}


def curve_data(answer: Scaling, asked: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """One curve with all that is shown of it; ``changes`` are what makes it another than the first."""
    data, job = answer.to_dict(), answer.only.job
    curve = data["curves"][0]
    words = [None if point.job is None else plan_words(point.job.plan) for point in answer.only.curve.points]
    points = [point | {"words": text} for point, text in zip(curve["points"], words, strict=True)]
    return {
        "changes": dict(changes),
        **curve,
        "points": points,
        "name": answer.only.name,
        "scaling": data["scaling"],
        "threshold": data["threshold"],
        "keep_frac": data["keep_frac"],
        "assumptions": data["assumptions"],
        "published": points_like(job) if job is not None else [],
        "command": command_of("scale", asked),
        "python": python_of("scale", asked),
    }
