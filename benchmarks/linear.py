"""Whether reading a trace stays linear where its times are written in every way that JSON has.

    python benchmarks/linear.py [--events 20000] [--times 1 10]

Times have 0, 1, 2, 3 or 6 decimals, exponents and quotes, mixed in one file, as by writers that drop trailing zeros.
The whole answer of `knee trace` counts, in CPU time of this process, the least of three; the file is made before.
"""

from __future__ import annotations

import argparse
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from knee.measure.traces import analyse
from knee.measure.traces.plain_data import as_json

MOST = 1.2
"""Ten times the events may take so much more than ten times as long."""
FIRST_US = 1_700_000_000_000_000
STREAMS = {7: "gemm", 20: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
KERNELS_OF_A_STEP = 500


def written(time_ns: int, rng: random.Random, *, plainly: bool = False) -> str:
    """A time in microseconds, in one of the ways to write it."""
    whole, rest = divmod(time_ns, 1000)
    plain = f"{whole}.{rest:03d}"
    return (
        plain
        if plainly
        else rng.choice((plain, plain.rstrip("0").rstrip("."), f"{plain}000", f'"{plain}"', f"{time_ns}e-3"))
    )


def events(count: int) -> Iterator[str]:
    """Steps, and kernels with their launches, on two streams that overlap."""
    rng, at = random.Random(1), FIRST_US * 1000
    for i in range(count // 2):
        at, length, stream = at + rng.choice((0, 500, 1000, 12_340)), rng.randrange(1, 40_000), rng.choice((7, 7, 20))
        plainly = i % 200 < 150  # many with three decimals in a row: what once never ended
        yield (
            f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, '
            f'"ts": {written(at - 9000, rng)}, "dur": 2, "args": {{"correlation": {i}}}}}'
        )
        yield (
            f'{{"ph": "X", "cat": "kernel", "name": "{STREAMS[stream]}", "pid": 0, "tid": {stream}, '
            f'"ts": {written(at, rng, plainly=plainly)}, "dur": {written(length, rng, plainly=plainly)}, '
            f'"args": {{"device": 0, "stream": {stream}, "correlation": {i}}}}}'
        )
        if i % KERNELS_OF_A_STEP == 0:
            yield (
                f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{i}", "pid": 1, "tid": 1, '
                f'"ts": {written(at - 10_000, rng)}, "dur": {KERNELS_OF_A_STEP * 3}, "args": {{}}}}'
            )


def write_trace(path: Path, count: int) -> None:
    """A trace of about so many events."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [{}')
        file.writelines(f",\n{event}" for event in events(count))
        file.write("\n]}\n")


def cpu_s(path: Path) -> float:
    """The least of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        as_json(analyse(path, cache=False))
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="of the smallest trace")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10], help="how many times as many")
    asked = parser.parse_args()
    print(f"mixed decimals, exponents and quotes; {platform.machine()}, Python {platform.python_version()}\n")
    print(f"{'events':>12} {'MB':>8} {'CPU s':>8} {'us/event':>9}  over the one before")
    before: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for times in asked.times:
            path, count = Path(folder) / "rank0.json", asked.events * times
            write_trace(path, count)
            took = cpu_s(path)
            ratio, allowed = (took / before[1], MOST * count / before[0]) if before else (0.0, 0.0)
            said = f"{ratio:.1f} times ({'within' if ratio <= allowed else 'ABOVE'} {allowed:.0f})" if before else ""
            print(f"{count:12,} {path.stat().st_size / 1e6:8.1f} {took:8.3f} {took / count * 1e6:9.2f}  {said}")
            before = count, took


if __name__ == "__main__":
    main()
