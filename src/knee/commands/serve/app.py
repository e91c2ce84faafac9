"""The ASGI application: its routes. It imports no simulator: processes answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from knee.commands.serve.answers.dispatch import QUICK, SLOW
from knee.commands.serve.desk import Answer, ClientLeft, Desk, make_desks
from knee.commands.serve.files import FilesGiven, StudyFiles
from knee.commands.serve.security import COOKIE, Door, Refusal, RequestWall, ServeLimits, client_of

PAGE = Path(__file__).parent / "page"
CLIENT_LEFT = 499
"""nginx's status for a client that has closed the connection; nobody receives it."""


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
    """Return the application with all routes behind the checks of requests; ``app.state.explorer`` has its desks."""
    explorer = Explorer(options)
    app = Starlette(
        routes=explorer.routes(),
        middleware=[Middleware(RequestWall, door=options.door, limits=options.limits)],
        lifespan=explorer.lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.explorer = explorer
    return app


class SearchEvents(StreamingResponse):
    """Server-sent events whose source ends as soon as the client has gone.

    Starlette leaves a source that has been cancelled while its event was sent to the garbage collector.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source or the client ends."""
        async with aclosing(self.events):
            await super().__call__(scope, receive, send)


class Explorer:
    """The endpoints, and the desks that answer them."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.quick, self.slow = make_desks(options.limits)
        self._kept: dict[str, Answer] = {}

    def routes(self) -> list[BaseRoute]:
        """Return every address."""
        files, study = FilesGiven(self.options.records, self.read), self.options.study
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
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Start the processes before the first question, and end them with the server."""
        self.quick.warm()
        self.slow.warm()
        try:
            yield
        finally:
            await asyncio.gather(self.quick.close(), self.slow.close())

    def kill(self) -> None:
        """End all processes at once."""
        self.quick.kill()
        self.slow.kill()

    async def ask(self, request: Request, desk: Desk, name: str, body: bytes) -> Response:
        """Return what a process answers, unless the client leaves first."""
        try:
            found = await desk.answer(client_of(request), lambda: _left(request), name, body)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)
        media = "application/toml" if name == "toml" and found.status == 200 else "application/json"
        return Response(found.data, found.status, media_type=media)

    async def read(self, request: Request, body: bytes) -> Response:
        """Return what a process reads in a file."""
        return await self.ask(request, self.slow, "read", body)

    async def search(self, request: Request) -> Response:
        """Return the events of a search."""
        body = await request.body()
        return SearchEvents(self.slow.search(self.slow.join(client_of(request)), body))

    async def session(self, request: Request) -> Response:
        """Return the token, which has been checked, as a cookie for pages that no script asks for."""
        await request.body()
        token = self.options.door.token
        response = JSONResponse({"session": token is not None})
        if token is not None:
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict", path="/")
        return response

    async def page(self, _: Request) -> Response:
        """Return the explorer's own page."""
        return FileResponse(PAGE / "index.html")

    async def status(self, _: Request) -> Response:
        """Return how busy the server is, and what it serves."""
        return JSONResponse(
            {
                "answering": len(self.quick.queue.working),
                "waiting": len(self.quick.queue.waiting),
                "searching": len(self.slow.queue.working),
                "searches_waiting": len(self.slow.queue.waiting),
                "records": self.options.records is not None,
                "study": self.options.study is not None,
            }
        )

    async def figures(self) -> dict[str, list[str]]:
        """Return the explorer's address of each figure of each study."""
        presets = json.loads((await self._kept_answer("catalog")).data).get("presets", ())
        return {preset["study"]: preset["figures"] for preset in presets}

    async def _kept_answer(self, name: str) -> Answer:
        """An answer that is always the same; whoever asked for it first may be gone. A failure is not kept."""
        if name in self._kept:
            return self._kept[name]
        found = await self.quick.answer("", asyncio.Event().wait, name, b"{}")
        if found.status == 200:
            self._kept[name] = found
        return found

    def _post(self, name: str, desk: Desk) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self.ask(request, desk, name, await request.body())

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    def _get(self, name: str, path: str) -> Route:
        async def endpoint(_: Request) -> Response:
            found = await self._kept_answer(name)
            return Response(found.data, found.status, media_type="application/json")

        return Route(path, endpoint)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


WORDS = {404: ("not-found", "there is no such address"), 405: ("wrong-method", "this address takes another method")}


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = WORDS.get(error.status_code, ("http", error.detail))
    response = Refusal(error.status_code, code, message, hint="GET /api/openapi.json lists all addresses").response
    response.headers.update(error.headers or {})
    return response
