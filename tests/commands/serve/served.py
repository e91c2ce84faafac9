"""A server of the explorer in this process, and questions to it as a browser or a script would send them."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from knee.commands.serve.app import ServeOptions, make_app
from knee.commands.serve.security import ServeLimits
from knee.commands.serve.server import config_of, listening_socket, run
from waiting import until

STEP = {"model": "llama-tiny", "cluster": "dgx-h100", "gpus": 8, "local_batch": 1, "seq_len": 64}
"""A question that takes milliseconds."""
FEW = ServeLimits(answering=1, searching=1, requests_per_s=1e9, burst=10**9)
"""Two processes, and no limit of the rate."""
TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["error"]
        return found


@dataclass(kw_only=True)
class Served:
    """A server and its address."""

    port: int
    app: Any
    server: uvicorn.Server
    headers: dict[str, str] = field(default_factory=dict)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            return Reply(status=response.status, headers={k.lower(): v for k, v in response.getheaders()},
                         body=response.read())  # fmt: skip
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.send("POST", path, json.dumps(body).encode(), {**TYPE, **(headers or {})})

    def raw(self, data: bytes, *, wait: bool = True) -> bytes:
        """Bytes as they are, and what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=600) as own:
            own.sendall(data)
            found = b""
            while wait and (part := own.recv(65536)):
                found += part
            return found

    @property
    def desks(self) -> Any:
        """Of answers and of searches."""
        return self.app.state.explorer.quick, self.app.state.explorer.slow


@contextmanager
def serving(options: ServeOptions | None = None) -> Iterator[Served]:
    """A server in a thread, until the block ends."""
    options = options or ServeOptions(limits=FEW)
    app, own = make_app(options), listening_socket("127.0.0.1", 0)
    server = uvicorn.Server(config_of(app))
    thread = threading.Thread(target=lambda: asyncio.run(run(server, own)), daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    try:
        yield Served(port=own.getsockname()[1], app=app, server=server)
    finally:
        server.should_exit = True
        thread.join()
