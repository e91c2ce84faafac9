"""How fast a trace is read: knee against the floor of reading it at all and against HolisticTraceAnalysis.

    python benchmarks/trace.py [--runs 3] [--trace FILE]

Every tool runs in a fresh process of its own, one after the other, and the whole of that process counts: interpreter,
imports, reading and the answer. "Work" is what is left without interpreter and imports, by the process's own clock; the
floor is about that work, since any tool of Python starts an interpreter. The best of the runs is shown. Ratios are what
counts: they were taken in the same minutes on the same machine. The trace is a real one (V100, 54 MB unpacked, 216,092
events) that is not part of knee.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

SHARED = Path(__file__).parents[2] / "shared" / "traces" / "hta_v100_2rank_rank1_large.json.gz"
COPIES = 10
BARS = {
    "faster than HTA": 13.0,
    "of HTA's memory": 1 / 3,
    "of the floor": 2.5,
    "ten copies, MB": 109.0,
    "ten copies, CPU": 1.2 * COPIES,
}
"""What knee promises. Ten copies may take a little more CPU than ten times one: that is linear."""

FLOOR = """
import sys, time, zlib
start = time.perf_counter()
zlib.decompress(open(sys.argv[1], "rb").read(), 31).count(b'"kernel"')
print(time.perf_counter() - start)
"""
KNEE = """
import json, sys, time
from knee.trace import analyse
from knee.trace.plain_data import as_json
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


class Cost(NamedTuple):
    """Of one whole process."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    work_s: float
    """Without interpreter and imports."""


def cost(program: str, *arguments: str, env: dict[str, str], runs: int) -> Cost:
    """The best of some runs, after one that fills the caches of disk and bytecode."""
    costs = [_once([sys.executable, "-c", program, *arguments], env) for _ in range(runs + 1)][1:]
    return Cost(
        min(c.wall_s for c in costs),
        min(c.cpu_s for c in costs),
        max(c.peak_mb for c in costs),
        min(c.work_s for c in costs),
    )


def _once(command: list[str], env: dict[str, str]) -> Cost:
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    said = process.stdout.read().split()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:2])
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, float(said[-1]) if said else 0.0)


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each tool; the best counts")
    parser.add_argument("--trace", type=Path, default=SHARED, help="a .json.gz of torch.profiler")
    parser.add_argument("--ten", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ten:
        ten_times(asked.trace, asked.ten)
        return
    if not asked.trace.exists():
        print(f"{asked.trace} is not here; nothing was measured")
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(asked.trace, asked.runs, Path(folder))


def measure(trace: Path, runs: int, folder: Path) -> None:
    """All tools on one trace, and knee on ten of it."""
    # compiled modules as after an installation, and a cache of traces that starts empty
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    print(
        f"{trace.name}, {trace.stat().st_size / 1e6:.1f} MB packed; {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, NumPy {np.__version__}; best of {runs}, whole processes\n"
    )
    found = {
        "floor: read, gunzip, one scan": cost(FLOOR, str(trace), env=env, runs=runs),
        "import numpy": cost("import numpy", env=env, runs=runs),
        "knee, full answer": cost(KNEE, str(trace), "fresh", env=env, runs=runs),
        "knee, second look": cost(KNEE, str(trace), "cache", env=env, runs=runs),
    }
    floor, knee = found["floor: read, gunzip, one scan"], found["knee, full answer"]
    if importlib.util.find_spec("hta") is None:
        print("HolisticTraceAnalysis is not installed; it is left out")
    else:
        found["HTA, three tables"] = cost(HTA, str(trace), env=env, runs=runs)
    print(f"{'':<32}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'x floor':>9}{'x knee':>8}{'work s':>8}{'x floor':>9}")
    for name, one in found.items():
        print(
            f"{name:<32}{one.wall_s:>8.2f}{one.cpu_s:>8.2f}{one.peak_mb:>9.0f}{one.wall_s / floor.wall_s:>9.1f}"
            f"{one.wall_s / knee.wall_s:>8.1f}{one.work_s:>8.2f}{one.work_s / floor.work_s:>9.1f}"
        )
    large = folder / "ten.json.gz"
    # in a process of its own: the peak of a process that starts others is passed on to them
    subprocess.run([sys.executable, __file__, "--trace", str(trace), "--ten", str(large)], check=True)
    again = cost(KNEE, str(trace), "fresh", env=env, runs=runs)  # once more: the same minute counts
    ten = cost(KNEE, str(large), "fresh", env=env, runs=1)
    ten_floor = cost(FLOOR, str(large), env=env, runs=1)
    print(
        f"{'knee, ten copies in one file':<32}{ten.wall_s:>8.2f}{ten.cpu_s:>8.2f}{ten.peak_mb:>9.0f}"
        f"{ten.wall_s / ten_floor.wall_s:>9.1f}{ten.wall_s / again.wall_s:>8.1f}{ten.work_s:>8.2f}"
        f"{ten.work_s / ten_floor.work_s:>9.1f}"
    )
    print(f"{'floor, the same':<32}{ten_floor.wall_s:>8.2f}{ten_floor.cpu_s:>8.2f}{ten_floor.peak_mb:>9.0f}\n")
    reached = {
        "of the floor": knee.work_s / floor.work_s,
        "ten copies, MB": ten.peak_mb,
        "ten copies, CPU": ten.cpu_s / again.cpu_s,
    }
    hta = found.get("HTA, three tables")
    if hta is not None:
        reached |= {"faster than HTA": hta.wall_s / knee.wall_s, "of HTA's memory": knee.peak_mb / hta.peak_mb}
    for name, value in reached.items():
        bar = BARS[name]
        met = value >= bar if name == "faster than HTA" else value <= bar
        sign = ">=" if name == "faster than HTA" else "<="
        print(f"{name:<20}{value:>8.2f}   {'met' if met else 'MISSED'}: {sign} {bar:.2f}")


if __name__ == "__main__":
    main()
