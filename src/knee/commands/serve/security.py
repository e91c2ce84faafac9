"""Who may ask, and how much: the wall in front of every route.

- *Host*: only addresses that name this server, so that a foreign name that resolves to it (DNS rebinding) gets nothing.
- *Origin and Sec-Fetch-Site*: a page of another site can neither ask nor embed; it may only be left for this one.
- *Token*: where the server listens beyond this machine, every question needs it.
- *Sizes, rates, seconds*: a body that is too large or too slow, and a client that asks too often, are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.requests import ClientDisconnect

from knee.commands.serve.serve_limits import ServeLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "knee_token"
LOOPBACK_NAMES = ("localhost",)
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
MOST_CLIENTS = 4096
"""Whose rate is remembered."""
BODIES = {"/api/read": "application/octet-stream"}
"""Routes whose body is not JSON."""


class Refusal(Exception):
    """A request that is not answered, with the words of an error."""

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
        self.status, self.retry_s = status, retry_s
        self.error = {"code": code, "message": message, "field": field, "hint": hint}

    @property
    def body(self) -> bytes:
        """As JSON."""
        return json.dumps({"error": self.error}).encode()

    @property
    def headers(self) -> dict[str, str]:
        """With when to come again, where that is known."""
        return {"content-type": "application/json"} | ({"retry-after": str(self.retry_s)} if self.retry_s else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How the server can be reached."""

    host: str
    """The address that it listens on."""
    token: str | None = None
    """None where no token is asked for."""

    def names_it(self, name: str) -> bool:
        """Whether a Host header names this server: an address, or a name that only this machine has."""
        if name in LOOPBACK_NAMES:
            return True
        address = _address(name)
        if is_loopback(self.host):
            return address is not None and address.is_loopback
        return address is not None or name in (self.host, *_own_names())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    address = _address(host)
    return host in LOOPBACK_NAMES or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname().lower()
    return (name, f"{name}.local")


def _bug() -> Refusal:
    traceback.print_exc()
    hint = "the server's terminal shows the traceback; please report it"
    return Refusal(500, "bug", "this request meets a bug in knee", hint=hint)


class RequestWall:
    """The wall, as ASGI middleware."""

    def __init__(self, app: App, *, door: Door, limits: ServeLimits) -> None:
        self.app, self.door, self.limits = app, door, limits
        self.rates = ClientRates(limits.requests_per_s, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, body = False, ArrivingBody(self, scope, receive)

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = {name.decode("latin-1").lower() for name, _ in message["headers"]}
                more = HEADERS | ({"cache-control": "no-store"} if scope["path"].startswith("/api/") else {})
                # the rest of a body that was refused is not waited for
                more |= {} if body.whole else {"connection": "close"}
                message["headers"] = [*message["headers"], *_raw(more, without=own)]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, body, guarded)
        except ClientDisconnect:
            return  # in the middle of its body
        except Exception as error:
            if begun:
                raise
            refusal = error if isinstance(error, Refusal) else _bug()
            headers = refusal.headers | {"content-length": str(len(refusal.body))}
            await guarded({"type": "http.response.start", "status": refusal.status, "headers": _raw(headers)})
            await guarded({"type": "http.response.body", "body": refusal.body})

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope)
        self._check_host(headers)
        self._check_origin(scope, headers)
        client = client_of(scope, headers)
        wait_s = self.rates.wait_s(client)
        if wait_s > 0:
            hint = f"send at most {self.limits.requests_per_s:g} requests per second"
            raise Refusal(
                429, "too-many-requests", "busy: this client asks too often", hint=hint, retry_s=int(wait_s) + 1
            )
        if scope["path"].startswith(("/api/", "/study")):
            self._check_token(headers)
        if scope["method"] == "POST":
            self._check_body(scope, headers)

    def _check_host(self, headers: dict[str, str]) -> None:
        name, port = split_host(headers.get("host", ""))
        if name is None or not self.door.names_it(name) or not port:
            hint = "open the address that `knee serve` prints"
            raise Refusal(403, "wrong-host", "the Host header does not name this server", hint=hint)

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin not in (f"{scheme}://{headers['host']}" for scheme in ("http", "https")):
            raise Refusal(403, "wrong-origin", "a page of another site may not ask this server")
        opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        harmless = opened and scope["method"] == "GET" and not scope["path"].startswith("/api/")
        if site not in (None, "same-origin", "none") and not harmless:
            raise Refusal(403, "wrong-origin", "a page of another site may not ask this server")

    def _check_token(self, headers: dict[str, str]) -> None:
        token = self.door.token
        if token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else _cookie(headers.get("cookie", ""))
        if not hmac.compare_digest(given.encode(), token.encode()):
            hint = "open the address that `knee serve` prints, or send `Authorization: Bearer TOKEN`"
            field = None if not given else "token"
            raise Refusal(
                401, "wrong-token" if given else "no-token", "this server needs a token", hint=hint, field=field
            )

    def _check_body(self, scope: Scope, headers: dict[str, str]) -> None:
        wanted = BODIES.get(scope["path"], "application/json")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != wanted:
            hint = f"send Content-Type: {wanted}"
            raise Refusal(415, "wrong-content-type", f"the body must be {wanted}", hint=hint, field="Content-Type")
        length = headers.get("content-length")
        if length is not None and (not length.isdecimal() or len(length) > 18 or int(length) > self.most(scope)):
            raise too_large(self.most(scope))

    def most(self, scope: Scope) -> int:
        """Bytes that a body may have."""
        return self.limits.file_bytes if scope["path"] in BODIES else self.limits.body_bytes


def too_large(most: int) -> Refusal:
    """A body that is."""
    return Refusal(413, "too-large", f"the body is larger than {most:,} bytes", hint="send less")


class ArrivingBody:
    """ASGI's ``receive`` for a body that ends in time and is no larger than it may be."""

    def __init__(self, wall: RequestWall, scope: Scope, receive: Receive) -> None:
        self.receive, self.limits, self.most = receive, wall.limits, wall.most(scope)
        self.got, self.ends = 0, time.monotonic() + wall.limits.request_s
        self.whole = scope["method"] in ("GET", "HEAD")

    async def __call__(self) -> Message:
        """The next part; after the last, the end of the connection is waited for."""
        if self.whole:
            return await self.receive()
        try:
            async with asyncio.timeout(min(self.limits.receive_s, max(self.ends - time.monotonic(), 0.0))):
                message = await self.receive()
        except TimeoutError:
            raise Refusal(408, "too-slow", "the body did not arrive in time", hint="send it at once") from None
        self.got += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        if self.got > self.most:
            self.whole = False
            raise too_large(self.most)
        return message


class ClientRates:
    """Requests of each client: a bucket that fills at a rate and holds a burst."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s, self.burst, self.clock = per_s, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """0 where the request may come now, else the seconds until the next one may."""
        now = self.clock()
        left, last = self._left.pop(client, (float(self.burst), now))
        left = min(self.burst, left + (now - last) * self.per_s)
        self._left[client] = (max(left - 1.0, 0.0) if left >= 1.0 else left, now)
        while len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if left >= 1.0 else (1.0 - left) / self.per_s


def client_of(scope: Scope, headers: dict[str, str]) -> str:
    """Who asks: a page says which it is; otherwise a machine, and on this machine a connection."""
    host, port = scope.get("client") or ("", 0)
    own = headers.get("x-knee-client", "")[:64]
    return f"{host} {own}" if own else f"{host}:{port}" if is_loopback(host) else host


def split_host(text: str) -> tuple[str | None, bool]:
    """The name of a Host header in lower case, and whether its port can be one."""
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, port = text, "80"
    if not name or "@" in name or "/" in name:
        return None, False
    return name.lower(), port.isascii() and port.isdecimal() and len(port) <= 5


def _headers(scope: Scope) -> dict[str, str]:
    """The first of each name; of a repeated Host or Origin all, so that no check sees another than the next."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in found and name in ("host", "origin", "content-length", "authorization"):
            raise Refusal(400, "repeated-header", f"the header {name} is given twice")
        found.setdefault(name, value)
    return found


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _raw(headers: dict[str, str], without: Iterable[str] = ()) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items() if name not in without]
