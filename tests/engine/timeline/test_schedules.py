"""Pipeline schedules: valid orders, textbook bubbles, microbatches in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from schedule_actions import actions

from knee.engine.simulator import evaluate
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.step_parts import paired_share
from knee.engine.workload import memory
from knee.specs.load import load_model
from knee.specs.schedules import PIPELINE_SCHEDULES, SCHEDULES, PipelineSchedule, schedule_of
from knee.specs.schedules import B as BACKWARD
from knee.specs.schedules import F as FORWARD
from knee.specs.schedules import W as WEIGHTS
from tables import job, table

CHUNKS = {schedule: (2, 4) if schedule == "interleaved" else (1,) for schedule in SCHEDULES if schedule != "dualpipe"}
SHAPES = [
    (schedule, ranks, chunks, microbatches)
    for schedule in CHUNKS
    for ranks in (2, 3, 4, 8)
    for chunks in CHUNKS[schedule]
    for microbatches in (ranks, 2 * ranks, 4 * ranks)
]
TWO_WAY = [("dualpipe", ranks, 2, microbatches) for ranks in (2, 4, 8) for microbatches in (ranks, 2 * ranks)]
"""Microbatches of one direction."""
FEW = [(s, r, 1, m) for s in CHUNKS if s != "interleaved" for r in (2, 4, 8) for m in (1, 2, 3)]

SPLIT_BACKWARD = [schedule.name for schedule in PIPELINE_SCHEDULES if schedule.splits_backward]


def in_flight(schedule: PipelineSchedule, rank: int, ranks: int, chunks: int, microbatches: int) -> int:
    """Most microbatch-chunks whose activations a rank holds at once, counted from its order."""
    kind = schedule.order(rank, ranks, chunks, microbatches).kind
    releases = WEIGHTS if schedule.splits_backward else BACKWARD
    return int(np.cumsum((kind == FORWARD) * 1 - (kind == releases)).max())


F, B, W = 1.0, 1.25, 0.75
"""Forward, backward of the input, backward of the weights, of a rank's whole share of one microbatch."""


@pytest.mark.parametrize(("schedule", "ranks", "chunks", "microbatches"), SHAPES + FEW + TWO_WAY)
def test_orders_are_valid(schedule: str, ranks: int, chunks: int, microbatches: int) -> None:
    kinds = ("F", "B", "W") if schedule in SPLIT_BACKWARD else ("F", "B")
    everything = {(kind, c, m) for kind in kinds for c in range(chunks) for m in range(microbatches)}
    for columns in schedule_of(schedule).orders(ranks, chunks, microbatches):
        order = actions(columns)
        assert len(order) == len(everything)
        assert set(order) == everything
        place = {action: i for i, action in enumerate(order)}
        for c in range(chunks):
            for m in range(microbatches):
                assert place[("F", c, m)] < place[("B", c, m)]
                if "W" in kinds:
                    assert place[("B", c, m)] < place[("W", c, m)]


def span(
    schedule: str, ranks: int, chunks: int, microbatches: int, times: tuple[float, float, float] = (F, B, W)
) -> float:
    """Time of a pipeline of equal stages without transfers; a chunk has its share of the rank's work."""
    split, (forward, back, weight) = schedule in SPLIT_BACKWARD, times
    work = {"F": forward, "B": back if split else back + weight, "W": weight if split else 0.0}
    durations = np.zeros((ranks * chunks * len(pipeline.KINDS), 1))
    for rank in range(ranks):
        for chunk in range(chunks):
            for k, kind in enumerate(pipeline.KINDS):
                durations[pipeline.duration_row(rank, chunk, chunks, k)] = work[kind[0]] / chunks
    return ends(schedule, ranks, chunks, microbatches, durations)


def ends(
    schedule: str, ranks: int, chunks: int, microbatches: int, durations: np.ndarray, drains: np.ndarray | None = None
) -> float:
    """When the last action ends, all ranks ready from the start."""
    graph = pipeline.graph(schedule_of(schedule), ranks, chunks, microbatches)
    drains = np.zeros_like(durations) if drains is None else drains
    _, done = pipeline.run(graph, durations, drains, np.zeros((ranks, 1)))
    return float(done.max())


@pytest.mark.parametrize(("schedule", "ranks", "chunks", "microbatches"), SHAPES)
def test_bubbles_are_the_textbooks(schedule: str, ranks: int, chunks: int, microbatches: int) -> None:
    """GPipe and 1F1B (P-1)(F+B+W); interleaved that over V; ZB-H1 (P-1)(F+B-W) (arXiv 2401.10241, table 1)."""
    bubble = {
        "gpipe": (ranks - 1) * (F + B + W),
        "1f1b": (ranks - 1) * (F + B + W),
        "interleaved": (ranks - 1) * (F + B + W) / chunks,
        "zero_bubble": (ranks - 1) * (F + B - W),
    }[schedule]
    assert schedule_of(schedule).bubble(ranks, chunks, F, B, W) == pytest.approx(bubble)
    found = span(schedule, ranks, chunks, microbatches) - microbatches * (F + B + W)
    assert found == pytest.approx(bubble, abs=1e-9)


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [shape[1:] for shape in TWO_WAY])
def test_the_bubble_of_dualpipe_is_its_authors(ranks: int, chunks: int, microbatches: int) -> None:
    """(P/2 - 1)(F&B + B - 3W), B a whole backward (arXiv 2412.19437, table 2); a chunk is half a rank's work."""
    # its table takes the backward of the input to be as long as the forward
    forward, weight = 1.0, 0.5
    bubble = (ranks / 2 - 1) * (forward + 2 * (forward + weight) - 3 * weight) / chunks
    whole = span("dualpipe", ranks, chunks, microbatches, (forward, forward, weight))
    found = whole - microbatches * (2 * forward + weight)
    assert found == pytest.approx(bubble, abs=1e-9)
    assert schedule_of("dualpipe").bubble(ranks, 1, forward, forward, weight) == pytest.approx(bubble)


def test_codes_of_plans_are_the_places_of_schedules() -> None:
    assert tuple(schedule.name for schedule in PIPELINE_SCHEDULES) == SCHEDULES


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [shape[1:] for shape in TWO_WAY])
def test_dualpipe_holds_one_microbatch_more_than_ranks(ranks: int, chunks: int, microbatches: int) -> None:
    shape = table(job(pp=ranks, schedule="dualpipe", sharding="zero1", microbatches=2 * microbatches))
    for rank in range(ranks):
        assert in_flight(schedule_of("dualpipe"), rank, ranks, chunks, microbatches) == ranks + 1
        assert memory.in_flight(shape, np.array([rank]))[0] == ranks + 1


def pairs(schedule: str, ranks: int, chunks: int, microbatches: int) -> float:
    """Forwards right before a backward of the other kind of pass, mean over ranks and over microbatches."""
    found = 0
    for columns in schedule_of(schedule).orders(ranks, chunks, microbatches):
        kinds = [kind for kind, _, _ in actions(columns) if kind != "W"]
        steady = [i for i in range(len(kinds) - 1) if kinds[i] == "F" and kinds[i + 1] == "B"]
        found += len(steady)
    return found / ranks


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 16), (8, 32)])
def test_tokens_hide_beside_passes_that_have_a_partner(ranks: int, microbatches: int) -> None:
    def share(schedule: str, **plan: object) -> float:
        kept = {"model": load_model("qwen3-30b-a3b").spec, "sharding": "zero1", "ep_overlap": True} | plan
        return float(
            paired_share(table(job(**{"pp": ranks, "schedule": schedule} | kept, microbatches=microbatches)))[0]
        )

    # Megatron-LM's warm-up is one microbatch longer if tokens travel beside compute
    assert share("1f1b") == pytest.approx((pairs("1f1b", ranks, 1, microbatches) - 1) / microbatches)
    assert share("interleaved", virtual_stages=2) == pytest.approx(1 - ranks / microbatches)
    # the pairs of the third step are a split backward and a forward, which do not overlap
    both = pairs("dualpipe", ranks, 2, microbatches // 2)
    assert share("dualpipe") <= both / microbatches
    assert share("1f1b", recompute="full") == 0.0
    assert share("gpipe") == 0.0
    assert share("1f1b", pp=1) == 1 - 1 / microbatches  # without a pipeline only the first has no partner


@pytest.mark.parametrize(("schedule", "ranks", "chunks", "microbatches"), SHAPES + FEW)
def test_memory_counts_what_the_order_holds(schedule: str, ranks: int, chunks: int, microbatches: int) -> None:
    shape = table(job(pp=ranks, schedule=schedule, virtual_stages=chunks, microbatches=microbatches))
    for rank in range(ranks):
        counted = in_flight(schedule_of(schedule), rank, ranks, chunks, microbatches)
        assert memory.in_flight(shape, np.array([rank]))[0] == counted


def test_without_a_pipeline_one_microbatch_is_held() -> None:
    assert memory.in_flight(table(job(microbatches=8)), np.array([0]))[0] == 1


def test_durations_may_differ_by_stage() -> None:
    """One slow stage of a 1F1B pipeline: everybody waits for it, M times."""
    ranks, microbatches, slow = 4, 16, 2
    durations = np.zeros((ranks * len(pipeline.KINDS), 1))
    for rank in range(ranks):
        for k, kind in enumerate(pipeline.KINDS):
            work = {"F": F, "B": B + W, "W": 0.0}[kind[0]]
            durations[pipeline.duration_row(rank, 0, 1, k)] = work * (1.5 if rank == slow else 1.0)
    end = ends("1f1b", ranks, 1, microbatches, durations)
    least = microbatches * 1.5 * (F + B + W)
    assert least < end <= least + (ranks - 1) * (F + B + W)


def test_a_gradient_is_handed_on_before_the_reductions_drain() -> None:
    """Every stage drains for D after its last backward; the stages drain beside each other, so D counts once."""
    ranks, microbatches, drain = 8, 16, 3.0
    durations, drains = np.zeros((ranks * len(pipeline.KINDS), 1)), np.zeros((ranks * len(pipeline.KINDS), 1))
    for rank in range(ranks):
        for k, kind in enumerate(pipeline.KINDS):
            row = pipeline.duration_row(rank, 0, 1, k)
            durations[row] = {"F": F, "B": B + W, "W": 0.0}[kind[0]]
            if kind == "B_last":
                durations[row] += drain
                drains[row] = drain
    plain = (microbatches + ranks - 1) * (F + B + W)
    assert ends("1f1b", ranks, 1, microbatches, durations, drains) == pytest.approx(plain + drain)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_folding_walks_two_fills_and_no_more_than_there_are(schedule: str) -> None:
    assert 16 <= pipeline.first_walk(schedule_of(schedule), 8, 512) <= 24
    assert pipeline.first_walk(schedule_of(schedule), 8, 5) == 5


def test_a_plan_without_stages_ignores_its_schedule() -> None:
    one = job(dp_shard=8, microbatches=4)
    other = replace(one, plan=replace(one.plan, schedule="gpipe"))
    steps = [float(evaluate(j.model, j.cluster, j.profile, table(j)).results.step_s[0]) for j in (one, other)]
    assert steps[0] == steps[1]
