"""Workers and batches for them. What no longer answers is ended and kept as a finding; the next worker goes on."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.oracle import where_of

BATCH = 200
"""Cases of a batch: all of one kind."""
WORKER_CASES = 20_000
"""After so many a worker is replaced: what it has cached is not to add up."""
GRACE_S = 10.0
"""CPU time beyond a case's own limit after which nothing in the process can be listening."""
ASLEEP_S = 300.0
"""A case that says nothing for so long waits for something that does not come: cases wait for nobody."""
LOOK_S = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


class Batch(NamedTuple):
    """Cases start .. start + count - 1 of a kind."""

    kind: str
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker says of one case."""

    kind: str
    number: int
    line: dict[str, Any]


def batches(shares: dict[str, int], starts: int = 0) -> Iterator[Batch]:
    """All cases, the kinds in turn, so that every part of a run has all of them."""
    waiting = deque((kind, starts, count) for kind, count in shares.items() if count)
    while waiting:
        kind, start, left = waiting.popleft()
        size = min(BATCH, left)
        yield Batch(kind, start, size)
        if left > size:
            waiting.append((kind, start + size, left - size))


class Worker:
    """A process, the batch that it works on, and how far it is."""

    def __init__(self, folder: Path, seed: int, cpu_s: float) -> None:
        self.folder, self.seed, self.cpu_s = folder, seed, cpu_s
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_suffix(".log")
        self.batch: Batch | None = None
        self.done = 0
        self.total = 0
        self.rest = b""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fuzz.worker", str(folder), str(cpu_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self.heard()

    def heard(self) -> None:
        """It has just said something."""
        self.heard_s, self.cpu_then_s = time.monotonic(), self.used_s()

    def used_s(self) -> float:
        """CPU time of the process so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS

    def give(self, batch: Batch) -> None:
        """Something to do."""
        assert self.process.stdin is not None
        self.batch, self.done = batch, 0
        order = batch._asdict() | {"seed": self.seed}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        self.heard()

    def answers(self) -> Iterator[Told]:
        """What has come since; nothing of a line that is not whole."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            assert self.batch is not None
            yield Told(self.batch.kind, self.batch.start + self.done, json.loads(line))
            self.done += 1
            self.total += 1
        if lines:
            self.heard()

    @property
    def is_idle(self) -> bool:
        """Whether its batch is done."""
        return self.batch is None or self.done == self.batch.count

    @property
    def trouble(self) -> str:
        """How it hangs, if it does."""
        if self.used_s() - self.cpu_then_s > self.cpu_s + GRACE_S + (60 if not self.total else 0):
            return "more CPU time than the limit, and no signal is handled"
        return "no CPU time is used, and there is no end" if time.monotonic() - self.heard_s > ASLEEP_S else ""

    def lost(self, how: str) -> tuple[Told, Batch | None]:
        """The case that it is at as a finding, and what is left of its batch. The process is ended."""
        assert self.batch is not None
        if how:
            self.process.send_signal(signal.SIGUSR1)  # faulthandler writes where it is, from C too
            time.sleep(0.5)
        self.process.kill()
        code = self.process.wait()
        stack = self.log.read_text(encoding="utf-8", errors="replace")[-6000:]
        words = how or f"the process ended with {code}"
        finding = {
            "verdict": "hang" if how else "crash",
            "place": f"worker at {where_of(stack)}",
            "detail": f"{words}\n{stack}",
        }
        told = Told(self.batch.kind, self.batch.start + self.done, {"code": None, "cpu_s": 0.0, "findings": [finding]})
        left = self.batch.count - self.done - 1
        return told, Batch(self.batch.kind, told.number + 1, left) if left else None

    def end(self) -> None:
        """It has nothing more to do."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def run(todo: Sequence[Batch], root: Path, *, jobs: int, seed: int, cpu_s: float) -> Iterator[Told]:
    """Every case of the batches, by so many workers."""
    waiting = deque(todo)
    workers: list[Worker] = []
    count = 0
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(Worker(root / f"worker{count}", seed, cpu_s))
                workers[-1].give(waiting.popleft())
                count += 1
            yield from _heard(workers)
            for worker in list(workers):
                if not worker.is_idle and (worker.process.poll() is not None or worker.trouble):
                    told, left = worker.lost("" if worker.process.poll() is not None else worker.trouble)
                    waiting.extendleft([left] if left else [])
                    workers.remove(worker)
                    yield told
                elif worker.is_idle and (not waiting or worker.total >= WORKER_CASES):
                    worker.end()
                    workers.remove(worker)
                elif worker.is_idle:
                    worker.give(waiting.popleft())
    finally:
        for worker in workers:
            worker.end()


def _heard(workers: Sequence[Worker]) -> Iterator[Told]:
    """What workers say within a second."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        for key, _ in selector.select(LOOK_S):
            yield from key.data.answers()
