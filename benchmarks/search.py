"""How long whole searches take from the shell, each in a new process: ``knee plan``, ``scale --best`` and ``budget``.

    python benchmarks/search.py [--runs 3]

The peer is brute force: the CPU time that simulating every plan of the space would take. That time is the number of
plans over the engine's rate on a sample of the space, taken as blocks of consecutive plans, because neighbours share
work when everything is simulated. Brute force ranks plans and no more: ``knee plan`` also finds the front, the
robustness of its plan and the sensitivities. A budget tells how many plans it looked at, of many models and counts; the
rate is that of such plans of 70B on 2,048 GPUs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from figures import Compared, Figure, main
from processes import Cost, best_cost, fresh_environment
from processes import knee as command

import knee
from knee.search.space import Space, whole_table

BLOCKS, BLOCK = 10, 2000
"""Of the sample."""
EVERY = "every plan simulated"
COUNTS = tuple(2**i for i in range(3, 12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search of ``knee plan``."""

    name: str
    model: str
    gpus: int
    global_batch: int
    seq_len: int = 4096
    profile: str = "eager"
    aim_s: float

    @property
    def arguments(self) -> list[str]:
        sizes = f"--gpus {self.gpus} --global-batch {self.global_batch} --seq-len {self.seq_len}"
        return f"plan {self.model} --cluster dgx-h100 {sizes} --profile {self.profile} --json".split()

    @property
    def space(self) -> Space:
        return Space(
            model=knee.load_model(self.model).spec,
            gpus=self.gpus,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
        )


PLANS = (
    Search(name="7B on 256 GPUs", model="llama2-7b", gpus=256, global_batch=512, aim_s=0.8),
    Search(name="70B on 2,048 GPUs", model="llama2-70b", gpus=2048, global_batch=1024, aim_s=2.0),
    Search(
        name="405B on 16,384 GPUs",
        model="llama3-405b",
        gpus=16384,
        global_batch=2048,
        seq_len=8192,
        profile="fused",
        aim_s=3.0,
    ),
)
SCALE = "scale llama2-7b --cluster dgx-h100 --gpus 8..2048 --local-batch 2 --best --json"
BUDGET = "budget --cluster dgx-h100 --gpus 2048 --days 30 --json"
BUDGETS = (("", 3.0), (" --usd 3M", 5.0), (" --html {page}", 8.0))
"""Options, and the aim in seconds."""


def brute_force_s(spaces: Iterable[Space], profile: str) -> float:
    """CPU seconds that simulating every plan of all spaces would take."""
    return sum(len(table) / rate for table, rate in (_rate(space, profile) for space in spaces))


def _rate(space: Space, profile: str) -> tuple[knee.PlanTable, float]:
    """All plans of a space, and the plans per CPU-second of a sample: the best of three passes."""
    table, random = whole_table(space), np.random.default_rng(0)
    starts = np.sort(random.integers(max(1, len(table) - BLOCK), size=BLOCKS))
    sample = table.rows(np.unique((starts[:, None] + np.arange(min(BLOCK, len(table)))).ravel()))
    cluster, stack = knee.load_cluster("dgx-h100").spec, knee.load_profile(profile).spec
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        knee.simulate_table(space.model, cluster, stack, sample)
        best = max(best, len(sample) / (time.process_time() - start))
    return table, best


def _times(name: str, spent: Cost, aim_s: float, compared: Compared) -> list[Figure]:
    return [
        Figure(name=f"{name}: wall", value=spent.wall_s, unit="s", aim=aim_s),
        Figure(name=f"{name}: CPU", value=spent.cpu_s, unit="s", compared=compared),
    ]


def plan_figures(search: Search, env: dict[str, str], runs: int) -> list[Figure]:
    """Times, and the share of plans that was simulated."""
    spent, name = best_cost(command(*search.arguments), env, runs), f"plan, {search.name}"
    counts = json.loads(spent.printed)["counts"]
    every = Compared(name=EVERY, value=brute_force_s([search.space], search.profile))
    share = Figure(
        name=f"{name}: simulated",
        value=100 * counts["simulated"] / counts["plans"],
        unit="%",
        compared=Compared(name="all plans", value=100.0),
    )
    return [*_times(name, spent, search.aim_s, every), share]


def scale_figures(env: dict[str, str], runs: int) -> list[Figure]:
    """The best plan at nine counts."""
    model = knee.load_model("llama2-7b").spec
    spaces = [Space(model=model, gpus=gpus, global_batch=2 * gpus, seq_len=4096) for gpus in COUNTS]
    every = Compared(name=EVERY, value=brute_force_s(spaces, "eager"))
    return _times("scale --best, nine counts", best_cost(command(*SCALE.split()), env, runs), 2.0, every)


def budget_figures(env: dict[str, str], runs: int) -> list[Figure]:
    """Without and with dollars, and with a page; the page takes so long that one run has to do."""
    lean = replace(PLANS[1].space, max_tp=8, max_cp=1, schedules=("zero_bubble",), recomputes=("none", "full"))
    found, (_, rate) = [], _rate(lean, "eager")
    page = f"{env['XDG_CACHE_HOME']}.html"
    for option, aim_s in BUDGETS:
        arguments = f"{BUDGET}{option}".format(page=page).split()
        spent = best_cost(command(*arguments), env, 1 if "page" in option else runs)
        every = Compared(name="its plans simulated", value=json.loads(spent.printed)["plans"] / rate)
        found += _times(f"budget, 2,048 GPUs, 30 days{option.split('{')[0].rstrip()}", spent, aim_s, every)
    return found


def figures(runs: int = 3) -> list[Figure]:
    """All searches."""
    with fresh_environment() as env:
        plans = [figure for search in PLANS for figure in plan_figures(search, env, runs)]
        return [*plans, *scale_figures(env, runs), *budget_figures(env, runs)]


if __name__ == "__main__":
    main("search", __doc__, figures, runs={"type": int, "default": 3, "help": "of each; the best counts"})
