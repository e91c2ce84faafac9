"""What followed the paper: MLPerf's ladders of GPUs, measured and predicted, beside the paper's own trend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from knee.validation.carried_set import carried_runs
from knee.validation.left_out import unseen_job_of
from knee.validation.run_errors import Prediction, predict

LADDERS = {
    "mlperf_training_v3.0": "GPT-3, H100, v3.0",
    "mlperf_training_v3.1": "GPT-3, H100, v3.1",
    "mlperf_training_v5.0": "405B, GB200, v5.0",
}
"""Rounds of MLPerf with one plan on several counts of GPUs: GPT-3 175B and Llama 3.1 405B."""
PAPER = {"FSDP": 0.6278, "TP": 0.9580}
"""Tokens/s per GPU on 2,048 GPUs over FSDP's on 128: T01, and T01 with T06."""
FIRST, LAST = 128, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One count of GPUs: what each of them does, and what it was predicted to do."""

    ladder: str
    gpus: int
    local_batch: float
    """Sequences per GPU and step: a ladder of a fixed model changes it."""
    plan: str
    published_frac: float | None
    """Tokens/s per GPU over the ladder's first; the paper's is known at the ends only."""
    predicted_frac: float
    """The same of the prediction, by a profile that saw nothing of the source."""
    tokens_per_s_per_gpu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualLoad:
    """Rungs of a ladder with as much work for each GPU: what more GPUs alone cost."""

    ladder: str
    local_batch: float
    from_gpus: int
    to_gpus: int
    measured_frac: float
    predicted_frac: float


def published_rungs() -> list[Rung]:
    """Every ladder, as measured and as predicted."""
    runs = [run for run in carried_runs().runs if run.setting.source in LADDERS and run.status == "ok"]
    found, _ = predict(runs, unseen_job_of)
    return [rung for source in LADDERS for rung in _ladder(source, found)]


def _ladder(source: str, found: Sequence[Prediction]) -> Iterator[Rung]:
    counts: dict[int, list[Prediction]] = {}
    for one in sorted(found, key=lambda p: p.run.setting.n_gpus):
        if one.run.setting.source == source and one.run.tokens_per_s_per_gpu is not None:
            counts.setdefault(one.run.setting.n_gpus, []).append(one)
    first: tuple[float, float] | None = None
    for gpus, some in counts.items():
        measured = median(p.run.tokens_per_s_per_gpu or 0.0 for p in some)
        predicted = median(p.tokens_per_s_per_gpu for p in some)
        first = first or (measured, predicted)
        run = some[0].run.setting
        degrees = [f"{axis} {n}" for axis, n in (("TP", run.tp), ("PP", run.pp), ("CP", run.cp)) if n > 1]
        yield Rung(
            ladder=LADDERS[source],
            gpus=gpus,
            local_batch=run.global_batch / gpus,
            plan=", ".join([*degrees, run.sharding or ""]),
            published_frac=measured / first[0],
            predicted_frac=predicted / first[1],
            tokens_per_s_per_gpu=measured,
        )


def paper_rungs(rows: Sequence[Mapping[str, Any]]) -> list[Rung]:
    """The paper's own trend of figure 3: stated at both ends, simulated between them."""
    base = next((r["tokens_per_s_per_gpu"] for r in rows if r["series"] == "FSDP" and r["gpus"] == FIRST), None)
    if base is None:
        return []
    found = []
    for series, stated in PAPER.items():
        of: Mapping[int, list[Mapping[str, Any]]] = {}
        for row in rows:
            if str(row["series"]).startswith(series) and FIRST <= row["gpus"] <= LAST:
                of = {**of, row["gpus"]: [*of.get(row["gpus"], []), row]}
        for gpus, some in sorted(of.items()):
            best = max(some, key=lambda row: float(row["tokens_per_s_per_gpu"]))
            known = stated if gpus == LAST else 1.0 if gpus == FIRST and series == "FSDP" else None
            found.append(
                Rung(
                    ladder=f"paper, {series}",
                    gpus=gpus,
                    local_batch=float(best["local_batch"]),
                    plan=str(best["plan"]),
                    published_frac=known,
                    predicted_frac=best["tokens_per_s_per_gpu"] / base,
                    tokens_per_s_per_gpu=None,
                )
            )
    return found


def equal_loads(rungs: Sequence[Rung]) -> list[EqualLoad]:
    """For each ladder and load, the smallest against the largest count that has it."""
    groups: dict[tuple[str, float], list[Rung]] = {}
    for rung in rungs:
        if rung.published_frac is not None:
            groups.setdefault((rung.ladder, rung.local_batch), []).append(rung)
    return [
        EqualLoad(
            ladder=ladder,
            local_batch=load,
            from_gpus=some[0].gpus,
            to_gpus=some[-1].gpus,
            measured_frac=(some[-1].published_frac or 0.0) / (some[0].published_frac or 1.0) - 1.0,
            predicted_frac=some[-1].predicted_frac / some[0].predicted_frac - 1.0,
        )
        for (ladder, load), some in groups.items()
        if len(some) > 1
    ]
