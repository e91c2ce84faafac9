"""Processes that answer, as the server sees them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from knee.commands.serve.frames import ANSWER, EVENT, QUESTION, frame, read_frame

START_S = 60.0
"""Until a process has imported what it needs."""
STREAM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAnswer:
    """What a process said."""

    status: int
    data: bytes
    """JSON, or what the answer is."""


class ProcessEnded(Exception):
    """It has ended before its answer: killed, or out of memory."""


class AnsweringProcess:
    """One of them. It answers one question at a time; whoever stops waiting for an answer ends it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.killed = False
        self.used_bytes = 0
        """The most memory that it had, at its last answer."""

    @classmethod
    async def start(cls, role: str, space_bytes: int) -> AnsweringProcess:
        """A process that is ready to be asked."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # one core each: threads of a library would take those of others
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "knee.commands.serve.worker",
            str(space_bytes),
            role,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=STREAM_BYTES,
            start_new_session=True,  # Ctrl-C is for the server, which ends them
        )
        found = cls(process)
        try:
            async with asyncio.timeout(START_S):
                await found._next()
        except BaseException:
            await asyncio.shield(found.end())
            raise
        return found

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.killed and self.process.returncode is None

    async def ask(self, name: str, body: bytes) -> AsyncGenerator[bytes | ProcessAnswer, None]:
        """News as JSON, and at last the answer."""
        assert self.process.stdin is not None
        done = False
        try:
            self.process.stdin.write(frame(QUESTION, name.encode() + b"\0" + body))
            with suppress(ConnectionError):
                await self.process.stdin.drain()
            while True:
                kind, payload = await self._next()
                if kind == EVENT:
                    yield payload
                elif kind == ANSWER:
                    done = True
                    self.used_bytes = int(payload[4:19])
                    yield ProcessAnswer(status=int(payload[:3]), data=payload[20:])
                    return
        finally:
            if not done:
                self.kill()

    async def answer(self, name: str, body: bytes) -> ProcessAnswer:
        """The answer alone."""
        stream = self.ask(name, body)
        try:
            async for one in stream:
                if isinstance(one, ProcessAnswer):
                    return one
        finally:
            await stream.aclose()
        raise ProcessEnded

    async def _next(self) -> tuple[bytes, bytes]:
        assert self.process.stdout is not None
        try:
            return await read_frame(self.process.stdout)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessEnded from None

    def kill(self) -> None:
        """End it, whatever it does."""
        self.killed = True
        with suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """The same, and wait until it has ended and its pipes are closed."""
        self.kill()
        await self.process.wait()
        self.process._transport.close()  # type: ignore[attr-defined]  # asyncio has no other word for it
        await asyncio.sleep(0)


class ProcessPool:
    """So many processes; those that have ended, or have grown, are replaced."""

    def __init__(self, role: str, count: int, *, space_bytes: int, process_bytes: int) -> None:
        self.role, self.count, self.space_bytes, self.process_bytes = role, count, space_bytes, process_bytes
        self.idle: list[AnsweringProcess] = []
        self.all: set[AnsweringProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failed = 0
        """Processes that could not be started."""
        self._changed = asyncio.Condition()

    def warm(self) -> None:
        """Start what is missing, in the background."""
        missing = self.count - len(self.all) - len(self._tasks)
        for _ in range(0 if self._closed else missing):
            task = asyncio.create_task(self._start())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        try:
            process = await AnsweringProcess.start(self.role, self.space_bytes)
        except (OSError, TimeoutError, ProcessEnded):
            async with self._changed:
                self._failed += 1
                self._changed.notify_all()
            return
        self.all.add(process)
        await self._put(process)

    async def _put(self, process: AnsweringProcess) -> None:
        async with self._changed:
            self.idle.append(process)
            self._changed.notify()

    async def take(self) -> AnsweringProcess:
        """An idle process; whoever takes it gives it back. ProcessEnded where none can be started."""
        async with self._changed:
            failed = self._failed
            while True:
                if self._closed or self._failed > failed:
                    raise ProcessEnded
                while self.idle:
                    process = self.idle.pop()
                    if process.alive:
                        return process
                    self.all.discard(process)
                self.warm()
                await self._changed.wait()

    async def give_back(self, process: AnsweringProcess) -> None:
        """It is idle again, or ended."""
        if process.used_bytes > self.process_bytes:
            process.kill()
        if process.alive and not self._closed:
            await self._put(process)
            return
        self.all.discard(process)
        await process.end()
        self.warm()

    def kill(self) -> None:
        """End all of them, for good."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for process in list(self.all):
            process.kill()
        asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """End all of them, and wait until they have."""
        self.kill()
        await asyncio.gather(*self._tasks, *(process.end() for process in self.all), return_exceptions=True)
