"""The folder of `knee study run`, with links from its figures into the explorer."""

from __future__ import annotations

import base64
import hashlib
import os
import re

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

INLINE = re.compile(rb"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)


class StudyFiles(StaticFiles):
    """Static files; pages with scripts of their own get a policy that allows exactly those."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or the page of the folder."""
        response = await super().get_response(path, scope)
        found = getattr(response, "path", None)
        if found is not None and os.fspath(found).endswith(".html") and response.status_code == 200:
            with open(found, "rb") as file:
                response.headers["content-security-policy"] = policy_of(file.read())
        return response


def policy_of(page: bytes) -> str:
    """Nothing from elsewhere; of scripts only those that the page has."""
    scripts = [content for kind, content in INLINE.findall(page) if kind.lower() == b"script"]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in scripts)
    return (
        f"default-src 'none'; script-src {hashes or chr(39) + 'none' + chr(39)}; style-src 'unsafe-inline'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
