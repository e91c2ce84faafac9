"""The ASGI application: its routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import knee
from knee.errors import KneeError
from knee.serve.controls import catalog
from knee.serve.questions import arguments_of
from knee.serve.views import scale_view, step_view, why

PAGE = Path(__file__).parent / "page"
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def make_app() -> Starlette:
    """All routes."""
    threads = ThreadPoolExecutor(2)

    async def answered(answer: Answer, body: Mapping[str, Any]) -> Response:
        try:
            data = await asyncio.get_running_loop().run_in_executor(threads, answer, body)
        except KneeError as error:
            return failed(error)
        return JSONResponse(data)

    def post(path: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                body = json.loads(await request.body() or b"{}")
            except ValueError:
                return JSONResponse({"error": {"code": "not-json", "message": "the body is not JSON"}}, 400)
            return await answered(answer, body)

        return Route(path, endpoint, methods=["POST"])

    async def get_catalog(_: Request) -> Response:
        return await answered(lambda _: catalog(), {})

    functions = {name: getattr(knee, name) for name in ("simulate", "scale", "plan", "budget")}
    return Starlette(
        routes=[
            Route("/api/catalog", get_catalog),
            post("/api/views/step", step_view),
            post("/api/views/scale", scale_view),
            post("/api/why", why),
            *(post(f"/api/{name}", _plain(function)) for name, function in functions.items()),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ]
    )


def _plain(function: Callable[..., Any]) -> Answer:
    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = function(**arguments_of(body)).to_dict()
        return found

    return answer


def failed(error: KneeError) -> Response:
    """An error of knee as JSON."""
    data = {"code": error.code, "message": error.message, "field": error.field, "hint": error.hint}
    return JSONResponse({"error": data}, 422)
