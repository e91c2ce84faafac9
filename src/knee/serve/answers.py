"""What a process can be asked: every answer by its name, and what is made of errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import knee
from knee.errors import InputError, KneeError, MissingExtra
from knee.export.formats import export
from knee.serve.controls import catalog
from knee.serve.dropped import read
from knee.serve.openapi import openapi
from knee.serve.questions import arguments_of, asked_of
from knee.serve.budget_view import budget_view
from knee.serve.scale_view import scale_view
from knee.serve.search_answers import search
from knee.serve.step_view import step_view, why

Tell = Callable[[bytes], None]
Body = Mapping[str, Any]
BUG = {
    "code": "bug",
    "message": "this question meets a bug in knee",
    "field": None,
    "hint": "the server's terminal shows the traceback; please report it with your question",
}
encoder = msgspec.json.Encoder(enc_hook=str)  # notes are texts with a code


def plain(name: str) -> Callable[[Body], Any]:
    """A function of ``import knee``, whose keyword arguments are the body."""

    def answered(body: Body) -> Any:
        return getattr(knee, name)(**arguments_of(body)).to_dict()

    return answered


def toml_file(body: Body) -> bytes:
    """The job of a state as a file."""
    return export(knee.simulate(**asked_of(body, "simulate")).job, "knee").encode()


def catalog_entry(body: Body) -> Any:
    """Every value of an entry of the catalogue, with its source."""
    name, kind = body.get("name"), body.get("kind")
    known = {entry.name for entry in knee.catalog_entries().entries}
    if not isinstance(name, str) or name not in known:
        text = f"nothing named {str(name)[:80]!r} is in the catalogue"
        raise InputError(text, hint="GET /api/catalog lists all names", code="unknown-name", field="name")
    return knee.catalog_entry(name, kind=kind).to_dict()


QUICK: dict[str, Callable[[Body], Any]] = {
    "catalog": lambda _: catalog(),
    "simulate": plain("simulate"),
    "scale": plain("scale"),
    "why": why,
    "views/step": step_view,
    "views/scale": scale_view,
    "views/budget": budget_view,
    "toml": toml_file,
    "read": read,
    "openapi": lambda _: openapi(),
    "catalog_entry": catalog_entry,
}
"""Answers within milliseconds."""
SLOW: dict[str, Callable[[Body], Any]] = {
    "plan": plain("plan"),
    "budget": plain("budget"),
    "validate": lambda _: knee.validate().to_dict(),
}
"""Answers that wait in the queue of searches."""


def answer(name: str, body: bytes, tell: Tell) -> tuple[int, bytes]:
    """Status and JSON."""
    try:
        asked = _parsed(body)
        if name == "search":
            return 200, encoder.encode(search(asked, lambda event: tell(encoder.encode(event))))
        found = (QUICK | SLOW)[name](asked)
        return 200, found if isinstance(found, bytes) else encoder.encode(found)
    except KneeError as error:
        return status_of(error), encoder.encode({"error": error_data(error)})
    except (MemoryError, RecursionError):
        hint = "ask for less, or use the command line"
        found = {"code": "too-large", "message": "the question needs too much memory", "field": None, "hint": hint}
        return 422, encoder.encode({"error": found})
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return 500, encoder.encode({"error": BUG})


def error_data(error: KneeError) -> dict[str, Any]:
    """An error's own fields."""
    return {"code": error.code, "message": error.message, "field": error.field, "hint": error.hint}


def status_of(error: KneeError) -> int:
    """What a client is to make of it."""
    if isinstance(error, NotAnObject):
        return 400
    return 503 if isinstance(error, MissingExtra) else 422


class NotAnObject(InputError):
    """The body cannot be read at all."""

    code = "not-json"


def _parsed(body: bytes) -> Body:
    try:
        found = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAnObject(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise NotAnObject("the body must be a JSON object", hint='for example {"model": "llama2-7b"}')
    return found


def warm_up() -> None:
    """Import and load what the first question would wait for."""
    question = {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 64, "local_batch": 2}
    step_view(question)
    scale_view(question)
