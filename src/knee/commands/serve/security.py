"""Who may ask, and how much: the checks in front of every route.

- *Host*: only addresses that name this server, so that a foreign name that resolves to it (DNS rebinding) gets nothing.
- *Origin and Sec-Fetch-Site*: a page of another site can neither ask nor embed; it may only link to this one.
- *Token*: where the server listens beyond this machine, every question needs it.
- *Sizes, rates, seconds*: a body that is too large or too slow, and a client that asks too often, are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import socket
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from knee.base.processes import core_count

KIB, MIB = 1 << 10, 1 << 20
COOKIE = "knee_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's content security policy: nothing from elsewhere, nothing inline."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
ONCE = ("host", "origin", "content-length", "authorization")
"""Headers that are refused when they are repeated, so that no check sees another value than the next one."""
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@]+)(:[0-9]{1,5})?")
"""A Host header in lower case: a name or an address, and perhaps a port."""
MOST_CLIENTS = 4096
"""Clients whose rate is remembered."""
FILES = "/api/read"
"""The route whose body is a file and not JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """How much a client may ask of the server. The values are judged, not measured, unless a comment says so."""

    body_bytes: int = 64 * KIB
    """Size of a question; a state with six curves is 2 kB."""
    file_bytes: int = 512 * MIB
    """Size of a dropped file."""
    requests_per_s: float = 40.0
    """Requests of one client in the long run: a slider that is dragged sends 20."""
    burst: int = 120
    """Requests that one client may send at once."""
    receive_s: float = 15.0
    """Until the headers, or the next part of a body, have arrived."""
    request_s: float = 120.0
    """Until a request has arrived as a whole."""
    send_s: float = 30.0
    """Until a client takes what is sent to it."""
    answer_s: float = 15.0
    """For one answer; 1 s of CPU is a lot for any of them, and processors may be busy."""
    search_s: float = 300.0
    """For one search."""
    answering: int = max(2, min(4, core_count()))
    """Processes that answer."""
    searching: int = max(1, core_count() - 1)
    """Searches at a time."""
    waiting: int = 400
    """Questions that wait for a process."""
    waiting_of_one: int = 32
    """Questions of one client that wait."""
    searches_waiting: int = 64
    """Searches that wait for a process."""
    searches_waiting_of_one: int = 4
    """Searches of one client that wait."""
    process_bytes: int = 1536 * MIB
    """Memory beyond which a process is replaced when it is idle."""
    space_bytes: int = 8192 * MIB
    """Address space of a process: a question that needs more ends in an error, and not in a slow machine."""


class Refusal(Exception):
    """A request that is not answered, as the response that says why."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        field: str | None = None,
        retry_s: int = 0,
    ) -> None:
        super().__init__(message)
        error = {"code": code, "message": message, "field": field, "hint": hint}
        self.response = JSONResponse({"error": error}, status, {"retry-after": str(retry_s)} if retry_s else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How the server can be reached."""

    host: str
    """The address that it listens on."""
    token: str | None = None
    """None where no token is asked for."""

    def names_it(self, host: str) -> bool:
        """Return whether a Host header names this server: an address, or a name that only this machine has."""
        parts = HOST.fullmatch(host.lower())
        if parts is None:
            return False
        name, own = parts[1], socket.gethostname().lower()
        if is_loopback(self.host) or is_loopback(name):
            return is_loopback(name)
        return _address(name) is not None or name in (self.host, own, f"{own}.local")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def client_of(connection: HTTPConnection) -> str:
    """Return who asks: a page says which it is; otherwise a machine, and on this machine a connection."""
    host, port = connection.client or ("", 0)
    own = connection.headers.get("x-knee-client", "")[:64]
    return f"{host} {own}" if own else f"{host}:{port}" if is_loopback(host) else host


class RequestWall:
    """ASGI middleware that refuses what may not be asked, and adds the headers that protect the page."""

    def __init__(self, app: ASGIApp, *, door: Door, limits: ServeLimits) -> None:
        self.app, self.door, self.limits = app, door, limits
        self.rates = ClientRates(limits.requests_per_s, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, body = False, LimitedBody(self._most(scope), self.limits, scope, receive)

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/api/"):
                    headers.setdefault("cache-control", "no-store")
                if not body.whole:  # the rest of a body that was refused is not waited for
                    headers.setdefault("connection", "close")
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, body, guarded)
        except ClientDisconnect:
            return  # in the middle of its body
        except Exception as error:
            if begun:
                raise
            refusal = error
            if not isinstance(refusal, Refusal):
                traceback.print_exc()
                hint = "the server's terminal shows the traceback; please report it"
                refusal = Refusal(500, "bug", "this request meets a bug in knee", hint=hint)
            await refusal.response(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        connection = HTTPConnection(scope)
        headers = connection.headers
        for name in ONCE:
            if len(headers.getlist(name)) > 1:
                raise Refusal(400, "repeated-header", f"the header {name} is given twice")
        if not self.door.names_it(headers.get("host", "")):
            hint = "open the address that `knee serve` prints"
            raise Refusal(403, "wrong-host", "the Host header does not name this server", hint=hint)
        if _of_another_site(scope, headers):
            raise Refusal(403, "wrong-origin", "a page of another site may not ask this server")
        wait_s = self.rates.wait_s(client_of(connection))
        if wait_s > 0:
            hint = f"at most {self.limits.requests_per_s:g} requests per second"
            raise Refusal(
                429, "too-many-requests", "busy: this client asks too often", hint=hint, retry_s=int(wait_s) + 1
            )
        if scope["path"].startswith(("/api/", "/study")) and self.door.token is not None:
            _check_token(connection, self.door.token)
        if scope["method"] == "POST":
            self._check_body(scope, headers)

    def _check_body(self, scope: Scope, headers: Headers) -> None:
        wanted = "application/octet-stream" if scope["path"] == FILES else "application/json"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
            text, hint = f"the body must be {wanted}", f"send Content-Type: {wanted}"
            raise Refusal(415, "wrong-content-type", text, hint=hint, field="Content-Type")
        length, most = headers.get("content-length", "0"), self._most(scope)
        if not length.isdecimal() or len(length) > 18 or int(length) > most:
            raise too_large(most)

    def _most(self, scope: Scope) -> int:
        """Bytes that a body may have."""
        return self.limits.file_bytes if scope["path"] == FILES else self.limits.body_bytes


def _of_another_site(scope: Scope, headers: Headers) -> bool:
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin not in (f"http://{headers['host']}", f"https://{headers['host']}"):
        return True
    opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    a_link = opened and scope["method"] == "GET" and not scope["path"].startswith("/api/")
    return site not in (None, "same-origin", "none") and not a_link


def _check_token(connection: HTTPConnection, token: str) -> None:
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else connection.cookies.get(COOKIE, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        hint = "open the address that `knee serve` prints, or send `Authorization: Bearer TOKEN`"
        code, field = ("wrong-token", "token") if given else ("no-token", None)
        raise Refusal(401, code, "this server needs a token", hint=hint, field=field)


def too_large(most: int) -> Refusal:
    """Return the refusal of a body of more than ``most`` bytes."""
    return Refusal(413, "too-large", f"the body is larger than {most:,} bytes", hint="send less")


class LimitedBody:
    """ASGI's ``receive`` for a body that ends in time and is no larger than it may be."""

    def __init__(self, most: int, limits: ServeLimits, scope: Scope, receive: Receive) -> None:
        self.receive, self.limits, self.most = receive, limits, most
        self.got, self.ends = 0, time.monotonic() + limits.request_s
        self.whole = scope["method"] in ("GET", "HEAD")

    async def __call__(self) -> Message:
        """Return the next part; after the last, wait for the end of the connection."""
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout(min(self.limits.receive_s, max(self.ends - time.monotonic(), 0.0))):
                message = await self.receive()
        except TimeoutError:
            raise Refusal(408, "too-slow", "the body did not arrive in time", hint="send it at once") from None
        self.got += len(message.get("body", b""))
        if self.got > self.most:
            raise too_large(self.most)
        self.whole = not message.get("more_body", False)
        return message


class ClientRates:
    """Requests of each client: a bucket that fills at a rate and holds a burst."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s, self.burst, self.clock = per_s, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """Return 0 where the request may come now, else the seconds until the next one may."""
        now = self.clock()
        left, last = self._left.pop(client, (float(self.burst), now))
        left = min(self.burst, left + (now - last) * self.per_s)
        self._left[client] = (left - 1.0 if left >= 1.0 else left, now)
        while len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if left >= 1.0 else (1.0 - left) / self.per_s
