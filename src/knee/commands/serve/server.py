"""A server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette

from knee.base.errors import InputError, argument
from knee.commands.serve.app import Explorer, ServeOptions, make_app
from knee.commands.serve.security import is_loopback

CONNECTIONS = 1_000
"""Connections at a time."""
KEEP_ALIVE_S = 75
"""How long a connection is kept for the next question, which then does not wait for a new one."""
STOP_S = 2
"""Until connections that are still being answered are cut."""
WATCH_S = 0.1
"""Between two looks at all connections."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; an InputError says why it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except socket.gaierror:
        hint = "for example 127.0.0.1, or 0.0.0.0 for all networks"
        raise InputError(
            f"{argument('host')} {host} has no address here", hint=hint, code="unknown-name", field="host"
        ) from None
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        text = f"cannot listen on {host} port {port}: {why}"
        raise InputError(
            text, hint=f"{argument('port')} 0 takes a free port", code="cannot-listen", field="port"
        ) from None


def address_of(own: socket.socket, host: str, token: str | None) -> str:
    """Return the address that a person opens; the token is in the fragment, which no browser sends."""
    port = own.getsockname()[1]
    name = "127.0.0.1" if is_loopback(host) else socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    fragment = "" if token is None else f"#token={quote(token)}"
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/{fragment}"


def config_of(app: Starlette) -> uvicorn.Config:
    """Return how connections are treated."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )


def serve(options: ServeOptions, own: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal comes; ``ready`` is called before the first request."""
    server = uvicorn.Server(config_of(make_app(options)))
    ready()
    asyncio.run(run(server, own))


async def run(server: uvicorn.Server, own: socket.socket) -> None:
    """Serve until the server is told to exit."""
    app: Any = server.config.app
    explorer: Explorer = app.state.explorer
    watching = asyncio.create_task(_watch(server, explorer))
    try:
        await server.serve(sockets=[own])
    finally:
        watching.cancel()
        explorer.kill()


async def _watch(server: uvicorn.Server, explorer: Explorer) -> None:
    """Cut connections whose client does not go on, and end all processes as soon as the server is told to exit.

    uvicorn leaves clients that send no whole header, or do not take what is sent, to a proxy; here there is none.
    """
    limits = explorer.options.limits
    seen: dict[Any, tuple[object, float]] = {}
    while not server.should_exit:
        now = time.monotonic()
        before, seen = seen, {}
        connections: list[Any] = list(server.server_state.connections)
        for connection in connections:
            unsent = connection.transport.get_write_buffer_size()
            working = connection.cycle is not None and not connection.cycle.response_complete
            if not unsent and (working or connection.timeout_keep_alive_task is not None):
                continue  # answered, or between two requests
            state = (unsent, connection.cycle)
            since = before[connection][1] if before.get(connection, (None, 0.0))[0] == state else now
            seen[connection] = (state, since)
            if now - since >= (limits.send_s if unsent else limits.receive_s):
                connection.transport.abort()
        await asyncio.sleep(WATCH_S)
    explorer.kill()
