"""What the server and its processes say to each other: a letter, a length and so many bytes."""

from __future__ import annotations

import struct
from asyncio import StreamReader
from typing import BinaryIO

HEAD = struct.Struct("<cI")
QUESTION, READY, EVENT, ANSWER = b"Q", b"R", b"P", b"A"
"""What is asked; the process can be asked; news of a search; the end."""


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One message."""
    return HEAD.pack(kind, len(payload)) + payload


async def read_frame(stream: StreamReader) -> tuple[bytes, bytes]:
    """The next message; IncompleteReadError where the process has ended."""
    kind, length = HEAD.unpack(await stream.readexactly(HEAD.size))
    return kind, await stream.readexactly(length)


def next_frame(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """The same in the process; None where the server has ended."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    payload = stream.read(length)
    return (kind, payload) if len(payload) == length else None
