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

FIGURE, FIGURE_END = '<figure id="', "</figure>"
SCRIPT, SCRIPT_END = b"<script", b"</script>"
STUDY_AND_NUMBER = re.compile(r"([a-z0-9-]{1,200}?)-(\d{1,9})-")
"""Of the name of a figure."""
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
    before, *figures = page.split(FIGURE)
    return before + "".join(FIGURE + _with_link(figure, addresses) for figure in figures)


def _with_link(text: str, addresses: Addresses) -> str:
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
    """Nothing from elsewhere; of scripts only those that the page has."""
    parts = (part.partition(SCRIPT_END)[0].partition(b">") for part in page.split(SCRIPT)[1:])
    scripts = [content for kind, _, content in parts if b"application/json" not in kind]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in scripts)
    none = "'none'"
    return (
        f"default-src 'none'; script-src {hashes or none}; style-src 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
