"""How fast the engine is: plans per CPU-second on a realistic mix, one job, and a million plans in bounded memory.

    python benchmarks/engine.py [--plans 1000000]

Peers' rates were measured on the same kind of machine (two shared cores), one configuration at a time.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import knee
from knee.errors import SpecError
from knee.simulator import CHUNK
from knee.specs.plan import RECOMPUTES, SHARDINGS

CASES = (("llama2-7b", 256, 512), ("llama2-70b", 1024, 1024), ("llama3-405b", 16384, 2048))
"""Model, GPUs, global batch."""
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zero_bubble", 1))
PEERS = (("llm-analysis", 1706), ("Calculon", 32), ("SimuMax", 12))
"""Configurations per CPU-second."""
BAR = 60_000
"""Plans per CPU-second that knee promises."""


def mixed_plans(gpus: int) -> Iterator[knee.Plan]:
    """FSDP, TP, PP and CP in every combination that is a plan at all."""
    axes = itertools.product(
        (1, 2, 4, 8, 16), (1, 2, 4, 8, 16), (1, 2, 4), SHARDINGS, (1, 2, 4, 8), SCHEDULES, (1, 2, 4), RECOMPUTES
    )
    for tp, pp, cp, sharding, copies, (schedule, virtual), micro_batch, recompute in axes:
        rest = gpus // (tp * pp * cp * copies)
        if rest == 0 or (pp == 1 and schedule != "1f1b"):
            continue
        shard, replicas = (1, rest * copies) if sharding == "ddp" else (rest, copies)
        try:
            yield knee.Plan(
                tp=tp,
                pp=pp,
                cp=cp,
                dp_shard=shard,
                dp_replicate=replicas,
                sharding=sharding,
                schedule=schedule,
                virtual_stages=virtual,
                micro_batch=micro_batch,
                recompute=recompute,
            )
        except SpecError:
            continue


def mixed_jobs(
    model: knee.Model, cluster: knee.Cluster, profile: knee.Profile, gpus: int, batch: int
) -> list[knee.Job]:
    """The mix for one model, in an order that no cache could have chosen."""
    jobs = []
    for plan in mixed_plans(gpus):
        try:
            jobs.append(
                knee.Job(
                    model=model,
                    cluster=cluster,
                    profile=profile,
                    plan=plan,
                    gpus=gpus,
                    global_batch=batch,
                    seq_len=4096,
                )
            )
        except SpecError:
            continue
    random.Random(0).shuffle(jobs)
    return jobs


def rate(model: knee.Model, cluster: knee.Cluster, profile: knee.Profile, table: knee.PlanTable) -> float:
    """Plans per CPU-second, the best of three passes over the table."""
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        for _ in knee.simulate_tables(model, cluster, profile, chunks(table)):
            pass
        best = max(best, len(table) / (time.process_time() - start))
    return best


def chunks(table: knee.PlanTable) -> Iterator[knee.PlanTable]:
    """A table in pieces that fit a cache."""
    for i in range(0, len(table), CHUNK):
        yield table.rows(slice(i, i + CHUNK))


def endless(table: knee.PlanTable, total: int) -> Iterator[knee.PlanTable]:
    """``total`` plans, made as they are asked for: the table again and again with other batches and lengths."""
    made = 0
    for times in itertools.count(1):
        for piece in chunks(table):
            left = piece.rows(slice(0, total - made))
            yield replace(
                left,
                global_batch=left.global_batch * (1 + times % 4),
                seq_len=left.seq_len * 2 ** (times // 4 % 3),
                prefetch=left.prefetch + times % 2,
            )
            made += len(left)
            if made >= total:
                return


def single_ms(job: knee.Job) -> float:
    """CPU-milliseconds of one ``simulate`` after imports, the median of twenty."""
    times = []
    for _ in range(21):
        start = time.process_time()
        knee.simulate(job)
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[1:])  # the first one reads the catalogue's constants


def peak_mib() -> float:
    """Most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=1_000_000, help="plans of the last part")
    total = parser.parse_args().plans
    cluster, profile = knee.load_cluster("dgx-h100").spec, knee.load_profile("eager").spec
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, one process\n")
    print(f"{'mix':<28}{'plans':>10}{'a CPU-second':>15}")
    counted, seconds, mixes = 0, 0.0, {}
    for name, gpus, batch in CASES:
        model = knee.load_model(name).spec
        jobs = mixed_jobs(model, cluster, profile, gpus, batch)
        table = knee.table_of(jobs)
        mixes[name] = (model, jobs, table)
        found = rate(model, cluster, profile, table)
        counted, seconds = counted + len(table), seconds + len(table) / found
        print(f"{name + f' on {gpus:,}':<28}{len(table):>10,}{found:>15,.0f}")
    together = counted / seconds
    print(f"{'all of them':<28}{counted:>10,}{together:>15,.0f}   {'met' if together >= BAR else 'MISSED'}: {BAR:,}\n")
    for peer, per_second in PEERS:
        print(f"{peer:<28}{'':>10}{per_second:>15,}   knee is {together / per_second:,.0f} times as fast")
    print("peers: one configuration at a time, measured on the same kind of machine\n")
    for name, (_, jobs, _) in mixes.items():
        deepest = max(jobs, key=lambda job: (job.plan.pp * job.plan.virtual_stages, job.microbatches))
        for label, job in (("first of the mix", jobs[0]), ("deepest pipeline", deepest)):
            print(f"simulate, {name:<12} {label:<18}{single_ms(job):>8.1f} ms")
    model, _, table = mixes["llama2-70b"]
    before, start, plans = peak_mib(), time.process_time(), 0
    for results in knee.simulate_tables(model, cluster, profile, endless(table, total)):
        plans += len(results)
    spent = time.process_time() - start
    print(
        f"\n{plans:,} plans of llama2-70b: {spent:.0f} CPU-seconds ({plans / spent:,.0f} a second), "
        f"peak memory {peak_mib():.0f} MiB, {before:.0f} before"
    )


if __name__ == "__main__":
    main()
