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

from knee.commands.serve.answer_places import QUICK, SLOW
from knee.commands.serve.answering import ClientLeft, Desk, desks
from knee.commands.serve.event_stream import SearchEvents
from knee.commands.serve.files_given import FilesGiven
from knee.commands.serve.processes import ProcessAnswer
from knee.commands.serve.security import COOKIE, Door, Refusal, RequestWall, client_of
from knee.commands.serve.serve_limits import ServeLimits
from knee.commands.serve.study_files import StudyFiles

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
    explorer = Explorer(options)
    wall = Middleware(RequestWall, door=options.door, limits=options.limits)
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: _http_error,
        Refusal: _refused,
    }
    return Starlette(
        routes=explorer.routes(), middleware=[wall], lifespan=explorer.lifespan, exception_handlers=handlers
    )


class Explorer:
    """The endpoints, and the desks that answer them."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.quick, self.slow = desks(options.limits)
        self._kept: dict[str, ProcessAnswer] = {}

    def routes(self) -> list[BaseRoute]:
        """Every address."""
        files, study = FilesGiven(self.options.records, self.asked, self.slow), self.options.study
        return [
            self._get("openapi", "/api/openapi.json"),
            self._get("catalog", "/api/catalog"),
            Route("/api/status", self.status),
            Route("/api/session", self.session, methods=["POST"]),
            Route("/api/searches", self.search, methods=["POST"]),
            *(self._post(name, self.quick) for name in QUICK),
            *(self._post(name, self.slow) for name in SLOW),
            *files.routes(),
            *([Mount("/study", StudyFiles(study, self.figures))] if study else []),
            Route("/", self.page),
            Mount("/", StaticFiles(directory=PAGE)),
        ]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Processes start before the first question, and end with the server."""
        app.state.desks = (self.quick, self.slow)
        self.quick.pool.warm()
        self.slow.pool.warm()
        try:
            yield
        finally:
            await asyncio.gather(self.quick.pool.close(), self.slow.pool.close())

    async def asked(self, request: Request, desk: Desk, name: str, body: bytes) -> Response:
        """What a process answers, unless the client leaves first."""
        client = client_of(request.scope, dict(request.headers))
        try:
            found = await desk.answer(client, lambda: _left(request), name, body)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)
        media = "application/toml" if name == "toml" and found.status == 200 else "application/json"
        return Response(found.data, found.status, media_type=media)

    async def search(self, request: Request) -> Response:
        """A search as events."""
        body = await request.body()
        ticket = self.slow.join(client_of(request.scope, dict(request.headers)))
        return SearchEvents(self.slow.search(ticket, body))

    async def session(self, request: Request) -> Response:
        """The token as a cookie, for pages that a script does not ask for; the wall has seen the token."""
        await request.body()
        token = self.options.door.token
        response = JSONResponse({"session": token is not None})
        if token is not None:
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        return response

    async def page(self, _: Request) -> Response:
        """The explorer's own page."""
        return FileResponse(PAGE / "index.html")

    async def status(self, _: Request) -> Response:
        """How busy the server is, and what it serves."""
        return JSONResponse(
            {
                "answering": len(self.quick.queue.working),
                "waiting": self.quick.queue.waiting,
                "searching": len(self.slow.queue.working),
                "searches_waiting": self.slow.queue.waiting,
                "records": self.options.records is not None,
                "study": self.options.study is not None,
            }
        )

    async def figures(self) -> dict[str, list[str]]:
        """The explorer's address of each figure of each study."""
        presets = json.loads((await self._kept_answer("catalog")).data).get("presets", ())
        return {preset["study"]: preset["figures"] for preset in presets}

    async def _kept_answer(self, name: str) -> ProcessAnswer:
        """An answer that is always the same; whoever asked for it first may be gone. A failure is not kept."""
        if name in self._kept:
            return self._kept[name]
        found = await self.quick.answer("", asyncio.Event().wait, name, b"{}")
        if found.status == 200:
            self._kept[name] = found
        return found

    def _post(self, name: str, desk: Desk) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self.asked(request, desk, name, await request.body())

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    def _get(self, name: str, path: str) -> Route:
        async def endpoint(_: Request) -> Response:
            found = await self._kept_answer(name)
            return Response(found.data, found.status, media_type="application/json")

        return Route(path, endpoint)


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
