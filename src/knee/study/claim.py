"""What a claim of the paper is, and the measures that claims are tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from knee.study.runs import Bench, Run

NOISE = 0.01
WEAK = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
STRONG = (16, 32, 64, 128, 256)
SIZES = ("llama-1b", "llama2-7b", "llama2-13b", "llama2-70b")
LENGTHS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the simulator says to a claim."""

    holds: bool
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper."""

    id: str
    statement: str
    paper: str
    """What the paper says, as it says it."""
    bar: str
    """What counts as reproduced."""
    test: Callable[[Bench], Finding]
    fitted: bool = False
    """Whether a parameter was fitted on it, or the model's form or the test's definition was chosen after seeing it."""


def within(value: float, low: float, high: float, shown: str) -> Finding:
    return Finding(holds=low <= value <= high, value=shown)


def rising(values: list[float], noise: float = 0.0) -> bool:
    return all(b > a * (1.0 + noise) for a, b in pairwise(values))


def falling(values: list[float], noise: float = 0.0) -> bool:
    return all(b < a * (1.0 - noise) for a, b in pairwise(values))


def listed(values: list[float], form: str = "") -> str:
    """Values as people read them: three digits, thousands apart."""
    return ", ".join(format(v, form or (",.0f" if abs(v) >= 1000 else ".3g")) for v in values)


def weak(b: Bench, get: Callable[[Run], float], counts: tuple[int, ...] = WEAK) -> list[float]:
    return [get(b.weak(n)) for n in counts]


def strong(b: Bench, get: Callable[[Run], float]) -> list[float]:
    return [get(b.best(gpus=n, global_batch=32)) for n in STRONG]


def per_gpu(r: Run) -> float:
    return r.result.tokens_per_s_per_gpu


def watts(r: Run) -> float:
    return float(r.result.power_w_per_gpu or np.nan)


def efficiency(r: Run) -> float:
    return float(r.result.tokens_per_j or np.nan)


def load(r: Run, collective: str) -> float:
    return sum(c.load_s for c in r.result.comm_loads if c.collective == collective and c.group == "dp_shard")


def change(b: Bench, get: Callable[[Run], float], start: int, end: int) -> float:
    return get(b.weak(end)) / get(b.weak(start)) - 1.0
