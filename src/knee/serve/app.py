"""The ASGI application: its routes, and nothing else. It imports no simulator: processes answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from knee.serve.answer_places import QUICK, SLOW
from knee.serve.answering import ClientLeft, Desk, desks
from knee.serve.event_stream import SearchEvents
from knee.serve.files_given import FilesGiven
from knee.serve.security import COOKIE, Door, Refusal, RequestWall, client_of
from knee.serve.serve_limits import ServeLimits
from knee.serve.study_files import StudyFiles

PAGE = Path(__file__).parent / "page"
CLIENT_LEFT = 499
"""What nobody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a server serves, and to whom."""

    door: Door = field(default_factory=lambda: Door(host="127.0.0.1"))
    limits: ServeLimits = field(default_factory=ServeLimits)
    records: Path | None = None
    """Folder whose records can be opened."""
    study: Path | None = None
    """Folder of `knee study run`."""


def make_app(options: ServeOptions) -> Starlette:
    """All routes behind the wall."""
    quick, slow = desks(options.limits)
    kept: dict[str, bytes] = {}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.desks = (quick, slow)
        quick.pool.warm()
        slow.pool.warm()
        try:
            yield
        finally:
            await asyncio.gather(quick.pool.close(), slow.pool.close())

    async def asked(request: Request, desk: Desk, name: str, body: bytes) -> Response:
        client = client_of(request.scope, dict(request.headers))
        try:
            found = await desk.answer(client, lambda: _left(request), name, body)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)
        media = "application/toml" if name == "toml" and found.status == 200 else "application/json"
        return Response(found.data, found.status, media_type=media)

    def post(name: str, desk: Desk) -> Route:
        async def endpoint(request: Request) -> Response:
            return await asked(request, desk, name, await request.body())

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    async def kept_answer(name: str) -> bytes:
        """An answer that is always the same; whoever asked for it first may be gone."""
        if name not in kept:
            found = await quick.answer("", asyncio.Event().wait, name, b"{}")
            kept[name] = found.data
        return kept[name]

    def get(name: str, path: str) -> Route:
        async def endpoint(_: Request) -> Response:
            return Response(await kept_answer(name), media_type="application/json")

        return Route(path, endpoint)

    async def figures() -> dict[str, list[str]]:
        """The explorer's address of each figure of each study."""
        presets = json.loads(await kept_answer("catalog"))["presets"]
        return {preset["study"]: preset["figures"] for preset in presets}

    async def search(request: Request) -> Response:
        body = await request.body()
        ticket = slow.join(client_of(request.scope, dict(request.headers)))
        return SearchEvents(slow.search(ticket, body))

    async def session(request: Request) -> Response:
        """The token as a cookie, for pages that a script does not ask for; the wall has seen the token."""
        await request.body()
        response = JSONResponse({"session": options.door.token is not None})
        if options.door.token is not None:
            response.set_cookie(COOKIE, options.door.token, httponly=True, samesite="strict", path="/")
        return response

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def status(_: Request) -> Response:
        return JSONResponse(
            {
                "answering": len(quick.queue.working),
                "waiting": quick.queue.waiting,
                "searching": len(slow.queue.working),
                "searches_waiting": slow.queue.waiting,
                "records": options.records is not None,
                "study": options.study is not None,
            }
        )

    files = FilesGiven(options.records, asked, slow)
    routes: list[BaseRoute] = [
        get("openapi", "/api/openapi.json"),
        get("catalog", "/api/catalog"),
        Route("/api/status", status),
        Route("/api/session", session, methods=["POST"]),
        Route("/api/searches", search, methods=["POST"]),
        *(post(name, quick) for name in QUICK),
        *(post(name, slow) for name in SLOW),
        *files.routes(),
        *([Mount("/study", StudyFiles(options.study, figures))] if options.study else []),
        Route("/", page),
        Mount("/", StaticFiles(directory=PAGE)),
    ]
    wall = Middleware(RequestWall, door=options.door, limits=options.limits)
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: _http_error,
        Refusal: _refused,
    }
    return Starlette(routes=routes, middleware=[wall], lifespan=lifespan, exception_handlers=handlers)


async def _left(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return Response(error.body, error.status, headers=error.headers)


WORDS = {404: ("not-found", "there is no such address"), 405: ("wrong-method", "this address takes another method")}


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = WORDS.get(error.status_code, ("http", error.detail))
    refusal = Refusal(error.status_code, code, message, hint="GET /api/openapi.json lists all addresses")
    return Response(refusal.body, refusal.status, headers={**refusal.headers, **(error.headers or {})})
