"""HTTP connections that end when the other side does not go on: slow senders of headers, and slow readers.

uvicorn leaves both to a proxy in front of it; here there is none.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 15.0
"""Until a request's headers have arrived, from the connection's start or from their first byte."""
SEND_S = 30.0
"""Until a client takes what is sent to it."""


class PatientProtocol(H11Protocol):
    """uvicorn's, with two clocks."""

    _headers: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._headers = self.loop.call_later(HEADERS_S, self._no_request)

    def data_received(self, data: bytes) -> None:
        """A part of a request, or several of them."""
        before = self.cycle
        if self._headers is None and (before is None or before.response_complete):
            self._headers = self.loop.call_later(HEADERS_S, self._no_request)
        super().data_received(data)
        if self.cycle is not before and self._headers is not None:
            self._headers.cancel()
            self._headers = None

    def on_response_complete(self) -> None:
        """An answer was handed over; what of it is not sent yet has its time."""
        super().on_response_complete()
        if self.transport.is_closing() and self._reader is None:
            self._reader = self.loop.call_later(SEND_S, self.transport.abort)

    def pause_writing(self) -> None:
        """The client takes less than is sent."""
        super().pause_writing()
        if self._reader is None:
            self._reader = self.loop.call_later(SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        for clock in (self._headers, self._reader):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def _no_request(self) -> None:
        self._headers = None
        if not self.transport.is_closing():
            self.transport.abort()
