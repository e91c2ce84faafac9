"""In a process: a question's name and body -> status and JSON, and what is made of errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from knee.base.errors import InputError, KneeError, MissingExtra
from knee.commands.serve.answer_places import PLACES

Tell = Callable[[bytes], None]
BUG = {
    "code": "bug",
    "message": "this question meets a bug in knee",
    "field": None,
    "hint": "the server's terminal shows the traceback; please report it with your question",
}
TOO_LARGE = {
    "code": "too-large",
    "message": "the question needs too much memory",
    "field": None,
    "hint": "ask for less, or use the command line",
}
QUESTION = {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 64, "local_batch": 2}
"""What a process is warmed up with."""
encoder = msgspec.json.Encoder(enc_hook=str)  # notes are texts with a code


def answer(name: str, body: bytes, tell: Tell) -> tuple[int, bytes]:
    """Status and JSON, or what else the answer is."""
    try:
        asked = _parsed(body)
        if name == "search":
            from knee.commands.serve.answers.search_view import search

            return 200, encoder.encode(search(asked, lambda event: tell(encoder.encode(event))))
        module, _, function = PLACES[name].partition(":")
        found = getattr(import_module(f"knee.commands.serve.answers.{module}"), function)(asked)
        return 200, found if isinstance(found, bytes) else encoder.encode(found)
    except KneeError as error:
        data = {"code": error.code, "message": error.message, "field": error.field, "hint": error.hint}
        return status_of(error), encoder.encode({"error": data})
    except (MemoryError, RecursionError):
        return 422, encoder.encode({"error": TOO_LARGE})
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return 500, encoder.encode({"error": BUG})


def status_of(error: KneeError) -> int:
    """What a client is to make of it."""
    if isinstance(error, NotAnObject):
        return 400
    return 503 if isinstance(error, MissingExtra) else 422


class NotAnObject(InputError):
    """The body cannot be read at all."""

    code = "not-json"


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAnObject(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise NotAnObject("the body must be a JSON object", hint='for example {"model": "llama2-7b"}')
    return found


def warm_up(role: str) -> None:
    """Import and load what the first question would wait for."""
    if role == "search":
        import_module("knee.commands.serve.answers.search_view")
        return
    from knee.commands.serve.answers.scale_view import scale_view
    from knee.commands.serve.answers.step_view import step_view

    step_view(QUESTION)
    scale_view(QUESTION)
