"""The folder of `knee study run`, with links from its figures into the explorer.

The links are added while the page is served: a page on disk has no server to lead to.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

SCRIPT = re.compile(rb"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
FIGURE = re.compile(r'<figure id="([a-z0-9-]+?)-(\d+)-[^"]*"[^>]*>.*?(?=</figure>)', re.DOTALL)
Addresses = Mapping[str, Sequence[str]]
"""Study -> the explorer's address of each of its figures."""
Look = Callable[[], Awaitable[Addresses]]


class StudyFiles(StaticFiles):
    """Static files; pages get links, and a policy that allows exactly their own scripts."""

    def __init__(self, directory: os.PathLike[str], addresses: Look) -> None:
        super().__init__(directory=directory, html=True)
        self.addresses = addresses

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or the page of the folder."""
        response = await super().get_response(path, scope)
        found = getattr(response, "path", None)
        if found is None or not os.fspath(found).endswith(".html") or response.status_code != 200:
            return response
        with open(found, encoding="utf-8", errors="replace") as file:
            page = file.read()
        page = linked(page, await self.addresses())
        return HTMLResponse(page, headers={"content-security-policy": policy_of(page.encode())})


def linked(page: str, addresses: Addresses) -> str:
    """The page with a link below each figure that the explorer can show."""

    def with_link(found: re.Match[str]) -> str:
        own = addresses.get(found[1], ())
        number = int(found[2]) - 1
        if not 0 <= number < len(own):
            return found[0]
        # relative, so that it is right behind a tunnel too
        return (
            f'{found[0]}<p class="explore"><a href="..{escape(own[number])}">Open this figure in the explorer</a></p>'
        )

    return FIGURE.sub(with_link, page)


def policy_of(page: bytes) -> str:
    """Nothing from elsewhere; of scripts only those that the page has."""
    scripts = [content for kind, content in SCRIPT.findall(page) if b"application/json" not in kind]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in scripts)
    none = "'none'"
    return (
        f"default-src 'none'; script-src {hashes or none}; style-src 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
