"""Questions on their way to a process and back: clients take turns, work has a time limit, clients go away.

Each process has a pipe of its own and not a place in an executor, because a search whose client has left is ended by
killing its process, which would break everything else that an executor has been given.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
from bisect import insort
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from knee.commands.serve.answers.dispatch import answer_questions
from knee.commands.serve.security import Refusal, ServeLimits

SPAWN = multiprocessing.get_context("spawn")
START_S = 300.0
"""Until a process has imported what it needs: 2 s of CPU, and minutes on a machine that is very busy."""
QUEUED_S = 1.0
"""Between two events of a search that waits."""


class ProcessEnded(Exception):
    """A process has ended before its answer: killed, or out of memory."""


class ClientLeft(Exception):
    """The client has closed its connection before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The status and the body of an answer."""

    status: int
    data: bytes


class Worker:
    """A process that answers one question at a time."""

    def __init__(self, threads: ThreadPoolExecutor, role: str, space_bytes: int) -> None:
        self.pipe, self._theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=answer_questions, args=(self._theirs, role, space_bytes), daemon=True)
        self.threads, self.killed = threads, False
        self.used_bytes = 0
        """The most memory that it had, at its last answer."""

    async def start(self) -> None:
        """Start the process and wait until it can be asked."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(START_S):
            await loop.run_in_executor(self.threads, self._start)
            await self._receive()

    def _start(self) -> None:
        if self.killed:  # before it was started: nobody would ever write into the pipe
            raise ProcessEnded
        # in a thread, whose mask the process inherits: Ctrl-C is for the server, which ends its processes
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        self._theirs.close()
        if self.killed:  # while it was started, when it had no number yet
            self.process.kill()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.killed and self.process.is_alive()

    async def ask(self, name: str, body: bytes) -> AsyncGenerator[bytes | Answer, None]:
        """Events as JSON, and at last the answer. Whoever stops listening before that ends the process."""
        done = False
        try:
            with suppress(OSError):  # it has ended: said below
                self.pipe.send((name, body))
            while not done:
                found = await self._receive()
                if isinstance(found, tuple):
                    done = True
                    status, data, self.used_bytes = found
                    yield Answer(status=status, data=data)
                else:
                    yield found
        finally:
            if not done:
                self.kill()

    async def _receive(self) -> bytes | tuple[int, bytes, int]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, self.pipe.recv)
        except (EOFError, OSError):
            raise ProcessEnded from None

    def kill(self) -> None:
        """End it, whatever it does."""
        self.killed = True
        if self.process.pid is not None:
            self.process.kill()


@dataclass(slots=True, kw_only=True, eq=False)
class QueuePlace:
    """A place in the queue."""

    client: str
    round: int
    number: int
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its turn has come."""


class FairQueue:
    """So many at work; a client's next question waits a round for each that the client has waiting before it."""

    def __init__(self, *, slots: int, waiting: int, waiting_of_one: int) -> None:
        self.slots, self.most, self.most_of_one = slots, waiting, waiting_of_one
        self.working: set[QueuePlace] = set()
        self.waiting: list[QueuePlace] = []
        """In the order of their turns."""
        self._round, self._numbers = 0, count()

    def join(self, client: str, what: str = "questions") -> QueuePlace:
        """Return a place, at work where one is free; a full queue refuses, and names ``what`` waits in it."""
        own = [place.round for place in self.waiting if place.client == client]
        if len(self.working) >= self.slots and (len(self.waiting) >= self.most or len(own) >= self.most_of_one):
            mine = len(own) >= self.most_of_one
            text = f"busy: no more {what} can wait ({'your own are' if mine else 'others are'} in the queue)"
            raise Refusal(429 if mine else 503, "busy", text, hint="try again in some seconds", retry_s=5)
        place = QueuePlace(client=client, round=own[-1] + 1 if own else self._round, number=next(self._numbers))
        insort(self.waiting, place, key=lambda one: (one.round, one.number))
        self._start_next()
        return place

    def leave(self, place: QueuePlace) -> None:
        """Give a place up, done or not."""
        self.working.discard(place)
        if place in self.waiting:
            self.waiting.remove(place)
        self._start_next()

    def _start_next(self) -> None:
        while self.waiting and len(self.working) < self.slots:
            place = self.waiting.pop(0)
            self._round = place.round
            self.working.add(place)
            place.turn.set()


class Desk:
    """Processes of one role with a queue in front of them. ``search`` ends work whose client has left."""

    def __init__(self, role: str, queue: FairQueue, limits: ServeLimits) -> None:
        self.role, self.queue, self.limits = role, queue, limits
        self.seconds = limits.search_s if role == "search" else limits.answer_s
        self.threads = ThreadPoolExecutor(queue.slots, f"knee-{role}")
        self.workers: set[Worker] = set()
        self.idle: list[asyncio.Task[Worker]] = []
        """As many as there are free slots; those that are still starting come first, and are taken last."""
        self._closed = False

    def warm(self) -> None:
        """Start all processes."""
        self.idle = [self._starting() for _ in range(self.queue.slots)]

    def _starting(self) -> asyncio.Task[Worker]:
        task = asyncio.create_task(self._start())
        task.add_done_callback(_ignore_error)  # whoever takes the process sees it
        return task

    async def _start(self) -> Worker:
        worker = Worker(self.threads, self.role, self.limits.space_bytes)
        if self._closed:
            raise ProcessEnded
        self.workers.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: Worker) -> None:
        worker.kill()
        self.workers.discard(worker)
        if worker.process.pid is not None:
            asyncio.get_running_loop().run_in_executor(None, worker.process.join)

    @asynccontextmanager
    async def _worker(self, place: QueuePlace) -> AsyncGenerator[Worker, None]:
        """A process, once its turn has come; ended or grown ones are replaced."""
        await place.turn.wait()
        taken, worker = self.idle.pop(), None
        try:
            worker = await asyncio.shield(taken)
            if not worker.alive:
                self._end(worker)
                taken, worker = self._starting(), None
                worker = await asyncio.shield(taken)
            try:
                async with asyncio.timeout(self.seconds):
                    yield worker
            except TimeoutError:
                hint = "ask for less, or use the command line, which has no limit"
                raise Refusal(503, "time-limit", f"this takes longer than {self.seconds:g} s", hint=hint) from None
        except (ProcessEnded, OSError):
            text, hint = "the process that worked on this has ended", "ask for less, or try again"
            raise Refusal(503, "process-ended", text, hint=hint, retry_s=5) from None
        finally:
            if worker is not None and worker.alive and worker.used_bytes <= self.limits.process_bytes:
                self.idle.append(taken)
            elif worker is None and not (taken.done() and (taken.cancelled() or taken.exception())):
                self.idle.insert(0, taken)  # who waited for it has left; it is starting, or has just started
            else:
                if worker is not None:
                    self._end(worker)
                self.idle.insert(0, self._starting())

    def join(self, client: str) -> QueuePlace:
        """Return a place in the queue; a full one refuses."""
        return self.queue.join(client, "searches" if self.role == "search" else "questions")

    async def answer(self, client: str, left: Callable[[], Awaitable[object]], name: str, body: bytes) -> Answer:
        """Return one answer; ``left`` returns when the client has gone, which raises ClientLeft.

        A client that leaves the queue gives its place up. A search is ended; a short answer is left to end itself.
        """
        place = self.join(client)
        work = asyncio.create_task(self._answer(place, name, body))
        gone = asyncio.ensure_future(left())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if self.role == "search" or not place.turn.is_set():
                work.cancel()
            work.add_done_callback(_ignore_error)
            raise ClientLeft
        finally:
            gone.cancel()

    async def _answer(self, place: QueuePlace, name: str, body: bytes) -> Answer:
        try:
            async with self._worker(place) as worker, aclosing(worker.ask(name, body)) as events:
                async for one in events:
                    if isinstance(one, Answer):
                        return one
            raise ProcessEnded
        finally:
            self.queue.leave(place)

    async def search(self, place: QueuePlace, body: bytes) -> AsyncGenerator[bytes, None]:
        """Server-sent events of one search; whoever stops listening ends it."""
        try:
            while not place.turn.is_set():
                yield sent_event("queued", json.dumps({"ahead": self.queue.waiting.index(place)}).encode())
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUEUED_S):
                        await place.turn.wait()
            async with self._worker(place) as worker, aclosing(worker.ask("search", body)) as events:
                async for one in events:
                    if isinstance(one, Answer):
                        yield sent_event("done" if one.status == 200 else "error", one.data)
                    else:  # JSON whose first key is the event's name
                        head, _, rest = one.partition(b",")
                        yield sent_event(json.loads(head + b"}")["event"], b"{" + rest)
        except Refusal as refusal:
            yield sent_event("error", bytes(refusal.response.body))
        finally:
            self.queue.leave(place)

    def kill(self) -> None:
        """End all processes, for good."""
        self._closed = True
        for worker in self.workers:
            worker.kill()

    async def close(self) -> None:
        """End all processes, and wait until they have ended."""
        self.kill()
        await asyncio.gather(*self.idle, return_exceptions=True)
        await asyncio.to_thread(self.threads.shutdown)


def _ignore_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task that nobody waits for as seen."""
    if not task.cancelled():
        task.exception()


def make_desks(limits: ServeLimits) -> tuple[Desk, Desk]:
    """The desks of answers and of searches."""
    quick = FairQueue(slots=limits.answering, waiting=limits.waiting, waiting_of_one=limits.waiting_of_one)
    slow = FairQueue(
        slots=limits.searching, waiting=limits.searches_waiting, waiting_of_one=limits.searches_waiting_of_one
    )
    return Desk("answer", quick, limits), Desk("search", slow, limits)


def sent_event(name: str, data: bytes) -> bytes:
    """Return one server-sent event; ``data`` is JSON of one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
