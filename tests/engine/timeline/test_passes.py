"""The layer recurrence on passes small enough to follow by hand. Seconds are whole numbers here."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from knee.engine.simulator import evaluate
from knee.engine.timeline.passes import Pass, Segment, Sums
from knee.engine.timeline.step_actions import run, run_repeated
from knee.engine.timeline.walk import run_passes
from random_passes import random_passes
from tables import job, table


def segment(compute: float = 0.0, hidden: float = 0.0, blocking: float = 0.0, host: float = 0.0) -> Segment:
    return Segment(
        compute_s=np.array([compute]),
        hidden_s=np.array([hidden]),
        blocking_s=np.array([blocking]),
        host_s=np.array([host]),
    )


def a_pass(
    layers: int,
    layer: Segment,
    *,
    lead: Segment | None = None,
    tail: Segment | None = None,
    ahead: int = 2,
    limit: float = np.inf,
    **seconds: float,
) -> Pass:
    """A pass with nothing but what is said."""
    times = {
        f.name: np.array([float(seconds.pop(f.name, 0.0))])
        for f in fields(Pass)
        if f.name.endswith("_s") and f.name != "reduce_limit_s"
    }
    assert not seconds
    return Pass(
        layers=np.array([layers]),
        lead=lead or segment(),
        layer=layer,
        tail=tail or segment(),
        ahead=np.array([ahead]),
        reduce_limit_s=np.array([limit]),
        kappa=np.zeros(1),
        shares_wire=np.array([False]),
        waits_at_end=np.array([True]),
        **times,
    )


def sums(p: Pass, kappa: float = 0.0, gamma: float = 1.0) -> dict[str, float]:
    """Walked layer by layer, folded and not; both must agree."""
    p = replace(p, kappa=np.full(len(p.layers), kappa))
    walked = run_passes(p, gamma, fold=False)
    for f in fields(Sums):
        assert getattr(run(p, gamma), f.name) == pytest.approx(getattr(walked, f.name), abs=1e-9), f.name
    return {f.name: float(getattr(walked, f.name)[0]) for f in fields(Sums)}


# gathers


def test_gathers_shorter_than_a_layer_expose_only_the_first_ones() -> None:
    s = sums(a_pass(4, segment(10), root_gather_s=3, gather_s=4))
    assert s["duration_s"] == pytest.approx(3 + 4 + 4 * 10)
    assert s["exposed_s"] == pytest.approx(3 + 4)
    assert s["overlapped_s"] == pytest.approx(3 * 4)
    assert s["gather_load_s"] == pytest.approx(3 + 4 * 4)


def test_the_first_gather_hides_beside_the_embedding() -> None:
    s = sums(a_pass(4, segment(10), lead=segment(5), root_gather_s=3, gather_s=4))
    assert s["exposed_s"] == pytest.approx(3)


def test_gathers_longer_than_a_layer_set_the_pace() -> None:
    s = sums(a_pass(32, segment(10), root_gather_s=3, gather_s=15))
    assert s["duration_s"] == pytest.approx(3 + 32 * 15 + 10)
    assert s["compute_s"] == pytest.approx(32 * 10)


def test_without_prefetch_every_gather_is_waited_for() -> None:
    s = sums(a_pass(8, segment(10), root_gather_s=3, gather_s=4, ahead=0))
    assert s["duration_s"] == pytest.approx(3 + 8 * (4 + 10))
    assert s["overlapped_s"] == 0


def test_prefetch_saves_up_for_a_long_lead() -> None:
    """Two gathers may be ahead: a lead of 20 covers two of 8, and the third starts with the first layer."""
    s = sums(a_pass(3, segment(10), lead=segment(20), gather_s=8, ahead=2))
    assert s["exposed_s"] == 0
    assert s["duration_s"] == pytest.approx(20 + 30)


# reductions


def test_reductions_hide_but_the_last() -> None:
    s = sums(a_pass(3, segment(10), reduce_s=4, root_reduce_s=2))
    assert s["duration_s"] == pytest.approx(3 * 10 + 4 + 2)
    assert s["exposed_s"] == pytest.approx(4 + 2)
    assert s["reduce_load_s"] == pytest.approx(3 * 4 + 2)
    assert s["drain_s"] == pytest.approx(4 + 2)


@pytest.mark.parametrize("limit", [np.inf, 15.0, 0.0])
def test_long_reductions_set_the_pace(limit: float) -> None:
    """Whether they pile up or compute waits for each (one in flight), the queue never rests."""
    s = sums(a_pass(32, segment(10), reduce_s=15, root_reduce_s=2, limit=limit))
    assert s["duration_s"] == pytest.approx(10 + 32 * 15 + 2)


def test_one_reduction_in_flight_makes_compute_wait() -> None:
    """The backlog is paid layer by layer, so nothing but the last two reductions is left to drain."""
    free = sums(a_pass(8, segment(10), reduce_s=15))
    bound = sums(a_pass(8, segment(10), reduce_s=15, limit=0.0))
    assert bound["drain_s"] == pytest.approx(15)
    assert free["drain_s"] > 3 * bound["drain_s"]


def test_replicas_follow_their_reduction() -> None:
    """Two levels: each layer's all-reduce (3) runs beside later layers, the last two parts follow the drain."""
    s = sums(a_pass(4, segment(10), reduce_s=4, replicate_s=3, root_reduce_s=2, root_replicate_s=1))
    assert s["replicate_load_s"] == pytest.approx(4 * 3 + 1)
    # last reduce-scatter 4, its all-reduce 3 (the root's 2 beside it), the root's all-reduce 1
    assert s["drain_s"] == pytest.approx(4 + 3 + 1)


def test_carried_reductions_come_first() -> None:
    s = sums(a_pass(2, segment(10), reduce_s=1, carried_reduce_s=5))
    assert s["reduce_load_s"] == pytest.approx(5 + 2)
    assert s["duration_s"] == pytest.approx(20 + 1)


# contention, blocking communication, the host


@pytest.mark.parametrize(
    ("compute", "backlog", "kappa", "gamma"),
    [(10, 4, 0.2, 1.0), (10, 4, 0.2, 1.5), (10, 40, 0.2, 1.0), (10, 40, 0.25, 1.3), (10, 4, 0.0, 1.0)],
)
def test_overlap_in_closed_form(compute: float, backlog: float, kappa: float, gamma: float) -> None:
    """o = min(c (1 + kappa), q gamma); elapsed o + c - o / (1 + kappa); what is left of q is waited for."""
    s = sums(a_pass(1, segment(compute), carried_reduce_s=backlog), kappa, gamma)
    overlap = min(compute * (1 + kappa), backlog * gamma)
    elapsed = overlap + compute - overlap / (1 + kappa)
    assert s["overlapped_s"] == pytest.approx(overlap)
    assert s["compute_s"] == pytest.approx(elapsed)
    assert s["duration_s"] == pytest.approx(elapsed + backlog - overlap / gamma)


def test_a_segments_own_communication() -> None:
    """3 hidden beside 10 of compute, 2 waited for."""
    s = sums(a_pass(4, segment(10, hidden=3, blocking=2)))
    assert s["duration_s"] == pytest.approx(4 * 12)
    assert (s["overlapped_s"], s["exposed_s"], s["local_load_s"]) == pytest.approx((12, 8, 20))


def test_what_cannot_hide_blocks() -> None:
    s = sums(a_pass(4, segment(10, hidden=13, blocking=2)))
    assert s["duration_s"] == pytest.approx(4 * 15)


def test_channels_run_beside_each_other() -> None:
    """A gather goes on while compute is blocked by an exchange of its own."""
    s = sums(a_pass(4, segment(2, blocking=8), gather_s=10))
    assert s["duration_s"] == pytest.approx(10 + 4 * 10)


def test_a_late_host_leaves_the_gpu_idle_unless_something_communicates() -> None:
    alone = sums(a_pass(4, segment(10, host=12)))
    assert (alone["duration_s"], alone["idle_s"]) == pytest.approx((48, 8))
    beside = sums(a_pass(4, segment(10, host=12), carried_reduce_s=100))
    assert beside["idle_s"] == 0


# folding


@pytest.mark.parametrize(("kappa", "gamma"), [(0.0, 1.0), (0.19, 1.0), (0.3, 1.4)])
def test_folded_layers_are_the_walked_ones(kappa: float, gamma: float) -> None:
    p = random_passes(3000, seed=7, kappa=kappa)
    folded, walked = run(p, gamma), run_passes(p, gamma, fold=False)
    for f in fields(Sums):
        error = np.abs(getattr(folded, f.name) - getattr(walked, f.name)) / walked.duration_s
        assert error.max() < 1e-9, f.name


@pytest.mark.parametrize(("kappa", "gamma"), [(0.0, 1.0), (0.3, 1.4)])
def test_sums_add_up(kappa: float, gamma: float) -> None:
    s = run_passes(random_passes(2000, seed=3, kappa=kappa), gamma)
    assert s.duration_s == pytest.approx(s.compute_s + s.exposed_s + s.idle_s, rel=1e-12)
    assert (s.overlapped_s <= s.compute_s * (1 + 1e-12)).all()


def test_passes_without_a_queue_need_no_walk() -> None:
    p = random_passes(500, seed=5, kappa=0.2)
    queue = (
        "root_gather_s",
        "gather_s",
        "reduce_s",
        "root_reduce_s",
        "replicate_s",
        "root_replicate_s",
        "carried_reduce_s",
        "carried_replicate_s",
    )
    plain = Pass(**{f.name: getattr(p, f.name) for f in fields(Pass)} | dict.fromkeys(queue, np.zeros(500)))
    quick, walked = run_repeated(plain, 1.1), run_passes(plain, 1.1, fold=False)
    for f in fields(Sums):
        assert getattr(quick, f.name) == pytest.approx(getattr(walked, f.name), rel=1e-9, abs=1e-9), f.name


# the same through a whole job


def test_prefetch_0_exposes_every_gather_of_a_job() -> None:
    jobs = [job(dp_shard=64, prefetch=n) for n in (0, 1, 2)]
    w = evaluate(jobs[0].model, jobs[0].cluster, jobs[0].profile, table(*jobs))
    exposed = w.results.exposed_comm_s - w.results.straggler_s
    assert exposed[0] - exposed[1] == pytest.approx(31 * w.comm.gather_layer[0], rel=0.05)
    assert w.results.step_s[2] == pytest.approx(w.results.step_s[1], rel=1e-9)
    assert w.results.step_s[1] < w.results.step_s[0]


def test_no_passes_take_no_time() -> None:
    found = run_passes(random_passes(0, seed=1, kappa=0.1), 1.0)
    assert all(len(getattr(found, f.name)) == 0 for f in fields(Sums))
