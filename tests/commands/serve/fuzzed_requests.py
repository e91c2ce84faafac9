"""Requests that nobody would send: ``python -m serve.fuzzed_requests PORT COUNT`` sends as many as asked for.

Each is a request that works with something about it changed: bytes of it, its method, path, headers, its JSON or the
values in it. The server has to answer each with a status that says what was wrong, or close the connection, and must
neither crash (500), nor let a process end (503), nor keep anybody waiting.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import Any

TINY: dict[str, Any] = {"model": "llama-tiny", "cluster": "dgx-h100", "gpus": 8, "local_batch": 1, "seq_len": 64}
BODIES: dict[str, dict[str, Any]] = {
    "/api/simulate": TINY,
    "/api/scale": TINY | {"gpus": "8,16"},
    "/api/why": TINY,
    "/api/toml": TINY,
    "/api/views/step": TINY | {"tp": 2, "pp": 2, "overrides": {"hbm_frac": 0.8}},
    "/api/views/scale": TINY | {"counts": "8,16", "curves": [{}, {"tp": 2}]},
    "/api/views/budget": {"cluster": "dgx-h100", "gpus": 8, "days": 3},
    "/api/catalog_entry": {"name": "llama2-7b"},
    "/api/session": {},
}
FILES = {
    "run.json": b'{"kind": "measured", "gpus": 8, "step_s": 1.0}',
    "runs.csv": b"layers,hidden\n1,2\n",
    "job.toml": b"gpus = 8",
}
PATHS = ("/", "/app.js", "/api/catalog", "/api/status", "/api/records", "/api/openapi.json", "/api/nothing", "/study/")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, -(10**30), 0.5, -0.0, 1e-300, 1e308, "", " ", "nan", "inf", "1e9",
    "../../etc/passwd", "/etc/passwd.toml", "<script>alert(1)</script>", "\x00", "\ud800", "a" * 300, [], [1], [[]], {},
    {"a": 1}, "8..2048", "1..99999999", [8, 16], "llama2-7b", "dgx-a100", "fsdp", "1f1b", "full", "2T",
)  # fmt: skip
HEADERS = ("Host", "Origin", "Content-Type", "Content-Length", "Transfer-Encoding", "Cookie", "Authorization",
           "X-Knee-Client", "Sec-Fetch-Site", "Range", "If-None-Match", "Expect", "Upgrade", "Connection")  # fmt: skip
WORDS = (b"", b"0", b"-1", b"1e9", b"99999999999999999999", b"chunked", b"gzip", b"localhost", b"evil.example",
         b"\xff", b"a" * 2000, b"null", b"bytes=0-", b"bytes=-1", b"100-continue", b"websocket", b"*",
         b"knee_token=%00")  # fmt: skip
NAMES = (
    *TINY, "tp", "pp", "cp", "ep", "sharding", "schedule", "micro_batch", "recompute", "precision", "tokens", "grid",
    "counts", "curves", "overrides", "number", "days", "usd", "law", "objective", "name", "kind", "x", "<b>", "",
)  # fmt: skip
RIGHT = {200, 206, 304, 400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 416, 422, 429, 431, 501}
LIMIT_S = 600.0
PATIENCE_S = 5.0
AT_ONCE = 16


@dataclass(kw_only=True)
class Fuzzed:
    """What came back."""

    statuses: Counter[int | None] = field(default_factory=Counter)
    """None: the connection was closed without an answer, as for what is no HTTP."""
    wrong: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Requests with answers that they should not have."""


def requests(seed: int) -> Iterator[bytes]:
    """Without end."""
    random = Random(seed)
    while True:
        yield _changed(random, *_request(random))


def _request(random: Random) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Method, path, headers and body."""
    kind = random.random()
    if kind < 0.15:
        return b"GET", random.choice(PATHS).encode(), [(b"Host", b"localhost")], b""
    if kind < 0.25:
        name, data = random.choice(list(FILES.items()))
        path, media = f"/api/read?name={name}".encode(), b"application/octet-stream"
        data = _damaged(random, data)
    else:
        path_text, body = random.choice(list(BODIES.items()))
        for _ in range(random.randrange(4)):
            body = _other(random, body)
        path, media, data = path_text.encode(), b"application/json", json.dumps(body).encode()
    return (
        b"POST",
        path,
        [(b"Host", b"localhost"), (b"Content-Type", media), (b"Content-Length", b"%d" % len(data))],
        data,
    )


def _other(random: Random, body: Any) -> Any:
    """A body with one value changed, added or left out."""
    changed = dict(body)
    name = random.choice(NAMES)
    if random.random() < 0.2:
        changed.pop(name, None)
    else:
        changed[name] = random.choice(VALUES)
    return changed


def _damaged(random: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.randrange(4)):
        at = random.randrange(len(found) + 1)
        match random.randrange(3):
            case 0:
                found[at:at] = random.randbytes(random.randrange(1, 6))
            case 1:
                del found[at : at + random.randrange(1, 6)]
            case _:
                found[at : at + 1] = bytes([random.randrange(256)])
    return bytes(found)


def _changed(random: Random, method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The request as bytes, with a quarter of them damaged around the body too."""
    kind = random.randrange(12)
    if kind == 0:
        method = random.choice((b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"get", b"", b"X" * 30))
    elif kind == 1:
        path = (
            _damaged(random, path)
            if random.random() < 0.5
            else path + random.choice((b"/..", b"%00", b"?a=%ff", b"//", b"\\", b"#x"))
        )
    elif kind == 2:
        headers = [*headers, (random.choice(HEADERS).encode(), random.choice(WORDS))]
    elif kind == 3:
        headers.pop(random.randrange(len(headers)))
    elif kind == 4:
        body = _damaged(random, body)
        headers = [(name, b"%d" % len(body) if name == b"Content-Length" else value) for name, value in headers]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in [*headers, (b"Connection", b"close")])
    whole = method + b" " + path + b" HTTP/1.1\r\n" + lines + b"\r\n" + body
    return _damaged(random, whole) if kind == 5 else whole


def fuzz(host: str, port: int, count: int, *, seed: int = 0) -> Fuzzed:
    """Send so many, a few at a time."""
    found, stream = Fuzzed(), islice(requests(seed), count)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        # a batch at a time: what waits in the pool is in memory
        batches = iter(lambda: list(islice(stream, 64 * AT_ONCE)), [])
        answers = (
            (one, reply)
            for batch in batches
            for one, reply in zip(batch, threads.map(partial(_answer, host, port), batch), strict=True)
        )
        return _sorted_out(answers, found)


def _sorted_out(answers: Iterable[tuple[bytes, bytes]], found: Fuzzed) -> Fuzzed:
    for request, whole in answers:
        answer = whole.partition(b"\r\n\r\n")[2] if whole.startswith(b"HTTP/1.1 100 ") else whole
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") and answer[9:12].isdigit() else None
        found.statuses[status] += 1
        if (status is not None and status not in RIGHT) or b"<script" in answer.partition(b"\r\n\r\n")[0]:
            found.wrong.append((request, answer[:2000]))
    return found


def _answer(host: str, port: int, request: bytes) -> bytes:
    """What comes back until the server closes; a request that it still waits for the rest of is given up."""
    with socket.create_connection((host, port), timeout=LIMIT_S) as own:
        found = b""
        try:
            own.sendall(request)
            own.settimeout(PATIENCE_S)
            while part := own.recv(65536):
                found += part
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            pass
        return found


if __name__ == "__main__":
    result = fuzz("127.0.0.1", int(sys.argv[1]), int(sys.argv[2]), seed=int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print({str(status): number for status, number in sorted(result.statuses.items(), key=str)})
    for sent, got in result.wrong[:20]:
        print("WRONG", sent[:600], "->", got[:600])
    sys.exit(bool(result.wrong))
