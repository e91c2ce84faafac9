"""What followed the paper: its trend beside MLPerf's ladders, published points and predictions in one chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from knee.commands.study.run_study import Ran
from knee.show.figures.lines import ChartPoint, lines
from knee.show.figures.vega import Figure, Spec
from knee.show.page.page import Section, chart_of
from knee.show.page.tables import Table, kind_table, record_table
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.run_errors import Prediction, predict
from knee.trust.validation.run_to_job import unseen_job_of

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
        of: dict[int, list[Mapping[str, Any]]] = {}
        for row in rows:
            if str(row["series"]).startswith(series) and FIRST <= row["gpus"] <= LAST:
                of.setdefault(row["gpus"], []).append(row)
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


STUDY = "fig3"
"""Whose runs are the paper's trend."""


def ladder_section(ran: Sequence[Ran], draw: Callable[[Spec], str]) -> Section | None:
    """Of a page that has the paper's trend."""
    trend = next((one for one in ran if one.study.name == STUDY), None)
    paper = paper_rungs([row for row in trend.rows if row["kind"] == "simulated"]) if trend else []
    if not paper:
        return None
    published = published_rungs()
    rungs = [*paper, *published]
    rows = [asdict(rung) for rung in rungs]
    figure = Figure(
        id="ladders",
        title="Tokens per second per GPU, over the smallest count of each ladder",
        caption="Lines are knee's, of MLPerf by a profile that saw nothing of that round; diamonds were "
        "published: by the paper (Llama-2-7B), and by MLPerf (GPT-3 175B and Llama 3.1 405B). "
        "Sequences per GPU fall along MLPerf's ladders, as the table says, and are constant in the paper's.",
        spec=lines(_points(rungs), x="gpus", y="of_first_frac", zero=True),
        rows=tuple(rows),
    )
    loads = equal_loads(published)
    return Section(
        id="since",
        title="What followed: does the fall go on?",
        says=_says(published, loads),
        charts=(chart_of(figure, [record_table("Every rung of the ladders", rows)], draw),),
        blocks=(_load_table(loads),),
    )


def _points(rungs: Sequence[Rung]) -> list[ChartPoint]:
    shares = [(r, r.predicted_frac, "simulated") for r in rungs]
    shares += [(r, r.published_frac, "published") for r in rungs if r.published_frac is not None]
    return [ChartPoint(series=r.ladder, x=r.gpus, y=share, kind=kind) for r, share, kind in shares]


def _says(rungs: Sequence[Rung], loads: Sequence[EqualLoad]) -> str:
    """The largest fall of a ladder, what of it remains at equal load, and what the paper saw."""
    ends = {rung.ladder: rung for rung in rungs}  # the last of each
    deepest = min(ends.values(), key=lambda rung: rung.published_frac or 1.0)
    first = next(rung for rung in rungs if rung.ladder == deepest.ladder)
    worst = min(loads, key=lambda load: load.measured_frac)
    widest = max(loads, key=lambda load: load.to_gpus - load.from_gpus)
    lost, foreseen = 1 - (deepest.published_frac or 1.0), 1 - deepest.predicted_frac
    return (
        f"Not under plans with tensor and pipeline parallelism, as long as a GPU keeps its work. Under FSDP alone the "
        f"paper's runs lost 37% per GPU from 128 to 2,048 at equal load. MLPerf ({deepest.ladder}) lost {lost:.0%} "
        f"(predicted {foreseen:.0%}) from {first.gpus:,} to {deepest.gpus:,} GPUs, while sequences per GPU fell from "
        f"{first.local_batch:g} to {deepest.local_batch:g}. At equal load, from {widest.from_gpus:,} to "
        f"{widest.to_gpus:,} GPUs, {-widest.measured_frac:.1%} were lost (predicted {-widest.predicted_frac:.1%}), and "
        f"never more than {-worst.measured_frac:.1%} between two counts. Their data-parallel groups are a 32nd or a "
        "64th of the cluster, and gathers are short beside a step; what costs throughput is the smaller batch, because "
        "a pipeline with fewer microbatches has more of a bubble."
    )


def _load_table(loads: Sequence[EqualLoad]) -> Table:
    kinds = dict.fromkeys(("ladder", "sequences per GPU"), "words") | dict.fromkeys(("from GPUs", "to GPUs"), "count")
    kinds |= dict.fromkeys(("measured", "predicted"), "share")
    rows = [(x.ladder, f"{x.local_batch:g}", x.from_gpus, x.to_gpus, x.measured_frac, x.predicted_frac) for x in loads]
    return kind_table("At equal load: change of tokens/s per GPU", kinds, rows)
