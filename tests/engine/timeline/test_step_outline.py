"""The outline of a step (few kinds of actions, each recorded once) is the step that its events show in full."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from knee.base.arrays import Floats
from knee.engine.events import Events
from knee.engine.one_job import evaluated, events_of, outline_of
from knee.engine.timeline.step_events import P2P
from knee.specs.load import load_model, load_profile
from tables import EAGER, job

TINY = load_model("llama-tiny").spec
PLANS = {
    "one microbatch": {"dp_shard": 8, "sharding": "fsdp"},
    "five microbatches": {"dp_shard": 8, "sharding": "fsdp", "microbatches": 5},
    "1f1b": {"pp": 4, "dp_shard": 2, "tp": 2, "sharding": "zero1", "microbatches": 6},
    "interleaved": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "dp_shard": 2, "microbatches": 4},
    "zero bubble": {"pp": 2, "schedule": "zero_bubble", "dp_replicate": 4, "sharding": "ddp", "microbatches": 5},
}


def busy(parts: list[tuple[Events, Floats]], is_comm: bool) -> Floats:
    """Starts and ends of the times in which kernels of one kind run; each part stands at each of its starts."""
    pieces = [np.zeros((0, 2))]
    for events, starts_s in parts:
        where = np.flatnonzero((events.is_comm == is_comm) & (events.duration_s > 0))
        spans = np.stack((events.start_s[where], events.end_s[where]), axis=1)
        pieces += [spans + start_s for start_s in starts_s.tolist()]
    spans = np.concatenate(pieces)
    spans = spans[np.argsort(spans[:, 0])]
    last = np.maximum.accumulate(spans[:, 1])
    gaps = np.flatnonzero(spans[1:, 0] > last[:-1] + 1e-12)
    return np.stack((spans[[0, *(gaps + 1)], 0], last[[*gaps, -1]]), axis=1) if len(spans) else spans


def loads(parts: list[tuple[Events, Floats]]) -> dict[tuple[object, ...], float]:
    """Bytes and seconds of each kind of message."""
    found = defaultdict[tuple[object, ...], float](float)
    for events, starts_s in parts:
        for i in np.flatnonzero(events.is_comm).tolist():
            kind = (int(events.collective[i]), events.groups[int(events.group_id[i])].name)
            found["bytes", *kind] += len(starts_s) * float(events.message_bytes[i])
            found["s", *kind] += len(starts_s) * float(events.duration_s[i])
    return found


@pytest.mark.parametrize("plan", PLANS)
def test_an_outline_is_the_step_of_its_events(plan: str) -> None:
    asked = job(model=TINY, profile=load_profile("eager").spec, seq_len=1024, **PLANS[plan])  # type: ignore[arg-type]
    stages, outlines = events_of(asked), outline_of(evaluated(asked))
    assert len(stages) == len(outlines) == asked.plan.pp
    for events, outline in zip(stages, outlines, strict=True):
        whole = [(events, np.zeros(1))]
        parts = [(action.events, action.starts_s) for action in outline.actions]
        for is_comm in (False, True):
            assert busy(parts, is_comm) == pytest.approx(busy(whole, is_comm), rel=1e-9, abs=1e-12)
        assert loads(parts) == pytest.approx(loads(whole), rel=1e-9)
        assert outline.end_s == pytest.approx(float(events.end_s.max()), rel=1e-9)


@pytest.mark.parametrize(("p2p_overlap_frac", "waits"), [(0.0, 1), (0.5, 1), (1.0, 0)])
def test_a_rank_waits_for_the_part_of_a_transfer_that_does_not_hide(p2p_overlap_frac: float, waits: int) -> None:
    """Of the two stages one receives what six microbatches put out, and the other their gradients."""
    stack = replace(EAGER, p2p_overlap_frac=p2p_overlap_frac)
    asked = job(model=TINY, profile=stack, seq_len=1024, pp=2, sharding="ddp", microbatches=6)
    step = evaluated(asked)
    for outline in outline_of(step):
        waited_s = 0.0
        for action in outline.actions:
            some = np.flatnonzero(action.events.stream == P2P).tolist()
            assert all(action.events.duration_s[i] > 0 for i in some)
            waited_s += len(action.starts_s) * sum(float(action.events.duration_s[i]) for i in some)
        alone_s = float(step.comm.pp_send[0])
        assert waited_s >= waits * 5 * (1 - p2p_overlap_frac) * alone_s
        assert waited_s <= waits * 7 * alone_s
