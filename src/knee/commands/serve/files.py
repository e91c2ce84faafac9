"""Files that the server reads: dropped onto the page, in the folder of records, and in the folder of a study."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from knee.commands.serve.security import Refusal

Read = Callable[[Request, bytes], Awaitable[Response]]
"""Asks a process to read a file."""
LONGEST_NAME = 300
MOST_LISTED = 2_000
"""Records of the folder that are listed."""
SUFFIXES = (".json", ".json.gz", ".toml", ".csv", ".jsonl")
"""What can be read."""


class FilesGiven:
    """Routes for files. A dropped file is written to a folder of its own, read by a process and deleted."""

    def __init__(self, records: Path | None, read: Read) -> None:
        self.records = None if records is None else records.resolve()
        self.read = read

    def routes(self) -> list[BaseRoute]:
        """Dropped files, the list of records, and one of them."""
        return [
            Route("/api/read", self.dropped, methods=["POST"]),
            Route("/api/records", self.list_records),
            Route("/api/records/{name:path}", self.record),
        ]

    async def dropped(self, request: Request) -> Response:
        """Read one dropped file; its name says what it is."""
        name = request.query_params.get("name", "")
        suffix = suffix_of(name)
        with tempfile.TemporaryDirectory(prefix="knee-dropped-") as folder:
            path = Path(folder, f"dropped{suffix}")
            with path.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
            return await self.read(request, _question(path, name))

    async def list_records(self, _: Request) -> Response:
        """List the names of the records of the folder."""
        if self.records is None:
            return JSONResponse({"folder": None, "records": []})
        # a folder of a sweep has many thousand files
        return JSONResponse({"folder": self.records.name, "records": await asyncio.to_thread(self._names)})

    def _names(self) -> list[dict[str, Any]]:
        assert self.records is not None
        found: list[dict[str, Any]] = []
        for folder, folders, files in os.walk(self.records):
            folders.sort()
            for file in sorted(files):
                path = Path(folder, file)
                if file.endswith(SUFFIXES) and self._inside(path):
                    found.append({"name": path.relative_to(self.records).as_posix(), "bytes": path.stat().st_size})
            if len(found) > MOST_LISTED:
                break
        return found[:MOST_LISTED]

    async def record(self, request: Request) -> Response:
        """Read one record of the folder, beside its simulation."""
        name = request.path_params["name"]
        if self.records is None:
            raise Refusal(404, "no-records", "this server has no records", hint="start `knee serve --records FOLDER`")
        suffix_of(name)
        path = self.records / name
        if not self._inside(path) or not path.is_file():
            raise Refusal(404, "no-file", "there is no such record in the folder", field="name")
        return await self.read(request, _question(path, name))

    def _inside(self, path: Path) -> bool:
        """Whether a path is in the folder, links followed."""
        assert self.records is not None
        try:
            return path.resolve(strict=True).is_relative_to(self.records)
        except (OSError, ValueError, RuntimeError):  # not there, a zero byte, a loop of links
            return False


def suffix_of(name: str) -> str:
    """Return the end of a name that says what a file is; other names are refused."""
    last = PurePosixPath(name.replace("\\", "/")).name
    suffix = next((one for one in SUFFIXES if last.lower().endswith(one)), None)
    if suffix is None or len(name) > LONGEST_NAME:
        text = f"the name of a file must end in {', '.join(SUFFIXES)}"
        raise Refusal(422, "unknown-file", text, hint="records are JSON, runs are CSV, traces are JSON", field="name")
    return suffix


def _question(path: Path, name: str) -> bytes:
    return json.dumps({"path": str(path), "name": name}).encode()


# The folder of `knee study run`. Links from its figures into the explorer are added while the page is served: a page on
# disk has no server to lead to.

FIGURE, FIGURE_END = '<figure id="', "</figure>"
SCRIPT, SCRIPT_END = b"<script", b"</script>"
STUDY_AND_NUMBER = re.compile(r"([a-z0-9-]{1,200}?)-(\d{1,9})-")
"""How the name of a figure begins."""
Addresses = Mapping[str, Sequence[str]]
"""Study -> the explorer's address of each of its figures."""


class StudyFiles(StaticFiles):
    """Static files; pages get links, and a policy that allows exactly their own scripts."""

    def __init__(self, directory: os.PathLike[str], addresses: Callable[[], Awaitable[Addresses]]) -> None:
        super().__init__(directory=directory, html=True)
        self.addresses = addresses

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the page of the folder."""
        response = await super().get_response(path, scope)
        found = getattr(response, "path", None)
        if found is None or not os.fspath(found).endswith(".html") or response.status_code != 200:
            return response
        with open(found, encoding="utf-8", errors="replace") as file:
            page = add_links(file.read(), await self.addresses())
        return HTMLResponse(page, headers={"content-security-policy": policy_of(page.encode())})


def add_links(page: str, addresses: Addresses) -> str:
    """Return the page with a link below each figure that the explorer can show."""
    before, *figures = page.split(FIGURE)
    return before + "".join(FIGURE + _add_link(figure, addresses) for figure in figures)


def _add_link(text: str, addresses: Addresses) -> str:
    """A figure from its name on, and what follows it."""
    name = STUDY_AND_NUMBER.match(text)
    own, number = (addresses.get(name[1], ()), int(name[2]) - 1) if name else ((), 0)
    figure, end, rest = text.partition(FIGURE_END)
    if not end or not 0 <= number < len(own):
        return text
    # relative, so that it is right behind a tunnel too
    link = f'<p class="explore"><a href="..{escape(own[number])}">Open this figure in the explorer</a></p>'
    return figure + link + end + rest


def policy_of(page: bytes) -> str:
    """Return a policy that allows nothing from elsewhere, and of scripts only those that the page has."""
    parts = (part.partition(SCRIPT_END)[0].partition(b">") for part in page.split(SCRIPT)[1:])
    scripts = [content for kind, _, content in parts if b"application/json" not in kind]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in scripts)
    none = "'none'"
    return (
        f"default-src 'none'; script-src {hashes or none}; style-src 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
