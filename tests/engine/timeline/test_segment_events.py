"""Messages inside the layers of a traced step: their number, size, type and time, counted by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from knee.engine.events import COLLECTIVES
from knee.engine.one_job import evaluated, events_of
from knee.engine.simulator import EvaluatedStep
from knee.specs.load import load_model, load_profile
from tables import EAGER, job

LAYERS, TOKENS, HIDDEN, VOCAB = 3, 4096, 4096, 100_352
OLMO = replace(load_model("olmo2-7b").spec, layers=LAYERS)
"""It has a norm over all queries, and one over all keys: a sum of squares each."""
Found = dict[tuple[str, str, float], tuple[float, float]]


def messages(axis: str, model: Any = OLMO, profile: Any = EAGER, **plan: Any) -> tuple[Found, EvaluatedStep]:
    """(Collective, type, bytes) -> how many, and their seconds, of one axis in all stages of a step."""
    asked = job(model=model, profile=profile, **plan)
    found: defaultdict[tuple[str, str, float], list[float]] = defaultdict(list)
    for events in events_of(asked):
        assert (events.duration_s[events.is_comm] > 0).all()
        for i in (i for i in range(len(events)) if events.is_comm[i]):
            if events.groups[events.group_id[i]].name == axis:
                kind = COLLECTIVES[events.collective[i]], events.dtypes[events.dtype_id[i]], events.message_bytes[i]
                found[kind].append(float(events.duration_s[i]))
    return {kind: (len(times), sum(times)) for kind, times in found.items()}, evaluated(asked)


def check(found: Found, expected: dict[tuple[str, str, float], tuple[float, float]]) -> None:
    """``expected`` has seconds of one message."""
    whole = {kind: (n, pytest.approx(n * seconds, rel=1e-6)) for kind, (n, seconds) in expected.items() if n}
    assert found == whole


ACTIVATIONS, NUMBERS, LOGITS = 2.0 * TOKENS * HIDDEN, 4.0 * TOKENS, 2.0 * TOKENS * VOCAB


@pytest.mark.parametrize(
    ("recompute", "gathers", "scatters", "sums"), [("none", 0, 0, 0), ("full", 2, 2, 2), ("ops", 2, 0, 2)]
)
@pytest.mark.parametrize("keeps", [True, False])
def test_with_sequence_parallelism(keeps: bool, recompute: str, gathers: int, scatters: int, sums: int) -> None:
    """Two gathers and two scatters a layer in each direction; one of each at the ends; three sums for the loss."""
    stack = replace(EAGER, keeps_gathered=keeps)
    found, w = messages("tp", profile=stack, tp=4, sharding="ddp", recompute=recompute)
    again = 0 if keeps else 2
    check(
        found,
        {
            ("all_gather", "bf16", ACTIVATIONS): (LAYERS * (4 + again + gathers) + 2, w.comm.tp_gather[0]),
            ("reduce_scatter", "bf16", ACTIVATIONS): (LAYERS * (4 + scatters) + 2, w.comm.tp_gather[0]),
            ("all_reduce", "fp32", NUMBERS): (LAYERS * (4 + sums) + 3, w.comm.tp_sum[0]),
        },
    )


@pytest.mark.parametrize(("recompute", "more", "sums"), [("none", 0, 0), ("full", 2, 2), ("ops", 1, 2)])
def test_without_sequence_parallelism(recompute: str, more: int, sums: int) -> None:
    found, w = messages("tp", tp=4, sharding="ddp", sequence_parallel=False, recompute=recompute)
    check(
        found,
        {
            ("all_reduce", "bf16", ACTIVATIONS): (LAYERS * (4 + more) + 2, w.comm.tp_all_reduce[0]),
            ("all_reduce", "fp32", NUMBERS): (LAYERS * (4 + sums) + 3, w.comm.tp_sum[0]),
        },
    )


def test_the_share_of_blocks_that_is_recomputed_sends_again() -> None:
    """Half of the layers: messages of half the length in every layer."""
    found, w = messages("tp", tp=4, sharding="ddp", recompute="blocks", recompute_frac=0.5)
    n, seconds = found["reduce_scatter", "bf16", ACTIVATIONS]
    assert n == LAYERS * 6 + 2
    assert seconds == pytest.approx((LAYERS * 5 + 2) * w.comm.tp_gather[0])


def test_logits_are_gathered_where_the_loss_is_not_parallel() -> None:
    stack = replace(EAGER, loss_parallel=False)
    found, w = messages("tp", profile=stack, tp=4, sharding="ddp")
    assert found["all_gather", "bf16", LOGITS] == (1, pytest.approx(w.comm.tp_loss[0]))
    assert found["all_reduce", "fp32", NUMBERS][0] == 4 * LAYERS


def test_gathers_in_fp8_have_half_of_the_bytes_and_a_scale_before_each() -> None:
    """With 512 columns keys and values stay in 16 bit, and so does the gather of the input of attention; in backward
    both gathers are in fp8."""
    model, stack = replace(load_model("llama3-8b").spec, layers=LAYERS), load_profile("knee-compiled").spec
    found, w = messages("tp", model, stack, tp=2, sharding="ddp", precision="fp8")
    again = 0 if stack.keeps_gathered else 2
    wide, narrow = LAYERS * (1 + again) + 2, LAYERS * 3
    assert found["all_gather", "bf16", ACTIVATIONS][0] == wide
    assert found["reduce_scatter", "bf16", ACTIVATIONS] == (
        4 * LAYERS + 2,
        pytest.approx((4 * LAYERS + 2) * w.comm.tp_gather[0]),
    )
    assert found["all_gather", "uint8", ACTIVATIONS / 2][0] == narrow
    assert found["all_reduce", "fp32", 4.0] == (narrow, pytest.approx(narrow * w.comm.tp_scale[0]))
    saved = LAYERS * (w.comm.tp_forward_saved[0] + w.comm.tp_backward_saved[0])
    gathers = sum(seconds for (name, *_), (_, seconds) in found.items() if name == "all_gather")
    scales = found["all_reduce", "fp32", 4.0][1]
    assert gathers + scales == pytest.approx((wide + narrow) * w.comm.tp_gather[0] - saved)


@pytest.mark.parametrize("cp", [2, 4])
def test_context_parallel_messages(cp: int) -> None:
    """A ring sends its block on to all others, in backward with a gradient beside it; a gather brings all at once."""
    block = 2 * 2.0 * TOKENS / cp * HIDDEN
    ring, w = messages("cp", profile=replace(EAGER, cp_overlap_frac=0.0), cp=cp, cp_method="ring", sharding="ddp")
    check(ring, {("send_recv", "bf16", block): (LAYERS * 3 * (cp - 1), w.comm.cp_send[0])})
    gathered, w = messages("cp", cp=cp, sharding="ddp")
    found = {name: n for (name, _, size), (n, _) in gathered.items() if size == cp * block}
    assert found["reduce_scatter"] == LAYERS
    assert found["all_gather"] in (LAYERS, 2 * LAYERS)
    assert sum(seconds for _, seconds in gathered.values()) == pytest.approx(sum(found.values()) * w.comm.cp_gather[0])


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_tokens_go_to_experts_and_back_in_every_pass(recompute: str, passes: int) -> None:
    model = replace(load_model("mixtral-8x7b").spec, layers=LAYERS)
    plan = {"ep": 4, "dp_shard": 4, "sharding": "zero1", "recompute": recompute}
    found, w = messages("ep", model, **plan)
    both = w.comm.dispatch[0] + w.comm.combine[0]
    sent = 2.0 * TOKENS * 2 * model.hidden
    assert found == {("all_to_all", "bf16", sent): (2 * LAYERS * passes, pytest.approx(LAYERS * passes * both))}
