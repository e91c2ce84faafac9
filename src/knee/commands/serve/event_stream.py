"""A response of server-sent events that ends its source as soon as the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class SearchEvents(Response):
    """Starlette's own StreamingResponse leaves a source that waits in ``send`` to the garbage collector."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]  # nobody knows it
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's form
        """Send until the source or the client ends."""
        work = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async with aclosing(self.events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
