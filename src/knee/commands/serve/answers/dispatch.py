"""A process that answers questions: a question's name and body -> status and JSON.

The server imports this module for its tables and starts ``answer_questions`` in processes; what computes is imported
there. A process parses the body itself, so that whatever a body does to it, the server goes on.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from knee.base.errors import InputError, KneeError, MissingExtra

QUICK = {
    "simulate": "knee:simulate",
    "scale": "views:scale",
    "catalog_entry": "views:catalog_entry",
    "toml": "views:toml_file",
    "why": "views:why",
    "views/step": "views:step_view",
    "views/scale": "views:scale_view",
    "views/budget": "search_view:budget_view",
}
"""``POST /api/NAME`` -> module and function, for answers within milliseconds; ``knee`` is the public API."""
SLOW = {"plan": "knee:plan", "budget": "knee:budget", "validate": "views:validate"}
"""The same for seconds of work, which waits in the queue of searches."""
OTHER = {"catalog": "controls:catalog_view", "openapi": "openapi:openapi_view", "read": "dropped:read"}
"""The same for routes of another form."""

Tell = Callable[[bytes], None]
QUESTION = {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 64, "local_batch": 2}
"""What a process answers before its first question, so that it has loaded what it needs."""
NICE = 5
"""Searches leave the processors to the answers that somebody waits for."""
encoder = msgspec.json.Encoder(enc_hook=str)  # notes are texts with a code


def answer_questions(pipe: Connection, role: str, space_bytes: int) -> None:
    """Serve ``pipe`` until the server ends: (name, body) comes in, events and then (status, data, memory) go out.

    An event is JSON in bytes. ``role`` is answer or search; the process gets no more than ``space_bytes``.
    """
    os.setsid()  # signals of the terminal are for the server, and Linux gives each session its share of a busy machine
    # a process in the middle of a search ends with the server too
    threading.Thread(target=_exit_with_server, daemon=True).start()
    with suppress(ValueError, OSError):  # where the system has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (space_bytes, space_bytes))
    # one core each: threads of a library would take those of others
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.dup2(2, 1)  # the server's standard output has its address and nothing else
    if role == "search":
        os.nice(NICE)
        import_module("knee.commands.serve.answers.search_view")
    else:
        answer("views/step", encoder.encode(QUESTION))
        answer("views/scale", encoder.encode(QUESTION))
    pipe.send(None)
    with suppress(EOFError, ConnectionError):
        while True:
            name, body = pipe.recv()
            status, data = answer(name, body, pipe.send)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            pipe.send((status, data, used))


def _exit_with_server() -> None:
    server = parent_process()
    assert server is not None
    server.join()
    os._exit(0)


def answer(name: str, body: bytes, tell: Tell = lambda _: None) -> tuple[int, bytes]:
    """The status and the JSON (or text) of one answer; ``tell`` gets the events of a search."""
    try:
        asked = _parse(body)
        if name == "search":
            from knee.commands.serve.answers.search_view import search

            return 200, encoder.encode(search(asked, lambda event: tell(encoder.encode(event))))
        module, _, function = (QUICK | SLOW | OTHER)[name].partition(":")
        if module == "knee":
            from knee.commands.serve.answers.questions import arguments_of

            return 200, encoder.encode(
                getattr(import_module("knee"), function)(**arguments_of(asked, function)).to_dict()
            )
        found = getattr(import_module(f"knee.commands.serve.answers.{module}"), function)(asked)
        return 200, found if isinstance(found, bytes) else encoder.encode(found)
    except KneeError as error:
        status = 400 if isinstance(error, NotAnObject) else 503 if isinstance(error, MissingExtra) else 422
        return status, _error(error.code, error.message, error.hint, error.field)
    except (MemoryError, RecursionError):
        return 422, _error("too-large", "the question needs too much memory", "ask for less, or use the command line")
    except Exception:
        traceback.print_exc(file=sys.stderr)
        hint = "the server's terminal shows the traceback; please report it with your question"
        return 500, _error("bug", "this question meets a bug in knee", hint)


def _error(code: str, message: str, hint: str | None, field: str | None = None) -> bytes:
    return encoder.encode({"error": {"code": code, "message": message, "field": field, "hint": hint}})


class NotAnObject(InputError):
    """The body cannot be read at all."""

    code = "not-json"


def _parse(body: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotAnObject(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise NotAnObject("the body must be a JSON object", hint='for example {"model": "llama2-7b"}')
    return found
