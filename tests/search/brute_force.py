"""Every plan of a random space simulated, and what the search says of the same space.

PYTHONPATH=src:tests python tests/search/brute_force.py --jobs 200
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from knee.base.arrays import extreme_values
from knee.engine.simulator import Results, simulate_table
from knee.search import plan_search
from knee.search.plan_search import Merits, pareto, score, search
from knee.search.space import Space, fitting, whole_table, without_twins
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.plan import Plan
from knee.specs.profile import Profile

MODELS = ("llama-1b", "llama2-7b", "llama3-8b", "llama2-13b", "llama2-70b")
SPARSE = ("deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-20b")
CLUSTERS = ("dgx-h100", "dgx-a100", "dgx-h200", "gb200-nvl72")
PROFILES = ("eager", "compiled", "fused", "paper", "knee-compiled", "megatron-core-2025", "megatron-deepspeed")
MOST_PLANS = 12_000


def random_job(seed: int) -> tuple[Space, Cluster, Profile, str, int]:
    """A space of a size that can be simulated whole, its hardware and software, an objective, and plans to rank."""
    draw = random.Random(seed)
    while True:
        sparse = draw.random() < 0.4
        model = load_model(draw.choice(SPARSE if sparse else MODELS)).spec
        cluster, profile = load_cluster(draw.choice(CLUSTERS)).spec, load_profile(draw.choice(PROFILES)).spec
        if draw.random() < 0.5:  # memory that some plans do not fit in
            gpu = replace(cluster.gpu, hbm_bytes=cluster.gpu.hbm_bytes * draw.choice((0.3, 0.5, 0.7)))
            cluster = replace(cluster, gpu=gpu)
        gpus = draw.choice((4, 6, 8) if sparse else (1, 2, 4, 8, 12, 16, 24, 32, 64))
        precision = "fp8" if cluster.gpu.fp8_flop_per_s and draw.random() < 0.2 else "bf16"
        space = Space(
            model=model,
            gpus=gpus,
            global_batch=gpus * draw.choice((1, 2, 3, 4, 8)),
            seq_len=draw.choice((1024, 2048, 4096)),
            fixed=Plan(
                precision=precision,
                state_dtype=draw.choice(("fp32", "bf16")),
                ep_overlap=sparse and draw.random() < 0.3,
                dispatcher=draw.choice(("alltoall", "deepep")) if sparse else "alltoall",
            ),
            shardings=draw.choice(((), (), ("fsdp", "hsdp"), ("zero1", "zero2", "ddp"))),
            schedules=draw.choice(((), (), ("interleaved",), ("zero_bubble", "1f1b"), ("dualpipe", "1f1b"))),
            recomputes=draw.choice(((), (), ("none",), ("none", "full"))),
            sync_every=draw.choice((1, 1, 1, 8)),
        )
        if 0 < len(whole_table(space)) <= MOST_PLANS:
            return space, cluster, profile, draw.choice(("tokens_per_s", "tokens_per_s", "tokens_per_j")), 10


def everything(space: Space, cluster: Cluster, profile: Profile) -> Results:
    """All plans that fit, those that recompute the least share of layers included, simulated; once where a plan takes
    the same with each kind of collectives."""
    fit = fitting(space, profile, whole_table(space), cluster.gpu.hbm_bytes)
    results = simulate_table(space.model, cluster, profile, fit.table)
    return results.rows(without_twins(fit.table, results))


def differences(seed: int) -> list[str]:
    """What the search of a random job has otherwise than simulating everything. Every second search is made in the
    steps of a large one."""
    few = 0 if seed % 2 else plan_search.FEW_SHAPES
    with patch.multiple(plan_search, FEW_SHAPES=few, SHAPES_FIRST=4):
        return [f"seed {seed}: {text}" for text in differences_of(*random_job(seed))]


def differences_of(space: Space, cluster: Cluster, profile: Profile, objective: str, keep: int) -> list[str]:
    """What the search of a space has otherwise than simulating everything."""
    every = everything(space, cluster, profile)
    found = search(space, cluster, profile, objective=objective, keep=keep, front=True)  # type: ignore[arg-type]
    best = np.sort(-score(every, objective))[:keep]  # type: ignore[arg-type]
    wrong = []
    if len(found.scores[:keep]) != len(best) or not np.allclose(-found.scores[:keep], best, rtol=1e-9):
        wrong.append(f"ranking {found.scores[:keep]} instead of {-best}")
    if len(every):
        fronts = [_front(results, cluster.gpu.hbm_bytes) for results in (every, found.results)]
        if fronts[0] != fronts[1]:
            wrong.append(f"front of {sorted(fronts[1])} instead of {sorted(fronts[0])}")
    return wrong


def _front(results: Results, hbm_bytes: float) -> set[tuple[float, ...]]:
    merits = Merits.of_results(results, hbm_bytes).rows(pareto(results, hbm_bytes))
    return set(zip(merits.speed.tolist(), merits.thrift.tolist(), merits.room.tolist(), strict=True))


def main() -> int:
    """Print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="random jobs")
    jobs = parser.parse_args().jobs
    with extreme_values():
        wrong = [line for seed in range(jobs) for line in differences(seed)]
    for line in wrong:
        print(line)
    print(f"{jobs} random jobs: {len(wrong)} rankings or fronts differ from simulating every plan")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
