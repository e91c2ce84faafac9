"""Many people at once: ``python benchmarks/serve_load.py --users 50 --seconds 300``.

Each user changes a control every few seconds, as people do: one change, or a slider that is dragged, of the Step or the
Scale view; sometimes the chain behind a number, a budget, or a search of plans that runs until it is done or broken
off. The script starts the server, measures from the question to the last byte of the answer, and prints quantiles for
each view, what went wrong, how long searches waited, and the memory of all of the server's processes. Its own work is
on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODELS = ("llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "mixtral-8x7b", "qwen3-14b")
CLUSTERS = ("dgx-h100", "dgx-a100", "dgx-b200", "p5-h100-efa")
DRAG, DRAGGED_S = 5, 0.15
"""Changes of a drag, and the seconds between two of them."""
BREAKS_OFF = 0.3
"""Share of searches that their user breaks off."""


@dataclass(kw_only=True)
class Heard:
    """What all users have heard."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    """Connections that ended without an answer."""
    waited: list[float] = field(default_factory=list)
    """Seconds until a search began."""


class User:
    """One connection and one state."""

    def __init__(self, number: int, port: int, think_s: float, heard: Heard) -> None:
        self.random = random.Random(number)
        self.number, self.port, self.think_s, self.heard = number, port, think_s, heard
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.state: dict[str, Any] = {"model": "llama2-7b", "cluster": "dgx-h100", "gpus": 256, "local_batch": 2}

    async def use(self, until: float) -> None:
        """Act and think, until it is time."""
        while time.monotonic() < until:
            await asyncio.sleep(self.random.expovariate(1 / self.think_s))
            kind = self.random.random()
            if kind < 0.03:
                await self._search()
            elif kind < 0.08:
                await self._ask(
                    "views/budget", {"cluster": self.state["cluster"], "gpus": 512, "days": self.random.uniform(1, 90)}
                )
            elif kind < 0.13:
                await self._ask("why", self.state)
            else:
                view = "views/step" if self.random.random() < 0.6 else "views/scale"
                for _ in range(DRAG if self.random.random() < 0.2 else 1):
                    self._change()
                    await self._ask(view, self.state)
                    await asyncio.sleep(DRAGGED_S)

    def _change(self) -> None:
        r = self.random
        name = r.choice(
            ("model", "cluster", "gpus", "local_batch", "tp", "sharding", "recompute", "profile", "seq_len")
        )
        value = {
            "model": lambda: r.choice(MODELS),
            "cluster": lambda: r.choice(CLUSTERS),
            "gpus": lambda: 2 ** r.randrange(4, 12),
            "local_batch": lambda: r.choice((1, 2, 4)),
            "tp": lambda: r.choice((1, 2, 4, 8)),
            "sharding": lambda: r.choice(("fsdp", "fsdp_no_reshard", "zero1")),
            "recompute": lambda: r.choice(("none", "full")),
            "profile": lambda: r.choice(("eager", "compiled", "fused")),
            "seq_len": lambda: r.choice((2048, 4096, 8192)),
        }[name]()
        self.state = self.state | {name: value}

    async def _ask(self, path: str, body: dict[str, Any]) -> None:
        begun = time.monotonic()
        try:
            status, _ = await self._sent(path, body)
        except (OSError, asyncio.IncompleteReadError):
            self.heard.broken[path] += 1
            self._close()
            return
        self.heard.statuses[path, status] += 1
        if status in (200, 422):
            self.heard.seconds[path].append(time.monotonic() - begun)

    async def _search(self) -> None:
        """A connection of its own, which the user may close."""
        model = self.random.choice(("llama2-7b", "llama2-13b"))
        body = {"kind": "plan", "model": model, "cluster": "dgx-h100", "gpus": 64, "global_batch": 128, "max_cp": 1}
        begun, patience = time.monotonic(), self.random.uniform(1, 20) if self.random.random() < BREAKS_OFF else 600.0
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self._request("searches", body))
            async with asyncio.timeout(patience):
                started = False
                while line := await reader.readline():
                    if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                        self.heard.statuses["searches", int(line[9:12])] += 1
                        return
                    if line.startswith((b"event: progress", b"event: best")) and not started:
                        started = True
                        self.heard.waited.append(time.monotonic() - begun)
                    if line.startswith((b"event: done", b"event: error")):
                        self.heard.statuses["searches", 200 if b"done" in line else 500] += 1
                        self.heard.seconds["searches"].append(time.monotonic() - begun)
                        return
        except TimeoutError:
            self.heard.statuses["searches broken off", 200] += 1
        except OSError:
            self.heard.broken["searches"] += 1
        finally:
            writer.close()

    def _request(self, path: str, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST /api/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}X-Knee-Client: {self.number}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    async def _sent(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        reader, writer = self.streams
        writer.write(self._request(path, body))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        data = await reader.readexactly(length)
        if "connection: close" in head:
            self._close()
        return int(head[9:12]), data

    def _close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def memory_mb(pid: int) -> float:
    """Of a process and its children, shared pages counted once."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    total = 0
    for one in (str(pid), *children):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def cpu_s(pid: int) -> float:
    """Of a process and all that it has started, the ended ones included."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    ticks = 0
    for one in (str(pid), *children):
        try:
            ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def load(port: int, users: int, seconds: float, think_s: float) -> Heard:
    """All users at once."""
    heard = Heard()
    until = time.monotonic() + seconds
    await asyncio.gather(*(User(i, port, think_s, heard).use(until) for i in range(users)))
    return heard


def main() -> None:
    """Start a server, load it, and say what was heard."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--think", type=float, default=3.0, help="mean seconds between two actions of a user")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "knee", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().strip().rpartition(":")[2].strip("/"))
        asyncio.run(load(port, 8, 10.0, 0.2))  # processes have read what they read once
        before, cpu = memory_mb(server.pid), cpu_s(server.pid)
        heard = asyncio.run(load(port, asked.users, asked.seconds, asked.think))
        after = memory_mb(server.pid)
        print(
            f"{asked.users} users, {asked.seconds:g} s, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
        )
        print(f"{'view':22}{'answers':>9}{'p50':>9}{'p95':>9}{'p99':>9}{'most':>9}")
        for view, values in sorted(heard.seconds.items()):
            shown = "".join(f"{1e3 * quantile(values, share):7.0f}ms" for share in (0.5, 0.95, 0.99, 1.0))
            print(f"{view:22}{len(values):9}{shown}")
        print("statuses:", {f"{view} {status}": n for (view, status), n in sorted(heard.statuses.items())})
        print("connections without an answer:", dict(heard.broken))
        if heard.waited:
            waits = ", ".join(
                f"p{int(100 * share)} {quantile(heard.waited, share):.1f} s" for share in (0.5, 0.95, 1.0)
            )
            print(f"searches that began: {len(heard.waited)}, after {waits}")
        used = cpu_s(server.pid) - cpu
        print(f"memory: {before:.0f} MB before, {after:.0f} MB after")
        print(f"CPU of the server: {used:.0f} s, {used / asked.seconds:.2f} cores")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
