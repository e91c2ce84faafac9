"""Errors of predictions on published runs that nothing was fitted to: written by a tool, read with every answer.
How far a job, or a published run, is from what other sources measured makes its error larger."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from knee.base.arrays import Bools, Floats, Ints
from knee.base.units import parse
from knee.specs.catalog import Leaf, read_entry
from knee.specs.job import Job
from knee.specs.plan import SHARDING_FAMILIES

if TYPE_CHECKING:
    from knee.trust.validation.published_runs import PublishedRun
    from knee.trust.validation.run_to_job import RunJob


OWN = Path(__file__).parent.parent / "catalog" / "validation" / "errors.csv"
"""What knee carries of dense models."""
EXPERTS = OWN.with_name("moe_errors.csv")
"""The same of mixtures of experts, whose errors say nothing of dense models, nor theirs of them."""
DIGITS = 4
WORDS = ("source", "profile", "kernels", "gpu", "fabric", "sharding", "schedule", "precision")
NUMBERS = ("n_gpus", "layers", "hidden", "tp", "pp", "cp", "dp", "error_frac", "memory_error_frac", "unseen_error_frac")
LATER = ("nic_bytes_per_s", "micro_tokens", "tokens_per_gpu", "unseen_memory_error_frac")
"""Columns that older files do not have: NaN there."""
COLUMNS = (*WORDS, *NUMBERS, "stack", "nodes", "seq_len", "recompute", *LATER)
"""As they are written."""
READ_WORDS = (*WORDS, "recompute")
READ_NUMBERS = (*NUMBERS, "nodes", "seq_len", *LATER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Errors:
    """Columns, one row a run. Errors are predicted over measured less one; NaN where nothing was measured.

    ``error_frac`` is that of throughput and ``memory_error_frac`` that of memory by the profile of the run's own stack,
    which may have been fitted to it; ``unseen_error_frac`` and ``unseen_memory_error_frac`` are by one that saw no run
    of its source.
    """

    words: dict[str, tuple[str, ...]]
    numbers: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.words["source"])

    def is_(self, column: str, *values: str) -> Bools:
        """Rows that have one of these words."""
        return _rows_with(self, column, values)

    def of(self, column: str, chosen: Bools) -> list[str]:
        """Words of some of the rows."""
        words = self.words[column]
        return [words[i] for i in np.flatnonzero(chosen).tolist()]

    def where(self, chosen: Bools) -> Errors:
        """Some of the rows."""
        return Errors(
            words={name: tuple(self.of(name, chosen)) for name in self.words},
            numbers={name: values[chosen] for name, values in self.numbers.items()},
        )


@lru_cache(maxsize=256)
def _rows_with(errors: Errors, column: str, values: tuple[str, ...]) -> Bools:
    """Kept, since every answer asks for the same few."""
    found: Bools = np.array([word in values for word in errors.words[column]], dtype=np.bool_)
    found.flags.writeable = False
    return found


Pair = tuple[float | None, float | None]
"""Errors of throughput and of memory; None and NaN: nothing was measured."""


def error_rows(found: Iterable[tuple[PublishedRun, RunJob, Pair, Pair]]) -> list[dict[str, object]]:
    """Rows of ``errors.csv``: the errors of each run's own profile, and of one that saw nothing of its source."""
    return [
        _row(run, asked, shipped, unseen)
        for run, asked, shipped, unseen in found
        if any(_rounded(error) != "" for error in shipped)
    ]


def _row(run: PublishedRun, asked: RunJob, shipped: Pair, unseen: Pair) -> dict[str, object]:
    job, plan = asked.job, asked.job.plan
    values: dict[str, object] = {
        "source": _word(run.setting.source),
        "profile": job.profile.name,
        "kernels": job.profile.kernels,
        "gpu": job.cluster.gpu.name,
        "fabric": job.cluster.fabric.kind,
        "sharding": plan.sharding,
        "schedule": plan.schedule,
        "precision": plan.precision,
        "n_gpus": job.gpus,
        "layers": job.model.layers,
        "hidden": job.model.hidden,
        "tp": plan.tp,
        "pp": plan.pp,
        "cp": plan.cp,
        "dp": plan.dp,
        "error_frac": _rounded(shipped[0]),
        "memory_error_frac": _rounded(shipped[1]),
        "unseen_error_frac": _rounded(unseen[0]),
        "stack": _word(asked.stack),
        "nodes": -(-job.gpus // job.cluster.node.gpus),
        "seq_len": job.seq_len,
        "recompute": plan.recompute,
        "nic_bytes_per_s": round(job.cluster.fabric.nic_bytes_per_s),
        "micro_tokens": micro_tokens(job),
        "tokens_per_gpu": round(tokens_per_gpu(job)),
        "unseen_memory_error_frac": _rounded(unseen[1]),
    }
    return {name: values[name] for name in COLUMNS}


def micro_tokens(job: Job) -> int:
    """Tokens of one microbatch on one GPU: what each of its kernels is given."""
    return job.plan.micro_batch * job.seq_len // job.plan.cp


def tokens_per_gpu(job: Job) -> float:
    """Tokens of a step over all GPUs, divided by all GPUs."""
    return job.tokens / job.gpus


def errors_for(job: Job) -> Errors:
    """Those of the published runs that are evidence for a job."""
    return read_errors(EXPERTS if job.model.experts is not None else OWN)


@cache
def read_errors(path: Path = OWN) -> Errors:
    """The columns that trust is found from."""
    text = path.read_text(encoding="utf-8").strip()
    width = text.partition("\n")[0].count(",") + 1
    # one split of the whole file, since no cell has a comma in it: ten times faster than the csv module
    cells = text.replace("\n", ",").split(",")
    columns = {name: cells[width + i :: width] for i, name in enumerate(cells[:width])}
    rows = len(cells) // width - 1
    return Errors(
        words={name: tuple(columns[name]) for name in READ_WORDS},
        numbers={name: _numbers(columns.get(name), rows) for name in READ_NUMBERS},
    )


def _numbers(cells: list[str] | None, rows: int) -> Floats:
    if cells is None:
        return np.full(rows, np.nan)
    return np.array([cell or "nan" for cell in cells] if "" in cells else cells, dtype=np.float64)


def _word(text: str) -> str:
    return text.replace(",", ";").replace('"', "").strip()


def _rounded(error: float | None) -> float | str:
    return "" if error is None or not math.isfinite(error) else round(error, DIGITS)


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
