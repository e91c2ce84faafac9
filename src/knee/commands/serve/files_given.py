"""Files that a person drops onto the page, and the records of the folder that the server was given."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from knee.commands.serve.answering import Desk
from knee.commands.serve.security import Refusal

Asked = Callable[[Request, Desk, str, bytes], Awaitable[Response]]
LONGEST_NAME = 300
MOST_LISTED = 2_000
"""Records of the folder that are listed."""
SUFFIXES = (".json", ".json.gz", ".toml", ".csv", ".jsonl")
"""What can be read."""


class FilesGiven:
    """Their routes. A dropped file is written to a folder of its own, read by a process and deleted."""

    def __init__(self, records: Path | None, asked: Asked, desk: Desk) -> None:
        self.records = None if records is None else records.resolve()
        self.asked, self.desk = asked, desk

    def routes(self) -> list[BaseRoute]:
        """Dropped files, the list of records, and one of them."""
        return [
            Route("/api/read", self.read, methods=["POST"]),
            Route("/api/records", self.listed),
            Route("/api/records/{name:path}", self.record),
        ]

    async def read(self, request: Request) -> Response:
        """One dropped file; its name says what it is."""
        name = request.query_params.get("name", "")
        suffix = suffix_of(name)
        with tempfile.TemporaryDirectory(prefix="knee-dropped-") as folder:
            path = Path(folder, f"dropped{suffix}")
            with path.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
            return await self.asked(request, self.desk, "read", _question(path, name))

    async def listed(self, _: Request) -> Response:
        """Names of the records of the folder."""
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
        """One of them, held beside its simulation."""
        name = request.path_params["name"]
        if self.records is None:
            raise Refusal(404, "no-records", "this server has no records", hint="start `knee serve --records FOLDER`")
        suffix_of(name)
        path = self.records / name
        if not self._inside(path) or not path.is_file():
            raise Refusal(404, "no-file", "there is no such record in the folder", field="name")
        return await self.asked(request, self.desk, "read", _question(path, name))

    def _inside(self, path: Path) -> bool:
        """Whether a path is in the folder, links followed."""
        assert self.records is not None
        try:
            return path.resolve(strict=True).is_relative_to(self.records)
        except (OSError, ValueError, RuntimeError):  # not there, a zero byte, a loop of links
            return False


def suffix_of(name: str) -> str:
    """The end of a name that says what a file is."""
    last = PurePosixPath(name.replace("\\", "/")).name
    suffix = next((one for one in SUFFIXES if last.lower().endswith(one)), None)
    if suffix is None or len(name) > LONGEST_NAME:
        text = f"the name of a file must end in {', '.join(SUFFIXES)}"
        raise Refusal(422, "unknown-file", text, hint="records are JSON, runs are CSV, traces are JSON", field="name")
    return suffix


def _question(path: Path, name: str) -> bytes:
    return json.dumps({"path": str(path), "name": name}).encode()
