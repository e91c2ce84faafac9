"""How fast a trace is read: knee beside the floor of reading it at all, and beside HolisticTraceAnalysis.

    python benchmarks/trace.py [--runs 3] [--trace FILE]

Every tool runs in a new process of its own, one after the other. Wall time is that of the whole process: interpreter,
imports, reading and the answer. "Work" leaves out interpreter and imports, by the process's own clock; the floor is
about that work, since any tool of Python starts an interpreter. The best of the runs counts. The trace is a real one
(V100, 54 MB unpacked, 216,092 events) that is not part of knee.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
from figures import Compared, Figure, main
from processes import Cost, cost, fresh_environment

SHARED = Path(__file__).parents[2] / "shared" / "traces" / "hta_v100_2rank_rank1_large.json.gz"
COPIES = 10
AIMS = {"floor": 2.0, "hta": 18.0, "ten_mb": 109.0}
"""Times the floor; times as fast as HTA; MB for ten copies."""

FLOOR = """
import sys, time, zlib
start = time.perf_counter()
zlib.decompress(open(sys.argv[1], "rb").read(), 31).count(b'"kernel"')
print(time.perf_counter() - start)
"""
KNEE = """
import json, sys, time
from knee.measure.traces import analyse
from knee.measure.traces.plain_data import as_json
start = time.perf_counter()
json.dumps(as_json(analyse(sys.argv[1], cache=sys.argv[2] == "cache")))
print(time.perf_counter() - start)
"""
HTA = """
import sys, time, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
found = TraceAnalysis(trace_files={1: sys.argv[1]}, trace_dir="")
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
print(time.perf_counter() - start)
"""


def ten_times(source: Path, target: Path) -> None:
    """One job ten times as long: every copy later, with correlations and steps of its own."""
    text = gzip.decompress(source.read_bytes())
    first = text.index(b"[", text.index(b'"traceEvents"')) + 1
    last = text.rindex(b"]")
    head, events, tail = text[:first], text[first:last], text[last:]
    times = [int(at) for at in re.findall(rb'"ts": (\d+)', events)]
    longest = max(times) - min(times) + 1_000_000
    number = re.compile(rb'("ts": |"correlation": |"External id": |"id": |ProfilerStep#)(\d+)')
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.write(head)
        for copy in range(COPIES):
            add = {b'"ts": ': copy * longest, b"ProfilerStep#": copy * 1000}

            def shifted(found: re.Match[bytes], add: dict[bytes, int] = add, copy: int = copy) -> bytes:
                return found[1] + b"%d" % (int(found[2]) + add.get(found[1], copy * 100_000_000))

            file.write((b"," if copy else b"") + number.sub(shifted, events))
        file.write(tail)


class Tool:
    """A program and its best runs."""

    def __init__(self, program: str, *arguments: str, env: dict[str, str], runs: int, python: str = sys.executable):
        # one more, which fills the caches of disk and bytecode
        self.costs = [cost([python, "-c", program, *arguments], env) for _ in range(runs + 1)][1:]

    @property
    def wall_s(self) -> float:
        return min(one.wall_s for one in self.costs)

    @property
    def cpu_s(self) -> float:
        return min(one.cpu_s for one in self.costs)

    @property
    def work_s(self) -> float:
        """Without interpreter and imports."""
        return min(_work_s(one) for one in self.costs)

    @property
    def peak_mb(self) -> float:
        return max(one.peak_mb for one in self.costs)


def _work_s(one: Cost) -> float:
    return float(one.printed.split()[-1])


def figures(runs: int = 3, trace: Path = SHARED, ten: Path | None = None) -> list[Figure]:
    """All tools on one trace, and knee on ten copies of it."""
    if ten is not None:
        ten_times(trace, ten)
        raise SystemExit
    if not trace.exists():
        print(f"trace: {trace} is not here; give one with --trace", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, fresh_environment() as env:
        return _measured(trace, runs, Path(folder) / "ten.json.gz", env)


def _measured(trace: Path, runs: int, large: Path, env: dict[str, str]) -> list[Figure]:
    # in a process of its own: the peak of a process that starts others is passed on to them
    subprocess.run([sys.executable, __file__, "--trace", trace, "--ten", large], check=True)
    floor = Tool(FLOOR, str(trace), env=env, runs=runs)
    once = Tool(KNEE, str(trace), "fresh", env=env, runs=runs)
    again = Tool(KNEE, str(trace), "cache", env=env, runs=runs)
    ten = Tool(KNEE, str(large), "fresh", env=env, runs=1)
    hta = None
    if peers.can_import("hta"):
        hta = Tool(HTA, str(trace), env=peers.environment(), runs=runs, python=str(peers.PYTHON))
    least = Compared(name="read, gunzip, scan", value=floor.work_s, kind="floor")
    other_s = Compared(name=peers.HTA, value=hta.wall_s if hta else None)
    other_cpu_s = Compared(name=peers.HTA, value=hta.cpu_s if hta else None)
    other_mb = Compared(name=peers.HTA, value=hta.peak_mb if hta else None)
    one_mb = Compared(name="one copy", value=once.peak_mb, kind="floor")
    name = "trace, 54 MB" if trace.name == SHARED.name else f"trace, {trace.name}"
    return [
        Figure(name=f"{name}: work", value=once.work_s, unit="s", aim=AIMS["floor"], aim_of="ratio", compared=least),
        Figure(name=f"{name}, from the cache: work", value=again.work_s, unit="s", compared=least),
        Figure(name=f"{name}: wall", value=once.wall_s, unit="s", aim=AIMS["hta"], aim_of="ratio", compared=other_s),
        Figure(name=f"{name}: CPU", value=once.cpu_s, unit="s", compared=other_cpu_s),
        Figure(name=f"{name}: memory", value=once.peak_mb, unit="MB", compared=other_mb),
        Figure(name=f"{name}, ten copies: memory", value=ten.peak_mb, unit="MB", aim=AIMS["ten_mb"], compared=one_mb),
    ]


if __name__ == "__main__":
    main(
        "trace",
        __doc__,
        figures,
        runs={"type": int, "default": 3, "help": "of each tool; the best counts"},
        trace={"type": Path, "default": SHARED, "help": "a .json.gz of torch.profiler"},
        ten={"type": Path, "help": "only write ten copies of the trace to this file"},
    )
