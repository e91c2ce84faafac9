"""Questions on their way to a process and back: a fair queue, a time limit, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress

from knee.commands.serve.fair_queue import FairQueue, QueueFull, Ticket
from knee.commands.serve.processes import AnsweringProcess, ProcessAnswer, ProcessEnded, ProcessPool
from knee.commands.serve.security import Refusal
from knee.commands.serve.serve_limits import ServeLimits

Left = Callable[[], Awaitable[object]]
"""Returns when the client has gone."""


class ClientLeft(Exception):
    """Nobody waits for the answer."""


class Desk:
    """Some processes with a queue in front of them."""

    def __init__(self, pool: ProcessPool, queue: FairQueue, *, seconds: float, what: str) -> None:
        self.pool, self.queue, self.seconds, self.what = pool, queue, seconds, what

    def join(self, client: str) -> Ticket:
        """A place in the queue; a busy server says so."""
        try:
            return self.queue.join(client)
        except QueueFull as full:
            status = 429 if full.own else 503
            whose = "your own are" if full.own else "others are"
            text = f"busy: no more {self.what} can wait ({whose} in the queue)"
            raise Refusal(status, "busy", text, hint="try again in some seconds", retry_s=5) from None

    @asynccontextmanager
    async def process(self, ticket: Ticket) -> AsyncIterator[AnsweringProcess]:
        """A process, once the ticket's turn has come."""
        await ticket.turn.wait()
        process = await self.pool.take()
        try:
            yield process
        finally:
            await asyncio.shield(self.pool.give_back(process))

    async def answer(self, client: str, left: Left, name: str, body: bytes) -> ProcessAnswer:
        """One answer. A client that leaves the queue gives its place up; a process at work is left to end its work."""
        ticket = self.join(client)
        work = asyncio.create_task(self._answer(ticket, name, body))
        gone = asyncio.create_task(_until(left))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not ticket.turn.is_set():
                work.cancel()
            if not work.done():
                work.add_done_callback(_heard)
                raise ClientLeft
            return work.result()
        finally:
            gone.cancel()

    async def _answer(self, ticket: Ticket, name: str, body: bytes) -> ProcessAnswer:
        try:
            async with self.process(ticket) as process, _time_limit(self.seconds):
                return await process.answer(name, body)
        except ProcessEnded:
            raise ended() from None
        finally:
            self.queue.leave(ticket)

    async def search(self, ticket: Ticket, body: bytes) -> AsyncGenerator[bytes, None]:
        """Server-sent events of one search; whoever stops listening ends it."""
        try:
            while not ticket.turn.is_set():
                yield sent_event("queued", json.dumps({"ahead": self.queue.ahead(ticket)}).encode())
                ticket.moved.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await _first(ticket.turn, ticket.moved)
            async with (
                self.process(ticket) as process,
                _time_limit(self.seconds),
                aclosing(process.ask("search", body)) as news,
            ):
                async for one in news:
                    if isinstance(one, ProcessAnswer):
                        yield sent_event("done" if one.status == 200 else "error", one.data)
                    else:
                        yield _named(one)
        except Refusal as refusal:
            yield sent_event("error", refusal.body)
        except ProcessEnded:
            yield sent_event("error", ended().body)
        finally:
            self.queue.leave(ticket)


KEEP_ALIVE_S = 10.0
"""Between two events of a search that waits."""


def desks(limits: ServeLimits) -> tuple[Desk, Desk]:
    """Of answers and of searches."""
    memory = {"space_bytes": limits.space_bytes, "process_bytes": limits.process_bytes}
    quick = FairQueue(slots=limits.answering, waiting=limits.waiting, waiting_of_one=limits.waiting_of_one)
    slow = FairQueue(
        slots=limits.searching, waiting=limits.searches_waiting, waiting_of_one=limits.searches_waiting_of_one
    )
    return (
        Desk(ProcessPool("answer", limits.answering, **memory), quick, seconds=limits.answer_s, what="questions"),
        Desk(ProcessPool("search", limits.searching, **memory), slow, seconds=limits.search_s, what="searches"),
    )


def ended() -> Refusal:
    """A process that has ended in the middle of its work."""
    hint = "ask for less, or try again"
    return Refusal(503, "process-ended", "the process that worked on this has ended", hint=hint, retry_s=5)


@asynccontextmanager
async def _time_limit(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        hint = "ask for less, or use the command line, which has no limit"
        raise Refusal(503, "time-limit", f"this takes longer than {seconds:g} s", hint=hint) from None


def sent_event(name: str, data: bytes) -> bytes:
    """One server-sent event; JSON of one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _named(event: bytes) -> bytes:
    """News of a process, whose JSON begins with the event's name."""
    head, _, rest = event.partition(b",")
    name = json.loads(head + b"}")["event"]
    return sent_event(name, b"{" + rest)


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _until(left: Left) -> None:
    await left()


def _heard(task: asyncio.Task[ProcessAnswer]) -> None:
    """The answer of nobody, so that its error is nobody's too."""
    if not task.cancelled():
        task.exception()
