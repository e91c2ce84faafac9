"""Ends commands by SIGINT and SIGTERM at random moments, and looks at what is left.

    python tools/kill_commands.py [--cases N] [--seed S]

Moments are shares of the processor time that the whole command takes, so that a busy machine does not change them; some
come before the command hears signals, some get a second signal at once. Every command is started as a background job
of a shell is: SIGINT is ignored by its parent. What is wrong is printed, and counted:

* an exit code other than 130 or 143, or the command's own where it was over by then;
* a traceback, or an error;
* a file that was asked for and is neither absent nor as it should be; a file that was not asked for;
* a process of the command's session, or one of those that it started, that still runs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SAFETY_S = 60.0
SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
ASK = ("llama2-7b", "--cluster", "dgx-h100", "--local-batch", "2", "--gpus")
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": ("simulate", *ASK, "64", "--trace", "step.json.gz"),
    "trace": ("trace", "traces/rank0.json", "--no-cache", "--html", "page.html", "--perfetto", "small.json"),
    "trace-parallel": ("trace", "traces", "--json"),
    "scale": ("scale", *ASK, "8..64", "--plot", "scale.svg"),
    "plan": ("plan", *ASK, "16", "--json"),
    "catalog": ("catalog",),
}


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A command that was let go to its end."""

    code: int
    cpu_s: float
    files: frozenset[str]


class Bench:
    """A folder with what the commands read, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(SOURCES)}
        for name in ("TMPDIR", "XDG_CACHE_HOME"):
            (folder / name).mkdir()
            self.environment[name] = str(folder / name)
        (folder / "traces").mkdir()
        make = (*ASK, "64", "--local-batch", "14", "--pp", "4", "--micro-batch", "1", "--trace", "traces/t.json")
        subprocess.run(
            self.words(("simulate", *make)), cwd=folder, env=self.environment, check=True, capture_output=True
        )
        for number, path in enumerate(sorted((folder / "traces").iterdir())):
            path.rename(path.with_name(f"rank{number}.json"))
        self.given = frozenset(self.files())

    def words(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "knee", *words]

    def files(self) -> set[str]:
        """All there are, caches apart; half of an entry of the cache counts."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in found if path.suffix != ".npz"}

    def whole(self, words: Sequence[str]) -> Whole:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            self.words(words), cwd=self.folder, env=self.environment, capture_output=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = frozenset(self.files() - self.given)
        self.clear()
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Whole(code=done.returncode, cpu_s=cpu_s, files=files)

    def clear(self) -> None:
        for name in self.files() - self.given:
            (self.folder / name).unlink()
        shutil.rmtree(self.folder / "XDG_CACHE_HOME")
        (self.folder / "XDG_CACHE_HOME").mkdir()

    def killed(self, words: Sequence[str], whole: Whole, at: float, numbers: Sequence[int]) -> tuple[str, list[str]]:
        """When it was ended, and what is wrong with how it ended."""
        with tempfile.TemporaryFile("w+") as said:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            process = subprocess.Popen(
                self.words(words),
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
            signal.signal(signal.SIGINT, before)
            running = wait_for_cpu(process, at * whole.cpu_s)
            when = "over" if not running else "listening" if listens(process.pid) else "before it listens"
            started = descendants(process.pid) if running else []
            for number in numbers if running else ():
                process.send_signal(number)
            try:
                code = process.wait(SAFETY_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return when, ["it hangs"]
            said.seek(0)
            wrong = self._wrong(when, code, said.read(), whole, numbers)
        left = [pid for pid in started if not gone(pid)]
        return when, wrong + [f"process {pid} still runs" for pid in left]

    def _wrong(self, when: str, code: int, said: str, whole: Whole, numbers: Sequence[int]) -> list[str]:
        wrong = []
        allowed = {whole.code} | {128 + number for number in numbers}  # of two at once either may come first
        if (
            when == "before it listens"
        ):  # by the system, which shells tell as 128 + number too; Python's own start is Python's
            allowed |= {-number for number in numbers}
        if code not in allowed:
            wrong.append(f"exit code {code}")
        if "Traceback" in said and not (when == "before it listens" and "knee" not in said):
            wrong.append(f"a traceback: {said[-300:]!r}")
        if "error:" in said or "Exception ignored" in said:
            wrong.append(f"said {said[-300:]!r}")
        if others := self.files() - self.given - whole.files:
            wrong.append(f"left {sorted(others)}")
        names = (self.files() - self.given) & whole.files
        wrong += [f"{name} is not whole" for name in names if not is_whole(self.folder / name)]
        self.clear()
        return wrong


def wait_for_cpu(process: subprocess.Popen[bytes], cpu_s: float) -> bool:
    """Until it has used so much; False where it has ended by then."""
    while process.poll() is None:
        if sum(map(used_s, (process.pid, *descendants(process.pid)))) >= cpu_s:
            return process.poll() is None
        time.sleep(0.002)
    return False


def used_s(pid: int) -> float:
    """Processor time of a process, and of those it has waited for."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) * TICK_S
    except OSError:
        return 0.0


def listens(pid: int) -> bool:
    """Whether SIGTERM is handled."""
    try:
        line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return bool(int(line.split()[1], 16) & SIGTERM_BIT)


def descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def gone(pid: int) -> bool:
    """Whether a process has ended, or does within the safety limit."""
    limit_s = time.monotonic() + SAFETY_S
    while time.monotonic() < limit_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def is_whole(path: Path) -> bool:
    """By its end."""
    if path.name.endswith(".gz"):
        import gzip
        import json

        return bool(json.loads(gzip.decompress(path.read_bytes())))
    ends = {".html": "</html>", ".svg": "</svg>", ".json": "}", ".csv": ""}
    return path.read_text().rstrip().endswith(ends[path.suffix])


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(COMMANDS))
    asked = parser.parse_args()
    draw, when, found = random.Random(asked.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        names = asked.only.split(",")
        whole = {name: bench.whole(COMMANDS[name]) for name in names}
        for name, one in whole.items():
            print(f"{name}: code {one.code}, {one.cpu_s:.2f} CPU s, writes {sorted(one.files)}", flush=True)
        for case in range(asked.cases):
            name = names[case % len(names)]
            number = draw.choice((signal.SIGINT, signal.SIGTERM))
            numbers = [number, draw.choice((signal.SIGINT, signal.SIGTERM))] if draw.random() < 0.2 else [number]
            at = draw.random() if draw.random() < 0.8 else draw.random() * 0.1
            moment, wrong = bench.killed(COMMANDS[name], whole[name], at, numbers)
            when[f"{moment}{', twice' if len(numbers) > 1 and moment != 'over' else ''}"] += 1
            found += bool(wrong)
            for words in wrong:
                print(f"case {case}: {name} at {at:.1%} by {[n.name for n in numbers]}, {moment}: {words}", flush=True)
            if case % 50 == 49 or case == asked.cases - 1:
                print(f"{case + 1} cases: {dict(when)}; {found} wrong", flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
