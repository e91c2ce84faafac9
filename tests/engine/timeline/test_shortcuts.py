"""What is not computed one by one equals what is: equal rows, closed forms, pipelines walked together."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from schedule_actions import actions

from knee.base import arrays
from knee.base.arrays import equal_rows
from knee.engine.simulator import Results, evaluate
from knee.engine.timeline import walk
from knee.engine.timeline.passes import Pass, Segment, Sums
from knee.engine.timeline.pipelines import recurrence as pipeline
from knee.engine.timeline.step_actions import run, run_reductions
from knee.engine.timeline.walk import run_passes
from knee.search.space import Space, whole_table
from knee.specs.load import load_model, load_profile
from knee.specs.schedules import schedule_of
from random_passes import random_passes
from tables import H100

# equal rows


@pytest.mark.parametrize("kinds", [1, 3, 40])
def test_equal_rows_are_those_that_agree_in_every_column(kinds: int) -> None:
    draw = np.random.default_rng(kinds)
    columns = [draw.integers(0, kinds, 3000), draw.random(3000) < 0.5, draw.choice([0.0, 1.5, np.inf], 3000)]
    first, kind = equal_rows(*columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert len(first) == len(set(rows))
    assert [rows[first[k]] for k in kind.tolist()] == rows


def test_keys_that_meet_in_a_place_are_told_apart() -> None:
    """Neighbouring keys share their leading bits, and so their place."""
    key = np.random.default_rng(1).integers(0, 50, 4000).astype(np.uint64)
    same = arrays._first_equal(key, np.arange(len(key)))
    assert (key[same] == key).all()
    assert len(set(same.tolist())) == len(set(key.tolist()))


@pytest.mark.parametrize("profile", ["eager", "megatron-2021", "torchtitan", "nanotron"])
def test_equal_plans_are_evaluated_as_if_they_were_alone(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, stack = load_model("llama-tiny").spec, load_profile(profile).spec
    table = whole_table(Space(model=model, gpus=16, global_batch=64, seq_len=512, attention_again=True))
    table = table.rows(np.random.default_rng(0).integers(0, len(table), 600))
    found = []
    for few in (0, 10**9):
        monkeypatch.setattr(arrays, "FEW", few)
        found.append(evaluate(model, H100, stack, table).results)
    for field in fields(Results):
        together, alone = (getattr(results, field.name) for results in found)
        assert together == pytest.approx(alone, rel=1e-9, abs=1e-12, nan_ok=True), field.name


# passes


def only_reductions(n: int, seed: int, kappa: float) -> Pass:
    """Passes of every regime whose queue has nothing but reductions, and whose layers wait for no host."""
    p = random_passes(n, seed, kappa)
    none = dict.fromkeys(
        ("root_gather_s", "gather_s", "replicate_s", "root_replicate_s", "carried_replicate_s"), np.zeros(n)
    )
    layer = replace(p.layer, hidden_s=np.zeros(n), host_s=np.zeros(n))
    return replace(p, **none, layer=layer)


@pytest.mark.parametrize(("kappa", "gamma"), [(0.0, 1.0), (0.19, 1.0), (0.3, 1.4)])
def test_reductions_in_closed_form_are_the_walked_ones(kappa: float, gamma: float) -> None:
    p = only_reductions(4000, seed=11, kappa=kappa)
    # some queues are long and fall slowly, so that the closed form has a series to add up
    slow = np.arange(4000) % 3 == 0
    p = replace(
        p,
        carried_reduce_s=np.where(slow, 200.0, p.carried_reduce_s),
        reduce_s=np.where(slow, 0.9 * p.layer.compute_s, p.reduce_s),
    )
    quick, walked = run_reductions(p, gamma), run_passes(p, gamma, fold=False)
    for f in fields(Sums):
        error = np.abs(getattr(quick, f.name) - getattr(walked, f.name)) / walked.duration_s
        assert error.max() < 1e-9, f.name


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 9])
def test_passes_as_shallow_as_the_layers_walked_first(layers: int) -> None:
    p = random_passes(500, seed=2, kappa=0.1)
    p = replace(p, layers=np.where(np.arange(500) % 2 == 0, layers, p.layers))
    quick, walked = run(p, 1.2), run_passes(p, 1.2, fold=False)
    for f in fields(Sums):
        assert np.abs(getattr(quick, f.name) - getattr(walked, f.name)).max() < 1e-9 * walked.duration_s.max(), f.name


@pytest.mark.parametrize(("reduce_s", "walked"), [(0.0, 5), (0.5, 5), (1.5, 5), (0.999, 5)])
def test_layers_that_repeat_are_not_walked(reduce_s: float, walked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that stand still (reductions shorter than a layer), and queues that only grow (longer ones): of a thousand
    layers a few are walked."""
    zero, calls = np.zeros(1), []
    plain = Segment(compute_s=np.ones(1), hidden_s=zero, blocking_s=zero, host_s=zero)
    p = random_passes(1, 0, 0.1)
    quiet = {f.name: zero for f in fields(Pass) if f.name.endswith("_s") and isinstance(getattr(p, f.name), np.ndarray)}
    quiet |= {"reduce_s": np.array([reduce_s]), "reduce_limit_s": np.array([np.inf])}
    p = replace(p, lead=plain, layer=plain, tail=plain, layers=np.array([1000]), ahead=np.array([1]), **quiet)
    one, run_layer = run_passes(p, 1.0, fold=False), walk.run_layer
    monkeypatch.setattr(walk, "run_layer", lambda *args: (calls.append(1), run_layer(*args)))
    folded = run_passes(p, 1.0)
    assert len(calls) <= walked + 5
    for f in fields(Sums):
        assert getattr(folded, f.name) == pytest.approx(getattr(one, f.name), rel=1e-9, abs=1e-9), f.name


# pipelines


def plain_done(schedule: str, ranks: int, chunks: int, microbatches: int, lasts: np.ndarray, leaves: np.ndarray):
    """When each rank is done, action after action: what ``pipeline.run`` computes in wavefronts."""
    todo = [actions(order) for order in schedule_of(schedule).orders(ranks, chunks, microbatches)]
    free, left = [np.zeros(lasts.shape[1])] * ranks, {}
    while any(todo):
        for rank, order in enumerate(todo):
            while order:
                kind, chunk, micro = order[0]
                stage = chunk * ranks + rank
                ahead = stage - 1 if kind == "F" else stage + 1
                needs = kind != "W" and 0 <= ahead < ranks * chunks
                if needs and (kind, ahead, micro) not in left:
                    break
                start = np.maximum(free[rank], left[kind, ahead, micro]) if needs else free[rank]
                at = pipeline.duration_row(
                    rank, chunk, chunks, kind_row(kind, chunk, chunks, micro, microbatches, ranks)
                )
                free[rank] = start + lasts[at]
                left[kind, stage, micro] = free[rank] - leaves[at]
                order.pop(0)
    return np.array(free)


def kind_row(kind: str, chunk: int, chunks: int, micro: int, microbatches: int, ranks: int) -> int:
    """Which of ``pipeline.KINDS`` an action is."""
    if kind == "F":
        near = chunk < chunks - 1 and micro < ranks
        name = "F_first" if micro == 0 else "F_fill" if near else "F"
    else:
        near = kind == "B" and chunk < chunks - 1 and micro >= microbatches - ranks
        name = f"{kind}_last" if micro == microbatches - 1 else "B_late" if near else kind
    return pipeline.KINDS.index(name)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "microbatches"),
    [("gpipe", 4, 1, 7), ("1f1b", 8, 1, 17), ("1f1b", 5, 1, 3), ("interleaved", 4, 3, 12), ("zero_bubble", 4, 1, 9)],
)
def test_pipelines_walked_together_are_those_walked_alone(
    schedule: str, ranks: int, chunks: int, microbatches: int, drains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, rows, width = np.random.default_rng(ranks), ranks * chunks * len(pipeline.KINDS), 21
    lasts = draw.uniform(1.0, 3.0, (rows, width))
    leaves = lasts * draw.uniform(0.0, 0.5, (rows, width)) * (draw.random((rows, 1)) < 0.5) * drains
    graph = pipeline.graph(schedule_of(schedule), ranks, chunks, microbatches)
    ready = np.zeros((ranks, width))
    expected = plain_done(schedule, ranks, chunks, microbatches, lasts, leaves)
    sent, done = pipeline.run(graph, lasts, leaves, ready)
    assert done == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(pipeline, "WIDTH", 8)
    for some, other in zip((sent, done), pipeline.run(graph, lasts, leaves, ready), strict=True):
        assert some == pytest.approx(other, rel=1e-12)
    for plan in range(3):
        alone = pipeline.run(graph, *(np.ascontiguousarray(x[:, [plan]]) for x in (lasts, leaves, ready)))
        assert alone[0][:, 0] == pytest.approx(sent[:, plan], rel=1e-12)
        assert alone[1][:, 0] == pytest.approx(done[:, plan], rel=1e-12)


def test_chunks_of_a_kind_share_their_durations() -> None:
    """A table with a row for each kind, and one with a row for each chunk."""
    graph, rows = pipeline.graph(schedule_of("1f1b"), 6, 1, 13), 6 * len(pipeline.KINDS)
    draw = np.random.default_rng(4)
    few, row_of = draw.uniform(1.0, 2.0, (9, 5)), draw.integers(0, 9, rows)
    ready, none = np.zeros((6, 5)), np.zeros((9, 5))
    _, shared = pipeline.run(graph, few, none, ready, row_of=row_of)
    _, whole = pipeline.run(graph, few[row_of], np.zeros((rows, 5)), ready)
    assert shared == pytest.approx(whole, rel=1e-15)
