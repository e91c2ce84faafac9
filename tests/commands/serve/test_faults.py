"""Clients that break off, send nonsense or nothing, read slowly, and processes that end: each gets its status, and the
server goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from knee.commands.serve.app import Explorer, ServeOptions
from knee.commands.serve.desk import Answer
from serve.fuzzed_requests import fuzz
from serve.served import FEW, STEP, TYPE, Served, serving
from waiting import until

pytestmark = pytest.mark.slow
SEARCH = {"kind": "plan", "model": "deepseek-v3", "cluster": "dgx-h100", "gpus": 2048, "global_batch": 8192}
"""Many seconds of work."""
POST = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def own() -> Iterator[Served]:
    """A server of this module, whose processes may be killed."""
    with serving() as found:
        yield found


def listening(own: Served, body: dict[str, object], client: str) -> socket.socket:
    """A connection that has asked for a search."""
    data = json.dumps(body).encode()
    found = socket.create_connection(("127.0.0.1", own.port), timeout=600)
    found.sendall(POST % (b"/api/searches", b"X-Knee-Client: " + client.encode(), len(data)) + data)
    return found


def heard(connection: socket.socket, word: bytes) -> bytes:
    """What has come, once it has the word."""
    found = b""
    while word not in found:
        part = connection.recv(65536)
        assert part, f"closed after {found[-500:]!r}"
        found += part
    return found


def test_a_search_ends_with_its_client_and_the_next_begins(own: Served) -> None:
    _, slow = own.desks
    first = listening(own, SEARCH, "a")
    heard(first, b"event: progress")
    (process,) = slow.workers
    pid = process.process.pid
    second = listening(own, SEARCH, "b")
    assert b'"ahead": 0' in heard(second, b"event: queued")
    third = listening(own, SEARCH, "c")
    assert b'"ahead": 1' in heard(third, b"event: queued")
    second.close()
    until(lambda: len(slow.queue.waiting) == 1)
    first.close()
    until(lambda: not alive(pid))
    heard(third, b"event: progress")
    third.close()
    until(lambda: not slow.queue.working)
    small = SEARCH | {"model": "llama-tiny", "gpus": 1, "global_batch": 1, "seq_len": 64}
    assert b"event: done" in own.post("/api/searches", small).body


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_is_killed_is_told_and_replaced(own: Served) -> None:
    quick, slow = own.desks
    search = listening(own, SEARCH, "a")
    heard(search, b"event: progress")
    (process,) = slow.workers
    os.kill(process.process.pid, signal.SIGKILL)
    assert b"process-ended" in heard(search, b"event: error")
    search.close()
    (process,) = until(lambda: quick.workers)
    os.kill(process.process.pid, signal.SIGKILL)
    until(lambda: not process.alive)
    assert own.post("/api/simulate", STEP).status == 200


def test_busy_is_said() -> None:
    limits = dataclasses.replace(FEW, searches_waiting=1, searches_waiting_of_one=1)
    with serving(ServeOptions(limits=limits)) as own:
        first = listening(own, SEARCH, "a")
        heard(first, b"event: progress")
        second = listening(own, SEARCH, "b")
        heard(second, b"event: queued")
        own.headers = {"X-Knee-Client": "b"}
        assert own.post("/api/plan", {}).status == 429
        own.headers = {"X-Knee-Client": "c"}
        refused = own.post("/api/plan", {})
        assert (refused.status, refused.error["code"]) == (503, "busy")
        assert int(refused.headers["retry-after"]) > 0
        assert own.get("/api/status").data["searches_waiting"] == 1
        # answers do not wait for searches
        assert own.post("/api/simulate", STEP).status == 200
        first.close()
        second.close()


def test_work_that_takes_too_long_is_ended() -> None:
    with serving(ServeOptions(limits=dataclasses.replace(FEW, search_s=0.2))) as own:
        assert b"time-limit" in own.post("/api/searches", SEARCH).body
        body = {name: value for name, value in SEARCH.items() if name != "kind"}
        refused = own.post("/api/plan", body)
        assert (refused.status, refused.error["code"]) == (503, "time-limit")


def test_slow_senders_and_readers_are_cut() -> None:
    with serving(ServeOptions(limits=dataclasses.replace(FEW, receive_s=0.2, send_s=0.2))) as own:
        assert own.raw(b"GET / HTTP/1.1\r\nHost: local") == b""
        assert own.raw(b"") == b""
        part = POST % (b"/api/simulate", b"Accept: */*", 100) + b"{"
        assert b" 408 " in own.raw(part).partition(b"\r\n")[0]
        # a reader that takes nothing of many large answers
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", own.port))
            one = b"GET /vendor/d3.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
            reader.sendall(one * 20)
            until(lambda: not own.server.server_state.connections)


def test_many_clients_break_off(own: Served) -> None:
    body = json.dumps(STEP).encode()
    whole = POST % (b"/api/views/step", b"Accept: */*", len(body)) + body
    for cut in range(0, len(whole), 12):
        own.raw(whole[:cut], wait=False)
    for _ in range(20):
        own.raw(whole, wait=False)
    quick, _ = own.desks
    until(lambda: not quick.queue.working and not quick.queue.waiting)
    assert own.post("/api/views/step", STEP).status == 200


def test_nonsense_gets_the_right_status(own: Served) -> None:
    found = fuzz("127.0.0.1", own.port, 400, seed=1)
    assert not found.wrong, found.wrong[:3]
    assert found.statuses.keys() <= {200, 400, 403, 404, 405, 408, 411, 413, 414, 415, 422, 431, 501, None}
    assert {200, 400, 404, 415, 422} <= found.statuses.keys()
    assert own.post("/api/simulate", STEP).status == 200


def test_a_connection_is_kept_for_the_next_question(own: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=600)
    for _ in range(3):
        connection.request("POST", "/api/simulate", json.dumps(STEP).encode(), TYPE)
        response = connection.getresponse()
        assert response.status == 200
        response.read()
    assert connection.sock is not None
    connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_all_it_has_started(number: signal.Signals) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "knee", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    port = int(address.rpartition(":")[2].strip("/"))
    own = Served(port=port, app=None, server=None)  # type: ignore[arg-type]
    search = listening(own, SEARCH, "a")
    heard(search, b"event: progress")
    children = [
        int(line)
        for line in subprocess.run(
            ["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
    ]
    assert children
    server.send_signal(number)
    _, said = server.communicate()
    assert server.returncode == 128 + number
    assert "Traceback" not in said
    until(lambda: not any(alive(pid) for pid in children))
    search.close()


def test_a_failed_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = Explorer(ServeOptions())
    answers = iter([Answer(status=500, data=b"{}"), Answer(status=200, data=b'{"presets": []}')])

    async def answer(*_: object) -> Answer:
        return next(answers)

    monkeypatch.setattr(explorer.quick, "answer", answer, raising=False)

    async def asked() -> list[int]:
        return [(await explorer._kept_answer("catalog")).status for _ in range(3)]

    assert asyncio.run(asked()) == [500, 200, 200]
