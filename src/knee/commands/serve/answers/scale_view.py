"""What the Scale view needs in one answer: curves over GPU counts, with published runs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import knee
from knee.base.errors import InputError
from knee.commands.scale.result import Scaling
from knee.commands.serve.answers.published_points import points_like
from knee.commands.serve.answers.questions import MOST_CURVES, asked_of
from knee.commands.serve.answers.written import command_of, python_of
from knee.specs.plan_words import plan_words

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
        asked = asked_of({**body, **changes, **_both(body, changes), "gpus": counts}, "scale")
        if asked.get("best"):
            text = "best searches for a plan at every count, which takes long"
            raise InputError(text, hint="POST /api/searches with kind scale_best", code="contradiction", field="best")
        found.append(curve_data(knee.scale(**asked), asked, changes))
    return {"counts": counts, "curves": found}


def _both(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of a curve are in addition to those of the question."""
    own = [part["overrides"] for part in (body, changes) if isinstance(part.get("overrides"), dict)]
    return {"overrides": own[0] | own[1]} if len(own) == 2 else {}


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
