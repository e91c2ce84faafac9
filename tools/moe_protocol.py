"""Write what the carried runs of mixtures of experts say: errors by source, real routing, steps of tuning, memory.

    python tools/moe_protocol.py [--write]

Run it after ``tools/fit_moe_runs.py --write``. --write puts the table into data/moe/protocol.csv.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from knee.trust.validation.bundled_runs import carried_moe_runs, moe_fidelity
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_errors import Prediction, predict
from knee.trust.validation.run_to_job import RunJob, catalog_profile, job_of, profile_name

OUT = Path(__file__).parent.parent / "data/moe/protocol.csv"
ROUTED, TUNED, MEMORY = "megatron_moe_modelzoo", "megatron_lm_dsv3_gb200_guide", "simumax_b200_v1.2"
STEPS: Mapping[str, str] = {
    "Enable DeepEP": "dispatcher alltoall to deepep",
    "Remove up_proj recompute": "recompute mla_up_proj+mlp to mlp",
    "CUDA Graphs": "cuda_graphs off to on",
    "HybridEP": "dispatcher deepep to hybridep",
}
"""Steps of the guide that a plan or a profile of knee can express -> what changes."""
NEWEST = "fused"
"""The profile of today's releases; the guide began with an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A published difference between two runs, or a reading, and its prediction."""

    part: str
    """real routing, tuning step, tuning step with the release unknown, or memory."""
    what: str
    measured: float
    predicted: float
    holds: bool


def moe_checks() -> list[Check]:
    """Every check of routing, tuning steps and memory."""
    return [*routing_losses(), *tuning_steps(), *tuning_steps(NEWEST), *memory_errors()]


def routing_losses(within: float = 0.05) -> list[Check]:
    """Throughput lost to real routing against forced balance; it holds if it is within so many points."""
    pairs: dict[Setting, dict[str, Prediction]] = {}
    for one in _predicted(ROUTED):
        if one.run.setting.routing:
            pairs.setdefault(replace(one.run.setting, routing=""), {})[one.run.setting.routing] = one
    found = []
    for setting, pair in pairs.items():
        balanced, real = pair["forced_balance"], pair["dropless"]
        measured = 1.0 - _measured(real.run) / _measured(balanced.run)
        predicted = 1.0 - real.tokens_per_s_per_gpu / balanced.tokens_per_s_per_gpu
        what = f"loss at {setting.seq_len:,} tokens"
        holds = abs(predicted - measured) <= within
        found.append(Check(part="real routing", what=what, measured=measured, predicted=predicted, holds=holds))
    return found


def tuning_steps(profile: str | None = None) -> list[Check]:
    """Gain of each step that knee can express, by the profile of its release or by another one; it holds if its sign is
    right."""

    def ask(setting: Setting) -> RunJob:
        return job_of(setting, profile=catalog_profile(profile or profile_name(setting)))

    runs = [run for run in carried_moe_runs().runs if run.setting.source == TUNED]
    found, _ = predict(runs, ask)
    ordered = sorted(found, key=lambda one: one.run.lines)
    part = "tuning step" if profile is None else "tuning step, release unknown"
    checks = []
    for before, after in pairwise(ordered):
        step = after.run.setting.software.partition(", ")[2]
        if step in STEPS:
            measured = _measured(after.run) / _measured(before.run) - 1.0
            predicted = after.tokens_per_s_per_gpu / before.tokens_per_s_per_gpu - 1.0
            holds = round(predicted, 3) > 0.0
            checks.append(Check(part=part, what=STEPS[step], measured=measured, predicted=predicted, holds=holds))
    return checks


def memory_errors(within: float = 0.1) -> list[Check]:
    """Readings of memory in GiB; they hold within a tenth."""
    found = []
    for one in _predicted(MEMORY):
        assert one.run.memory_bytes is not None
        s = one.run.setting
        measured, predicted = one.run.memory_bytes / 2**30, one.memory_bytes / 2**30
        what = f"{s.model}, pp {s.pp}, ep {s.ep}, {s.global_batch} sequences"
        holds = abs(predicted / measured - 1.0) <= within
        found.append(Check(part="memory (GiB)", what=what, measured=measured, predicted=predicted, holds=holds))
    return found


def _predicted(source: str) -> tuple[Prediction, ...]:
    found, _ = predict([run for run in carried_moe_runs().runs if run.setting.source == source], job_of)
    return tuple(sorted(found, key=lambda one: one.run.lines))


def _measured(run: PublishedRun) -> float:
    assert run.tokens_per_s_per_gpu is not None
    return run.tokens_per_s_per_gpu


def rows_of(checks: list[Check]) -> list[dict[str, object]]:
    """Plain rows, rounded as they are recorded."""
    return [asdict(c) | {"measured": round(c.measured, 4), "predicted": round(c.predicted, 4)} for c in checks]


def main(arguments: Sequence[str]) -> None:
    """Print, and write."""
    found = moe_fidelity()
    for s in found.sources:
        print(f"{s.source:40}{s.runs:5}{s.median_frac:9.1%}{s.p90_frac:9.1%}{s.unseen_frac or 0:9.1%}")
    print(f"as shipped {found.headline_frac:.1%}, unseen {found.unseen_frac:.1%} (medians over sources)")
    rows = rows_of(moe_checks())
    for row in rows:
        print(row)
    if "--write" in arguments:
        with OUT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
