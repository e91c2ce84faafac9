"""Errors of predictions on published runs that nothing was fitted to: written by a tool, read with every answer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from knee.base.arrays import Bools, Floats

if TYPE_CHECKING:
    from knee.specs.job import Job
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
