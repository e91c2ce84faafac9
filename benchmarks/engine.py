"""How fast the engine is: plans per CPU-second on realistic mixes, and one job, beside llm-analysis.

    python benchmarks/engine.py [--plans 1000000]

llm-analysis answers a sample of the same plans, one after the other, by closed forms instead of a timeline. With
``--plans``, so many plans are simulated as well, and the memory that they take is printed.
"""

from __future__ import annotations

import itertools
import math
import random
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import peers
from figures import Compared, Figure, main

import knee
from knee.base.errors import SpecError
from knee.engine.simulator import CHUNK
from knee.specs.plan import RECOMPUTES, SHARDINGS

CASES = (("llama2-7b", 256, 512), ("llama2-70b", 1024, 1024), ("llama3-405b", 16384, 2048))
"""Model, GPUs, global batch."""
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zero_bubble", 1))
AIM = 60_000
"""Plans per CPU-second, all mixes together."""
PEER_PLANS = 3000
"""Of each mix; llm-analysis answers those that it can express, a sixth to a third of them."""


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


def single_ms() -> float:
    """CPU milliseconds of one ``knee.simulate`` after imports, the median of twenty."""
    times = []
    for _ in range(21):
        start = time.process_time()
        knee.simulate("llama2-7b", cluster="dgx-h100", gpus=256, local_batch=2)
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[1:])  # the first one reads the catalogue's constants


def peak_mib() -> float:
    """Most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rate_figure(name: str, found: float, peer: float | None, aim: float | None = None) -> Figure:
    """Plans per CPU-second beside llm-analysis."""
    compared = Compared(name=peers.LLM_ANALYSIS, value=peer)
    return Figure(name=f"plans, {name}", value=found, unit="/CPU-s", more_is_better=True, aim=aim, compared=compared)


def figures(plans: int = 0) -> list[Figure]:
    """The rates of the mixes, of all together, and one job."""
    cluster, profile = knee.load_cluster("dgx-h100").spec, knee.load_profile("eager").spec
    found, counted, seconds, peer_seconds = [], 0, 0.0, 0.0
    for name, gpus, batch in CASES:
        model = knee.load_model(name).spec
        jobs = mixed_jobs(model, cluster, profile, gpus, batch)
        table = knee.table_of(jobs)
        here, peer = rate(model, cluster, profile, table), peers.llm_analysis_rate(jobs[:PEER_PLANS])
        found.append(rate_figure(f"{name} on {gpus:,} GPUs", here, peer))
        counted, seconds = counted + len(table), seconds + len(table) / here
        peer_seconds += len(table) / peer if peer else float("nan")
        if plans and name == "llama2-70b":
            many(model, cluster, profile, table, plans)
    peer = None if math.isnan(peer_seconds) else counted / peer_seconds
    found.append(rate_figure("all three mixes", counted / seconds, peer, AIM))
    one = found[0].compared
    per_call = Compared(name=peers.LLM_ANALYSIS, value=1e3 / one.value if one and one.value else None)
    found.append(Figure(name="one knee.simulate, 7B on 256 GPUs: CPU", value=single_ms(), unit="ms", compared=per_call))
    return found


def many(model: knee.Model, cluster: knee.Cluster, profile: knee.Profile, table: knee.PlanTable, total: int) -> None:
    """Print the time and the memory of a stream of plans: memory does not grow with their number."""
    before, start, plans = peak_mib(), time.process_time(), 0
    for results in knee.simulate_tables(model, cluster, profile, endless(table, total)):
        plans += len(results)
    spent = time.process_time() - start
    print(
        f"{plans:,} plans of {model.name}: {spent:.0f} CPU-seconds ({plans / spent:,.0f} per second), "
        f"peak memory {peak_mib():.0f} MiB, {before:.0f} before"
    )


if __name__ == "__main__":
    main("engine", __doc__, figures, plans={"type": int, "default": 0, "help": "also stream so many plans"})
