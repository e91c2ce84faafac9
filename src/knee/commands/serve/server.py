"""A server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette

from knee.base.errors import InputError, argument
from knee.commands.serve.app import ServeOptions, make_app
from knee.commands.serve.connections import PatientProtocol
from knee.commands.serve.security import is_loopback

CONNECTIONS = 1_000
"""At a time."""
KEEP_ALIVE_S = 75
"""Of a connection without a question: a page's next one does not wait for a new connection."""
STOP_S = 2
"""Until connections that are still being answered are cut."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens, or the reason in words."""
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
    """What a person opens; the token is in the fragment, which no browser sends."""
    port = own.getsockname()[1]
    name = "127.0.0.1" if is_loopback(host) else socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    fragment = "" if token is None else f"#token={quote(token)}"
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/{fragment}"


class StoppableServer(uvicorn.Server):
    """uvicorn's, which ends the processes of searches as soon as it hears a signal."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self.stop = stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM."""
        super().handle_exit(sig, frame)
        self.stop()


def config_of(app: Starlette) -> uvicorn.Config:
    """How connections are treated."""
    return uvicorn.Config(
        app,
        http=PatientProtocol,
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
    """Serve until a signal comes."""
    app = make_app(options)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            for desk in getattr(app.state, "desks", ()):
                loop.call_soon_threadsafe(desk.pool.kill)

        server = StoppableServer(config_of(app), stop)
        ready()
        await server.serve(sockets=[own])

    asyncio.run(run())
