"""How knee takes large inputs: wall clock, CPU and peak memory of whole processes, beside an input a tenth the size.

    python benchmarks/large_inputs.py [--scale 0.1] [--only trace,ranks,runs,bandwidths,calibrate,study,sweep]

At scale 1 that is a trace of 2 GB in one file, 1,000 rank files, 10^6 rows of runs and of bandwidths, 1,000 rows to
calibrate on, a study of 10^5 points and a sweep of 10^4 runs. Inputs are made in a temporary folder (2.5 GB of it at
scale 1) and deleted as soon as they have been read. Ten times the input should take about ten times the CPU; peak
memory is that of the largest process of the command.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

TENTH = 0.1
TRACE_BYTES, RANKS, RANK_BYTES, ROWS, FIT_ROWS, POINTS, RUNS = 2e9, 1000, 5e5, 10**6, 1000, 10**5, 10**4
"""Sizes at scale 1."""
KERNELS = ("gemm_bf16_128x128", "flash_fwd_kernel", "vectorized_elementwise_kernel", "layer_norm_kernel")
FINE = (0, 3, 5, 130)
"""Exit codes: answered, or interrupted as it was meant to be."""
LAYERS = 50
"""Of a step of the trace: each with its operators, launches, kernels and one collective."""


class Cost(NamedTuple):
    """Of one whole process and its children."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    code: int
    lines: int
    """On stderr: progress among them."""


def once(words: list[str], folder: Path, until: bytes | None = None) -> Cost:
    """Run knee as a user would; as one who presses Ctrl-C once stderr has ``until``, where that is given."""
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    start = time.perf_counter()
    with (folder / "stderr").open("wb") as errors, (folder / "stdout").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "knee", *words], env=env, stdout=out, stderr=subprocess.PIPE)
        assert process.stderr is not None
        for line in process.stderr:
            errors.write(line)
            if until is not None and until in line:
                process.send_signal(signal.SIGINT)
                until = None
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = (folder / "stderr").read_bytes()
    if process.returncode not in FINE:
        print(said[-600:].decode(errors="replace"))
    return Cost(
        time.perf_counter() - start,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        process.returncode,
        said.count(b"\n") + said.count(b"\r"),
    )


# ---- inputs ---------------------------------------------------------------------------------------------------------


def step_events(step: int, rank: int, world: int, rng: random.Random) -> Iterator[str]:
    """One profiler step as torch.profiler writes it, about 1,900 events."""
    at, link = 1_700_000_000_000_000.0 + step * 60_000.0, step * 10_000
    track = f'"pid": {4000 + rank}, "tid": {4000 + rank}'
    yield (
        f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", {track}, "ts": {at:.3f}, '
        f'"dur": 59000.125}}'
    )
    device = at + 500.0
    for layer in range(LAYERS):
        for k, name in enumerate(KERNELS * 2):
            link += 1
            at += 40.001
            for op in ("aten::linear", "aten::addmm"):
                yield (
                    f'{{"ph": "X", "cat": "cpu_op", "name": "{op}", {track}, "ts": {at:.3f}, "dur": 31.017, '
                    f'"args": {{"External id": {link}, "Record function id": 0, "Sequence number": {link}, '
                    f'"Fwd thread id": 0, "Ev Idx": {link}}}}}'
                )
            yield (
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {track}, "ts": {at + 9:.3f}, '
                f'"dur": 7.2, "args": {{"External id": {link}, "cbid": 211, "correlation": {link}}}}}'
            )
            lasts = rng.randint(20_000, 90_000) / 1000
            yield (
                f'{{"ph": "X", "cat": "kernel", "name": "void {name}<{k}, {layer % 4}>(float*, int)", "pid": 0, '
                f'"tid": 7, "ts": {device:.3f}, "dur": {lasts:.3f}, "args": {{"External id": {link}, "device": 0, '
                f'"context": 1, "stream": 7, "correlation": {link}, "registers per thread": 168, '
                f'"grid": [128, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 25}}}}'
            )
            device += lasts + 1.5
        link += 1
        yield (
            f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {track}, "ts": {at + 20:.3f}, "dur": '
            f'7.211, "args": {{"External id": {link}, "cbid": 211, "correlation": {link}}}}}'
        )
        yield (
            f'{{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", '
            f'"pid": 0, "tid": 20, "ts": {device - 200:.3f}, "dur": {rng.randint(100_000, 300_000) / 1000:.3f}, '
            f'"args": {{"External id": {link}, "device": 0, "stream": 20, "correlation": {link}, "Collective name": '
            f'"_allgather_base", "In msg nelems": 1048576, "Out msg nelems": 8388608, "Group size": {world}, '
            f'"dtype": '
            f'"BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg", '
            f'"Process Group Ranks": "{list(range(world))}"}}}}'
        )


def write_trace(path: Path, size: float, rank: int = 0, world: int = 8) -> None:
    """A trace of about that many bytes; every line is an event of its own."""
    rng = random.Random(rank)
    with path.open("w", encoding="utf-8") as file:
        file.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], '
            f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world}}}, '
            '"traceEvents": [\n'
        )
        step = 0
        while file.tell() < size:
            file.write((",\n" if step else "") + ",\n".join(step_events(step, rank, world, rng)))
            step += 1
        file.write("\n]}\n")


def write_runs(path: Path, rows: int) -> None:
    """Runs of 12 models on three kinds of GPU, few of them alike; one in fifty cannot be used, each for its reason."""
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        file.write(
            "id,source,model,layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,micro_batch,tp,pp,sharding,"
            "recompute,tokens_per_s_per_gpu,memory_gib,note\n"
        )
        for i in range(rows):
            layers, hidden, heads = rng.choice([(32, 4096, 32), (40, 5120, 40), (24, 2048, 16), (80, 8192, 64)])
            tp, pp, gpus = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4]), rng.choice([64, 128, 256, 512])
            micro, times = rng.choice([1, 2, 4]), rng.randint(1, 64)
            batch = gpus // (tp * pp) * micro * times
            rate = f"-{i}" if i % 50 == 0 else f"{rng.uniform(500, 9000):.1f}"
            gpu = rng.choice(["h100", "a100", "h200"])
            file.write(
                f"r{i},source{i % 2000},m{hidden},{layers},{hidden},{heads},{gpu},"
                f"{gpus},{rng.choice([2048, 4096, 8192])},{batch},{micro},{tp},{pp},fsdp,"
                f"{rng.choice(['none', 'full'])},{rate},{rng.uniform(20, 79):.1f},note {i % 977}\n"
            )


def write_bandwidths(path: Path, rows: int) -> None:
    """Readings of collectives, few of them alike."""
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        file.write("source,gpu,n_gpus,collective,bytes,busbw_GBps\n")
        for i in range(rows):
            file.write(
                f"s{i % 2000},{rng.choice(['h100', 'a100'])},{rng.choice([8, 16, 64, 256])},"
                f"{rng.choice(['all_reduce', 'all_gather'])},{rng.randint(2**20, 2**33)},"
                f"{rng.uniform(5, 400):.2f}\n"
            )


def write_grid(path: Path, points: int) -> None:
    """A grid of so many points, a multiple of 40: sequences grow, and every plan is possible."""
    lengths = ", ".join(str(512 + 8 * i) for i in range(points // 40))
    path.write_text(
        'model = "llama-tiny"\ncluster = "dgx-h100"\nprofile = "knee"\ngpus = [8, 16]\nlocal_batch = [1, 2, 4, 8]\n'
        f'seq_len = [{lengths}]\n[plan]\nsharding = ["fsdp", "ddp", "zero1", "fsdp_no_reshard", "hsdp"]\n'
        '[[draw]]\ntitle = "all"\nmark = "line"\nx = "seq_len"\ny = "tokens_per_s"\n',
        encoding="utf-8",
    )


# ---- measuring ------------------------------------------------------------------------------------------------------


def trace(scale: float, folder: Path) -> dict[str, Cost]:
    """One file."""
    path = folder / "trace.json"
    write_trace(path, TRACE_BYTES * scale)
    return {f"trace of {path.stat().st_size / 1e6:,.0f} MB": once(["trace", str(path), "--no-cache"], folder)}


def ranks(scale: float, folder: Path) -> dict[str, Cost]:
    """Many files."""
    inside = folder / "traces"
    inside.mkdir()
    count = max(2, int(RANKS * scale))
    for rank in range(count):
        write_trace(inside / f"rank{rank}.json", RANK_BYTES, rank, count)
    page = ["--html", str(folder / "page.html")]
    return {
        f"{count:,} ranks": once(["trace", str(inside), "--no-cache"], folder),
        f"{count:,} ranks, with a page": once(["trace", str(inside), "--no-cache", *page], folder),
    }


def runs(scale: float, folder: Path) -> dict[str, Cost]:
    """validate."""
    path, count = folder / "runs.csv", int(ROWS * scale)
    write_runs(path, count)
    return {f"validate, {count:,} rows": once(["validate", str(path), "--rows", str(folder / "rows.csv")], folder)}


def bandwidths(scale: float, folder: Path) -> dict[str, Cost]:
    """validate of bandwidths."""
    path, count = folder / "bandwidths.csv", int(ROWS * scale)
    write_bandwidths(path, count)
    return {f"validate, {count:,} bandwidths": once(["validate", str(path)], folder)}


def calibrate(scale: float, folder: Path) -> dict[str, Cost]:
    """calibrate."""
    path, count = folder / "runs.csv", int(FIT_ROWS * scale)
    write_runs(path, count)
    words = ["calibrate", str(path), "--profile", "eager", "-o", str(folder / "mine.toml")]
    return {f"calibrate, {count:,} rows": once(words, folder)}


def study(scale: float, folder: Path) -> dict[str, Cost]:
    """Fresh, again from its records, and its page."""
    path, count = folder / "mine.toml", int(POINTS * scale)
    write_grid(path, count)
    words = ["study", "run", str(path), "--out", str(folder / "out")]
    return {
        f"study, {count:,} points": once([*words, "--no-page"], folder),
        f"study again, {count:,} points": once([*words, "--no-page"], folder),
        f"study with a page, {count:,} points": once(words, folder),
    }


def sweep(scale: float, folder: Path) -> dict[str, Cost]:
    """Planned; written and interrupted at its first run; shown; gone on with, and interrupted; cancelled."""
    path, count, out = folder / "grid.toml", int(RUNS * scale), str(folder / "sweep")
    write_grid(path, count)
    words = ["sweep", str(path), "--out", out, "--program", "sleep 600"]
    return {
        f"sweep --dry-run, {count:,} runs": once([*words, "--dry-run"], folder),
        "  started": once(words, folder, until=b": running"),
        "  status": once(["sweep", "status", out], folder),
        "  status --json": once(["sweep", "status", out, "--json"], folder),
        "  gone on with": once(words, folder, until=b": running"),
        "  cancel": once(["sweep", "cancel", out], folder),
        "  retry": once(["sweep", "retry", out, "--status", "cancelled"], folder, until=b": running"),
    }


PARTS: dict[str, Callable[[float, Path], dict[str, Cost]]] = {
    "trace": trace,
    "ranks": ranks,
    "runs": runs,
    "bandwidths": bandwidths,
    "calibrate": calibrate,
    "study": study,
    "sweep": sweep,
}


def main() -> None:
    """Print a table, a line a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by commas")
    asked = parser.parse_args()
    print(f"{'':<44}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'x CPU':>7}{'x MB':>7}{'code':>6}{'stderr':>8}")
    for name in asked.only.split(","):
        before: list[Cost] = []
        for scale in (asked.scale * TENTH, asked.scale):
            folder = Path(tempfile.mkdtemp(prefix="knee-large-"))
            try:
                found = PARTS[name](scale, folder)
            finally:
                shutil.rmtree(folder)
            for i, (what, cost) in enumerate(found.items()):
                times = (
                    f"{cost.cpu_s / before[i].cpu_s:>7.1f}{cost.peak_mb / before[i].peak_mb:>7.1f}"
                    if before
                    else f"{'':>14}"
                )
                print(
                    f"{what:<44}{cost.wall_s:>9.1f}{cost.cpu_s:>9.1f}{cost.peak_mb:>9.0f}{times}{cost.code:>6}"
                    f"{cost.lines:>8}",
                    flush=True,
                )
            before = list(found.values())


if __name__ == "__main__":
    main()
