"""How far a job, or a published run, is from what other sources measured: what makes its error larger."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.base.units import parse
from knee.specs.catalog import Leaf, read_entry
from knee.specs.job import Job
from knee.specs.plan import SHARDING_FAMILIES
from knee.trust.error_table import Errors, micro_tokens

NAMES = ("small_layers", "stack", "doublings", "gpu", "precision", "parallelism", "tp_across_nodes")
"""What a distance is counted in. ``small_layers``: halvings of a layer's time below ``FULL_LAYER_S``; ``doublings``: of
GPUs, beyond the largest run with these kinds of parallelism; ``tp_across_nodes``: a tensor-parallel group spans nodes;
others: no run of another source had the software stack, GPU, precision, or kinds of parallelism and schedule."""
FULL_LAYER_S = 2e-3
"""A layer's forward pass of a microbatch at the peak rate, below which errors grow with the host's share of a step
(assumed: a layer has some 40 kernels, and stacks take 5 to 50 us to launch one)."""
SMALLEST_LAYER = 6.0
"""Halvings below that which any run had: the distance ends there."""
FLOP_PER_WEIGHT = 24.0
"""A layer's forward products take 24 x tokens x hidden^2 FLOP: 12 hidden^2 weights, a product and a sum each."""

GENERIC_PROFILES = ("eager", "compiled", "fused", "megatron-2021", "xla")
"""Profiles that are medians over stacks, and of no one stack."""

Distances = Floats
"""One row for each of ``NAMES``; one column for each run, or none for a job."""


@cache
def peak_flop_per_s(gpu: str) -> float:
    """Of a GPU of the catalogue, dense fp16, which all of them have."""
    leaf = read_entry("gpu", gpu)["fp16_flop_per_s"]
    assert isinstance(leaf, Leaf)
    return parse(leaf.value, "flop_per_s")


def layer_work(job: Job) -> float:
    """What a layer's kernels have to do on one GPU in a microbatch: tokens x hidden^2 / tp."""
    return micro_tokens(job) * job.model.hidden**2 / job.plan.tp


def layer_work_of_runs(errors: Errors) -> Floats:
    """``layer_work`` of every published run."""
    n = errors.numbers
    tokens = np.where(np.isnan(n["micro_tokens"]), n["seq_len"] / n["cp"], n["micro_tokens"])
    return np.asarray(tokens * n["hidden"] ** 2 / n["tp"], dtype=np.float64)


def parallelism(job: Job) -> str:
    """The parallelism that is at work: ``FSDP + TP``."""
    plan = job.plan
    return _words(plan.sharding, plan.dp > 1, plan.tp > 1, plan.pp > 1, plan.cp > 1)


@cache
def _words(sharding: str, dp: bool, tp: bool, pp: bool, cp: bool) -> str:
    words = [SHARDING_FAMILIES[sharding]] if dp else []
    words += [name for name, used in (("TP", tp), ("PP", pp), ("CP", cp)) if used]
    return " + ".join(words) or "one GPU alone"


@lru_cache(maxsize=8)
def parallelism_of_runs(errors: Errors) -> tuple[str, ...]:
    """``parallelism`` of every published run."""
    used = [(errors.numbers[axis] > 1).tolist() for axis in ("dp", "tp", "pp", "cp")]
    return tuple(_words(*row) for row in zip(errors.words["sharding"], *used, strict=True))


class Group(NamedTuple):
    """What runs of one source have in common: one of a few, among very many runs."""

    source: str
    profile: str
    gpu: str
    precision: str
    schedule: str
    """Empty where there is no pipeline."""
    kind: str


@lru_cache(maxsize=8)
def groups_of(errors: Errors) -> tuple[tuple[Group, ...], Ints]:
    """The groups, and the number of each run's."""
    words = errors.words
    piped = (errors.numbers["pp"] > 1).tolist()
    schedules = (_schedule(word) if used else "" for word, used in zip(words["schedule"], piped, strict=True))
    columns = (words[name] for name in ("source", "profile", "gpu", "precision"))
    numbers: dict[tuple[str, ...], int] = {}
    rows = zip(*columns, schedules, parallelism_of_runs(errors), strict=True)
    of_run = np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)
    return tuple(Group(*row) for row in numbers), of_run


class Measured:
    """What the sources measured, and how far a job or a run is from it."""

    def __init__(self, errors: Errors, chosen: Bools):
        """``chosen`` are the runs with a measurement."""
        self.errors = errors
        self.groups, self.of_run = groups_of(errors)
        self.sources: defaultdict[str, set[str]] = defaultdict(set)
        """Word -> sources with a run that had it."""
        self.most_gpus: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """Kinds of parallelism -> source -> its largest run."""
        gpus = np.zeros(len(self.groups))
        np.maximum.at(gpus, self.of_run[chosen], errors.numbers["n_gpus"][chosen])
        for group, most in zip(self.groups, gpus.tolist(), strict=True):
            if not most:
                continue
            for word in (group.profile, group.gpu, group.precision, group.schedule, group.kind):
                self.sources[word].add(group.source)
            known = self.most_gpus[group.kind]
            known[group.source] = max(known.get(group.source, 0.0), most)

    def of_job(self, job: Job, gpu: str, stack: str) -> Distances:
        """From all runs; ``gpu`` and ``stack`` are its names in the catalogue."""
        plan, kind = job.plan, parallelism(job)
        layer_s = FLOP_PER_WEIGHT * layer_work(job) / job.cluster.gpu.fp16_flop_per_s
        is_new = self._is_new(kind) or (plan.pp > 1 and self._is_new(_schedule(plan.schedule)))
        found = (
            _halvings(np.array(layer_s)),
            stack in GENERIC_PROFILES or self._is_new(stack),
            np.log2(max(job.gpus / self._most_gpus(kind), 1.0)),
            self._is_new(gpu),
            self._is_new(plan.precision),
            is_new,
            plan.tp > job.cluster.node.gpus,
        )
        return np.array(found, dtype=np.float64)

    def of_runs(self) -> Distances:
        """Of each run from the runs of other sources: as far as a newcomer's run would be."""
        n = self.errors.numbers
        peaks, stack, most, gpu, precision, kind = np.array([self._of_group(g) for g in self.groups]).T[:, self.of_run]
        found = (
            _halvings(FLOP_PER_WEIGHT * layer_work_of_runs(self.errors) / peaks),
            stack,
            np.log2(np.maximum(n["n_gpus"] / most, 1.0)),
            gpu,
            precision,
            kind,
            n["tp"] > np.ceil(n["n_gpus"] / n["nodes"]),
        )
        return np.array(found, dtype=np.float64)

    def _of_group(self, group: Group) -> tuple[float, ...]:
        source = group.source
        return (
            peak_flop_per_s(group.gpu),
            group.profile in GENERIC_PROFILES or self._is_new(group.profile, source),
            self._most_gpus(group.kind, source),
            self._is_new(group.gpu, source),
            self._is_new(group.precision, source),
            self._is_new(group.kind, source) or (group.schedule != "" and self._is_new(group.schedule, source)),
        )

    def _is_new(self, word: str, source: str | None = None) -> bool:
        """Whether no other source had it."""
        return not self.sources.get(word, set()) - {source}

    def _most_gpus(self, kind: str, without: str | None = None) -> float:
        """In another source: with these kinds of parallelism, or with any where none had them."""
        found = [n for source, n in self.most_gpus.get(kind, {}).items() if source != without]
        found = found or [n for some in self.most_gpus.values() for source, n in some.items() if source != without]
        return max(found, default=math.inf)


def _schedule(word: str) -> str:
    return f"{word} schedule"


def _halvings(layer_s: Floats) -> Floats:
    found: Floats = np.clip(np.log2(FULL_LAYER_S / layer_s), 0.0, SMALLEST_LAYER)
    return found
