"""What a rank issues in a step, counted from passes, is what the trace of the same step shows message by message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from knee.engine.events import COLLECTIVES, Events, StageWork
from knee.engine.one_job import events_of
from knee.specs import Job
from knee.specs.load import load_model
from knee.trust.validation.program_messages import as_trained, differences, simulated_work
from tables import job

TINY, MIXTURE = load_model("llama-tiny").spec, load_model("qwen3-30b-a3b").spec
SEQ_LEN = 1024
PLANS: dict[str, dict[str, Any]] = {
    "fsdp": {"dp_shard": 8, "sharding": "fsdp", "microbatches": 3},
    "one GPU": {"microbatches": 2},
    "no reshard": {"dp_shard": 8, "sharding": "fsdp_no_reshard", "microbatches": 3},
    "ddp": {"dp_replicate": 4, "sharding": "ddp", "microbatches": 2},
    "hsdp": {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp", "microbatches": 2},
    "pipeline": {"pp": 2, "dp_shard": 2, "sharding": "fsdp", "microbatches": 4},
    "zero bubble": {
        "pp": 2,
        "schedule": "zero_bubble",
        "dp_replicate": 2,
        "sharding": "ddp",
        "microbatches": 4,
        "tp": 2,
    },
    "context": {"cp": 2, "dp_shard": 2, "sharding": "fsdp"},
    "tensor": {"tp": 2, "dp_shard": 2, "sharding": "fsdp", "sequence_parallel": False},
    "full": {"tp": 2, "dp_shard": 2, "sharding": "fsdp", "recompute": "full"},
    "ops": {"tp": 2, "dp_shard": 2, "sharding": "fsdp", "recompute": "ops"},
    "experts": {"model": MIXTURE, "dp_shard": 8, "ep": 4, "sharding": "fsdp", "microbatches": 2},
}


def asked(**plan: Any) -> Job:
    return job(**({"model": TINY, "seq_len": SEQ_LEN} | plan))


def of_trace(events: Events) -> Counter[tuple[object, ...]]:
    """Messages of a trace by what they are; those of the whole world are the step's end, which is no part here."""
    found = Counter[tuple[object, ...]]()
    for i in events.is_comm.nonzero()[0].tolist():
        group = events.groups[events.group_id[i]]
        size, dtype = round(float(events.message_bytes[i])), events.dtypes[events.dtype_id[i]]
        found[COLLECTIVES[events.collective[i]], group.name, group.size, size, dtype] += group.name != "world"
    return +found


def of_work(work: StageWork) -> Counter[tuple[object, ...]]:
    """The same; a transfer between stages counts where it is received. What shards experts (edp) is left out: in a
    trace it is a part of its layer's gathers and reductions."""
    found = Counter[tuple[object, ...]]()
    for c, count in work.collectives.items():
        name = "send_recv" if c.collective == "recv" else c.collective
        found[name, c.group, c.group_size, c.message_bytes, c.dtype] += count * (c.group not in ("world", "edp"))
    return +found


@pytest.mark.parametrize("plan", PLANS)
def test_messages_of_a_step_are_those_of_its_trace(plan: str) -> None:
    this = asked(**PLANS[plan])
    stages = simulated_work(this)
    assert [work.stage for work in stages] == list(range(this.plan.pp))
    for events, work in zip(events_of(this), stages, strict=True):
        assert of_work(work) == of_trace(events)
        assert work.rank == events.rank
        assert all(list(group.ranks) == list(range(this.gpus)) for group in events.groups if group.name == "world")


def test_half_of_the_layers_repeat_half_of_the_messages() -> None:
    none, half, full = (
        of_work(simulated_work(asked(tp=2, dp_shard=2, sharding="fsdp", **again))[0])
        for again in ({}, {"recompute": "blocks", "recompute_frac": 0.5}, {"recompute": "full"})
    )
    assert none != full
    assert {key: 2 * count for key, count in half.items()} == none + full


@pytest.mark.parametrize(("recompute", "products", "attentions"), [("none", 6, 7), ("full", 8, 9), ("attention", 6, 9)])
@pytest.mark.parametrize("pp", [1, 2])
def test_operations_by_hand(recompute: str, products: int, attentions: int, pp: int) -> None:
    """Two per parameter and token forward, four backward; of causal attention 2 s^2 h forward, and 2.5 times that
    backward. The head is not recomputed."""
    stages = simulated_work(asked(pp=pp, tp=2, recompute=recompute, microbatches=4))
    layer = 4 * TINY.hidden**2 + 3 * TINY.hidden * TINY.ffn
    tokens = 4 * SEQ_LEN
    expected = tokens * (products * TINY.layers * layer + 6 * TINY.vocab * TINY.hidden)
    assert 2 * sum(work.product_flop for work in stages) == expected
    squares = 4 * SEQ_LEN**2 * TINY.hidden * TINY.layers
    assert 2 * sum(work.attention_flop for work in stages) == attentions * squares


def test_differences_are_named_with_both_numbers() -> None:
    one, other = (simulated_work(asked(dp_shard=8, sharding="fsdp", microbatches=n))[0] for n in (1, 2))
    assert differences(one, one) == []
    found = differences(one, other)
    flop = {d.what: (d.program, d.simulated) for d in found if d.what.endswith("_flop")}
    assert flop == {name: (getattr(one, name), getattr(other, name)) for name in ("product_flop", "attention_flop")}
    counts = of_work(one), of_work(other)
    assert len(found) - 2 == sum(counts[0][key] != counts[1][key] for key in counts[0] | counts[1])


RULES = {
    "sequence parallelism": (
        {"tp": 2, "dp_shard": 2, "sharding": "fsdp", "microbatches": 3},
        {
            ("all_reduce", "world", 4, 4, "fp32"): -1,  # the loss travels with the gradients' norm
            ("all_reduce", "world", 4, 8, "fp32"): 1,
            ("all_reduce", "tp", 2, 4 * SEQ_LEN, "fp32"): -6,  # its two sums travel together
            ("all_reduce", "tp", 2, 8 * SEQ_LEN, "fp32"): 3,
            ("all_reduce", "tp", 2, 9 * TINY.hidden // 2 * 4, "fp32"): 1,  # a shard of the nine norms' gradients
        },
    ),
    "recomputation": (
        {"tp": 2, "sequence_parallel": False, "recompute": "full", "microbatches": 3},
        {
            ("all_reduce", "world", 2, 4, "fp32"): -1,
            ("all_reduce", "world", 2, 8, "fp32"): 1,
            ("all_reduce", "tp", 2, 4 * SEQ_LEN, "fp32"): -6,
            ("all_reduce", "tp", 2, 8 * SEQ_LEN, "fp32"): 3,
            ("all_reduce", "tp", 2, 2 * SEQ_LEN * TINY.hidden, "bf16"): -12,  # it stops before the down projection
        },
    ),
    "pipeline": (
        {"pp": 2, "microbatches": 3, "precision": "fp16"},
        {
            ("all_reduce", "world", 2, 4, "fp32"): -1,
            ("all_reduce", "world", 2, 8, "fp32"): 1,
            ("recv", "pp", 2, 2 * SEQ_LEN * TINY.hidden, "bf16"): -3,
            ("recv", "pp", 2, 2 * SEQ_LEN * TINY.hidden, "fp16"): 3,
            ("send", "pp", 2, 2 * SEQ_LEN * TINY.hidden, "fp16"): 3,
        },
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_trainer_by_hand(name: str) -> None:
    plan, changes = RULES[name]
    this = asked(**plan)
    work = simulated_work(this)[-1]
    trained, reasons = as_trained(this, work)
    more = Counter({tuple(c): n for c, n in trained.collectives.items()})
    more.subtract({tuple(c): n for c, n in work.collectives.items()})
    assert {key: n for key, n in more.items() if n} == changes
    down = 2 * SEQ_LEN * TINY.hidden * TINY.ffn // 2
    assert work.product_flop - trained.product_flop == (12 * down if name == "recomputation" else 0)
    assert len(reasons) == {"sequence parallelism": 3, "recomputation": 3, "pipeline": 3}[name]


def test_whole_blocks_of_each_stage_are_recomputed() -> None:
    """One of two layers per stage, as the simulator counts; without its down projection, as torch stops before it."""
    this = asked(pp=2, recompute="blocks", recompute_frac=0.5, microbatches=3)
    down = 2 * SEQ_LEN * TINY.hidden * TINY.ffn
    for work in simulated_work(this):
        trained, _ = as_trained(this, work)
        assert work.product_flop - trained.product_flop == 3 * down
        assert work.attention_flop == trained.attention_flop


@pytest.mark.parametrize(("frac", "changes"), [(0.25, (0, 1)), (0.5, (-1, -1)), (0.75, (-3, -2))])
def test_blocks_that_are_recomputed_repeat_their_messages(frac: float, changes: tuple[int, int]) -> None:
    """Of two layers a stage the simulator recomputes (0, 0), (1, 1) and (2, 2), the trainer (0, 1), (1, 1) and (1, 2),
    with two all-reduces each, less one where torch stops before the down projection."""
    this = asked(pp=2, tp=2, sequence_parallel=False, recompute="blocks", recompute_frac=frac, microbatches=3)
    message = ("all_reduce", "tp", 2, 2 * SEQ_LEN * TINY.hidden, "bf16")
    for work, change in zip(simulated_work(this), changes, strict=True):
        trained, _ = as_trained(this, work)
        assert of_work(trained)[message] - of_work(work)[message] == 3 * change
