"""Functions of ``import knee``, whose keyword arguments are the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import knee
from knee.base.errors import InputError
from knee.commands.serve.answers.questions import arguments_of, asked_of

Body = Mapping[str, Any]


def simulate(body: Body) -> Any:
    """``knee.simulate``."""
    return knee.simulate(**arguments_of(body, "simulate")).to_dict()


def scale(body: Body) -> Any:
    """``knee.scale``; a search at every count is another route's."""
    if body.get("best"):
        text = "best searches for a plan at every count, which takes long"
        raise InputError(text, hint="POST /api/searches with kind scale_best", code="contradiction", field="best")
    return knee.scale(**arguments_of(body, "scale")).to_dict()


def plan(body: Body) -> Any:
    """``knee.plan``."""
    return knee.plan(**arguments_of(body, "plan")).to_dict()


def budget(body: Body) -> Any:
    """``knee.budget``."""
    return knee.budget(**arguments_of(body, "budget")).to_dict()


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
