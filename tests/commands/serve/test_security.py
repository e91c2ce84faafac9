"""What a server refuses: foreign names and sites, paths, sizes, rates and tokens."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from knee.commands.serve.app import ServeOptions
from knee.commands.serve.security import POLICY, ClientRates, Door
from serve.served import FEW, STEP, TYPE, Served, serving

ASKED = "/api/simulate"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9999", 200),  # through a tunnel
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("127.1.2.3", 200),
        ("evil.example", 403),  # a name that resolves to this machine: DNS rebinding
        ("evil.example:8753", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.nip.io", 403),
        ("10.0.0.1", 403),
        ("localhost:port", 403),
        ("user@localhost", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(server: Served, host: str, status: int) -> None:
    assert server.get("/api/status", Host=host).status == status
    assert server.get("/", Host=host).status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another port is another site
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
def test_other_sites_cannot_ask(server: Served, headers: dict[str, str]) -> None:
    assert server.post(ASKED, STEP, headers).error["code"] == "wrong-origin"
    assert server.send("GET", "/api/catalog", headers=headers).status == 403


def test_other_sites_may_link_to_the_page_and_not_embed_it(server: Served) -> None:
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.send("GET", "/?view=step", headers=visit).status == 200
    assert server.send("GET", "/", headers=visit | {"Sec-Fetch-Dest": "iframe"}).status == 403
    assert server.send("GET", "/app.js", headers=visit | {"Sec-Fetch-Mode": "no-cors"}).status == 403


@pytest.mark.slow
def test_the_pages_own_questions_are_answered(server: Served) -> None:
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
    assert server.post(ASKED, STEP, own).status == 200


def test_every_answer_has_the_policy(server: Served) -> None:
    for reply in (
        server.get("/"),
        server.get("/nothing"),
        server.get("/api/status"),
        server.get("/api/nothing"),
        server.get("/", Host="evil.example"),
        server.post(ASKED, {}),
        server.send("DELETE", ASKED),
    ):
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in reply.headers
    assert "unsafe" not in POLICY
    assert server.get("/api/status").headers["cache-control"] == "no-store"


def test_a_study_page_runs_its_own_scripts_alone(server: Served) -> None:
    page = server.get("/study/")
    policy = page.headers["content-security-policy"]
    assert page.status == 200
    assert "script-src 'sha256-" in policy
    assert "script-src 'unsafe" not in policy
    assert server.get("/study/%2e%2e/secret.json").status == 404


PATHS = [
    "../secret.json",
    "%2e%2e/secret.json",
    "..%2fsecret.json",
    "deep/../../secret.json",
    "link.json",
    "out/secret.json",
    "out/records/deep/run.json",
    "/etc/passwd.json",
    "%2fetc%2fpasswd.json",
    "....//secret.json",
    "deep/%00.json",
    "deep%5c..%5c..%5csecret.json",
    "~/secret.json",
    "nothing.json",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_the_folder(server: Served, path: str) -> None:
    reply = server.get(f"/api/records/{path}")
    inside = path == "out/records/deep/run.json"  # out of the folder and in again: the file itself is inside
    assert reply.status == (200 if inside else 404), reply.body
    assert b"secret" not in reply.body.replace(b"../secret.json", b"")


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/vendor/../../app.py", "/%00", "//etc/passwd"]
)
def test_static_files_are_those_of_the_page(server: Served, path: str) -> None:
    assert server.get(path).status in (404, 405)


def test_names_in_questions_open_nothing(server: Served, folder: Path) -> None:
    job = folder.parent / "job.toml"
    job.write_text('model = "llama2-7b"\ncluster = "dgx-h100"\ngpus = 8\nlocal_batch = 2\n')
    for name in (str(job), os.path.relpath(job), "../secret.json", str(folder), ".", "/etc", "llama2-7b/"):
        for kind in ("model", "cluster", "profile"):
            error = server.post(ASKED, STEP | {kind: name}).error
            assert (error["code"], error["field"]) == ("unknown-name", kind)
    assert server.post("/api/catalog_entry", {"name": str(job)}).error["code"] == "unknown-name"


def test_script_in_names_stays_text(server: Served) -> None:
    script = "<script>alert(1)</script>"
    for reply in (
        server.post(ASKED, {"model": script}),
        server.post(ASKED, STEP | {script: 1}),
        server.get(f"/{script.replace('<', '%3C').replace('>', '%3E')}"),
        server.get("/api/records"),
        server.get("/api/records/%3Cscript%3Ealert(1)%3C.json"),
    ):
        assert reply.headers["content-type"] == "application/json"
    # the record names a path as its model: nothing is simulated, and nothing is opened
    row = server.get("/api/records/%3Cscript%3Ealert(1)%3C.json").data["rows"][0]
    assert row["simulated"] is None
    assert "not in the catalogue" in row["note"]


def test_bodies_are_small_json(server: Served) -> None:
    assert server.send("POST", ASKED, b"{}").error["code"] == "wrong-content-type"
    assert server.send("POST", ASKED, b"{}", {"Content-Type": "text/plain"}).status == 415
    assert server.send("POST", ASKED, b" " * (FEW.body_bytes + 1), TYPE).status == 413
    chunked = b"POST /api/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 5
    assert b" 413 " in server.raw(chunked).partition(b"\r\n")[0]
    for body in (b"", b"[", b"[1]", b"nul", b"\xff", b'{"gpus": 1e999}', b"[" * 60_000):
        assert server.send("POST", ASKED, body, TYPE).status in (400, 422)


def test_headers_that_could_mean_two_things_are_refused(server: Served) -> None:
    twice = b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 400 " in server.raw(twice).partition(b"\r\n")[0]
    origins = twice.replace(b"Host: evil.example", b"Origin: http://localhost\r\nOrigin: x")
    assert b" 400 " in server.raw(origins).partition(b"\r\n")[0]


def test_a_client_that_asks_too_often_waits() -> None:
    now = [100.0]
    rates = ClientRates(8.0, 3, clock=lambda: now[0])
    assert [rates.wait_s("a") > 0 for _ in range(5)] == [False, False, False, True, True]
    assert rates.wait_s("b") == 0
    now[0] += 0.125
    assert rates.wait_s("a") == 0
    assert rates.wait_s("a") > 0


def test_the_rate_is_told(folder: Path) -> None:
    options = ServeOptions(limits=dataclasses.replace(FEW, requests_per_s=0.001, burst=2), records=folder)
    with serving(options) as own:
        own.headers = {"X-Knee-Client": "one"}
        assert [own.get("/api/status").status for _ in range(3)] == [200, 200, 429]
        refused = own.get("/api/status")
        assert int(refused.headers["retry-after"]) > 0
        assert "busy" in refused.error["message"]
        own.headers = {"X-Knee-Client": "two"}
        assert own.get("/api/status").status == 200


@pytest.mark.slow
def test_beyond_this_machine_a_token_is_needed(study: Path) -> None:
    token = "a-token-of-this-test"
    with serving(ServeOptions(limits=FEW, door=Door(host="0.0.0.0", token=token), study=study)) as own:
        assert own.get("/").status == 200  # the page itself has no secrets
        for path in ("/api/status", "/api/catalog", "/study/", "/study/index.html"):
            assert own.get(path).error["code"] == "no-token"
            assert own.get(path, Authorization="Bearer wrong").error["code"] == "wrong-token"
        assert own.get("/api/status", Authorization=f"Bearer {token}").status == 200
        assert own.post("/api/session", {}).status == 401
        session = own.post("/api/session", {}, {"Authorization": f"Bearer {token}"})
        cookie = session.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert own.get("/study/", Cookie=cookie.partition(";")[0]).status == 200
        assert own.get("/api/status", Cookie="knee_token=wrong").status == 401
        # addresses cannot be rebound, names of others can
        assert own.get("/", Host="192.168.1.2:80").status == 200
        assert own.get("/", Host="evil.example").status == 403


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("localhost", True),
        ("[::1]", True),
        ("[::1]:80", True),
        ("localhost:b", False),
        ("localhost:", False),
        (":80", False),
        ("localhost/b", False),
        ("[localhost", False),
        ("::1", False),
        ("localhost:80:80", False),
        ("127.0.0.1\n", False),
    ],
)
def test_hosts_are_taken_apart(text: str, named: bool) -> None:
    assert Door(host="127.0.0.1").names_it(text) == named
