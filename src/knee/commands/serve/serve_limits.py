"""How much a client may ask of the server. Beyond these it is refused with a status and a sentence."""

from __future__ import annotations

import os
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """Sizes, rates, seconds and places in queues. Judged, not measured, unless a comment says so."""

    body_bytes: int = 64 * KIB
    """Of a question; a state with six curves is 2 kB."""
    file_bytes: int = 512 * MIB
    """Of a dropped file."""
    requests_per_s: float = 40.0
    """Of one client in the long run: a slider that is dragged sends 20."""
    burst: int = 120
    """Requests that one client may send at once."""
    receive_s: float = 15.0
    """Until the next part of a request arrives."""
    request_s: float = 120.0
    """Until a request has arrived as a whole."""
    send_s: float = 30.0
    """Until a client takes what is sent to it."""
    answer_s: float = 15.0
    """For one answer; 1 s of CPU is a lot for any of them, and processors may be busy."""
    search_s: float = 300.0
    """For one search."""
    answering: int = max(2, min(4, cores()))
    """Processes that answer."""
    searching: int = max(1, cores() - 1)
    """Searches at a time."""
    waiting: int = 400
    """Questions that wait for a process."""
    waiting_of_one: int = 32
    """Of one client."""
    searches_waiting: int = 64
    """Searches that wait for a process."""
    searches_waiting_of_one: int = 4
    process_bytes: int = 1536 * MIB
    """Memory beyond which a process is replaced when it is idle."""
    space_bytes: int = 8192 * MIB
    """Address space of a process: a question that needs more ends in an error, and not in a slow machine."""
