"""The simulator's workload is the trainer's: collectives and FLOP of every rank, one by one, on fake ranks.

The trainer runs on fake ranks; what it issued is held against the simulator's own passes, under the rules of
``validation.program_messages``. Layouts of test_parity.py on two real processes show that fake ranks log the same.
Most of it runs on small tensors that have values, because ``knee dryrun``'s, which have none, are slow; some plans run
on both and log the same.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import pytest

from knee.base.errors import RunFailed
from knee.commands.dryrun.api import DryRun, traced_job
from knee.engine.events import Collective, StageWork
from knee.engine.one_job import simulate
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_profile
from knee.specs.model import Experts, Model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob
from knee.trust.validation.program_messages import (
    RULES,
    Difference,
    _named_type,
    _router_weights,
    as_trained,
    differences,
    simulated_work,
)
from lanes import NIGHTLY, of_lane
from refusals import refused

from . import test_parity
from .torch_pool import TorchPool, TorchWork

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

# sizes that fsdp pads, and that no two weights share
TINY = Model(name="tiny", layers=2, hidden=24, ffn=40, heads=6, kv_heads=2, vocab=56, head_size=8)
PP = {"pp": 2, "micro_batch": 4}
FEWER = {"pp": 2, "micro_batch": 2}
FSDP = {"dp_shard": 2, "sharding": "fsdp"}
HSDP = {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp"}
TWICE = {"schedule": "interleaved", "virtual_stages": 2}
EQUAL = {
    "one": {},
    "accumulation": {"micro_batch": 2},
    "attention recompute": {"recompute": "attention"},
    "full recompute": {"recompute": "full"},
    "fsdp": FSDP,
    "fsdp, padded": {"dp_shard": 8, "sharding": "fsdp"},
    "fsdp, accumulation": {**FSDP, "micro_batch": 1},
    "fsdp, full recompute": {**FSDP, "recompute": "full"},
    "fsdp_no_reshard": {"dp_shard": 2},
    "fsdp_no_reshard, accumulation": {"dp_shard": 2, "micro_batch": 1},
    "fsdp_no_reshard, bf16 reduction": {"dp_shard": 2, "reduce_dtype": "bf16"},
    "replicated fsdp_no_reshard": {"dp_shard": 2, "dp_replicate": 2, "micro_batch": 1},
    "hsdp": HSDP,
    "hsdp, accumulation": {**HSDP, "micro_batch": 1},
    "ddp": {"dp_replicate": 2, "sharding": "ddp"},
    "ddp, accumulation": {"dp_replicate": 2, "sharding": "ddp", "micro_batch": 1},
    "tp": {"tp": 2},
    "tp without sp": {"tp": 2, "sequence_parallel": False},
    "tp, full recompute": {"tp": 2, "recompute": "full"},
    "tp without sp, full recompute": {"tp": 2, "sequence_parallel": False, "recompute": "full"},
    "tp, half recompute": {"tp": 2, "recompute": "blocks", "recompute_frac": 0.5},
    "third of the layers recomputed": {"recompute": "blocks", "recompute_frac": 0.3},
    "tp x pp, half recompute": {**PP, "tp": 2, "recompute": "blocks", "recompute_frac": 0.5, "schedule": "gpipe"},
    "fewer microbatches than stages": {"pp": 4, "micro_batch": 4},
    "cp, attention recompute": {"cp": 2, "recompute": "attention"},
    "gpipe": {**PP, "schedule": "gpipe"},
    "1f1b": PP,
    "interleaved": {**PP, **TWICE},
    "zero bubble": {**PP, "schedule": "zero_bubble"},
    "four stages": {"pp": 4, "micro_batch": 2},
    "fsdp x tp": {"dp_shard": 2, "tp": 2},
    "fsdp x pp": {**FEWER, "dp_shard": 2},
    "fsdp resharded x pp": {**FEWER, **FSDP},
    "hsdp x pp": {**HSDP, "pp": 2, "micro_batch": 1},
    "fsdp x pp, four virtual stages": {"dp_shard": 2, **FEWER, "schedule": "interleaved", "virtual_stages": 4},
    "fsdp x pp interleaved": {**FEWER, **TWICE, "dp_shard": 2},
    "fsdp x pp zero bubble": {**FEWER, "dp_shard": 2, "schedule": "zero_bubble"},
    "ddp x pp zero bubble": {**FEWER, "dp_replicate": 2, "sharding": "ddp", "schedule": "zero_bubble"},
    "tp x pp": {**PP, "tp": 2},
    "tp x pp without sp": {**PP, "tp": 2, "sequence_parallel": False},
    "tp x pp zero bubble": {**PP, "tp": 2, "schedule": "zero_bubble"},
    "hsdp x tp": {**HSDP, "tp": 2},
    "fsdp x tp x pp": {**FEWER, "dp_shard": 2, "tp": 2},
    "cp": {"cp": 2},
    "cp 4": {"cp": 4},
    "fsdp x cp": {"dp_shard": 2, "cp": 2},
    "tp x cp": {"tp": 2, "cp": 2},
    "tp x pp x cp": {**PP, "tp": 2, "cp": 2},
    "fp8, accumulation": {"precision": "fp8", "micro_batch": 2},
    "fp8, fsdp": {**FSDP, "precision": "fp8", "micro_batch": 2, "recompute": "full"},
    "fp8, fsdp_no_reshard x tp": {"dp_shard": 2, "tp": 2, "precision": "fp8"},
    "fp8, rowwise, fsdp x tp": {**FSDP, "tp": 2, "precision": "fp8", "fp8_recipe": "rowwise"},
    "fp8, narrow keys and values": {**FSDP, "tp": 4, "precision": "fp8"},
    "tp outside": {"dp_shard": 2, "tp": 2, "placement": ("dp_shard", "cp", "tp", "pp", "dp_replicate")},
}
RARE = {
    "fewer microbatches than stages",
    "fsdp resharded x pp",
    "fsdp x pp, four virtual stages",
    "tp x pp without sp",
    "tp x pp zero bubble",
    "ddp x pp zero bubble",
    "hsdp x pp",
    "cp 4",
    "tp x pp x cp",
}
EQUAL = of_lane(EQUAL, RARE)
EXPERTS = TrainJob(
    model=replace(TINY, experts=Experts(count=4, top_k=2, ffn=16)),
    plan=Plan(dp_shard=2, ep=2, micro_batch=2),
    gpus=2,
    global_batch=8,
    seq_len=16,
    steps=2,
    warmup=0,
    routing="balanced",
)
WITHOUT_VALUES = ("hsdp", "cp", *(("ddp", "fsdp x tp x pp") if NIGHTLY else ()))
COMMANDS = {
    "thousands": "llama-tiny --gpus 2048 --tp 2 --set model.layers=2",
    "experts": "moe-tiny --ep 2 --dp-shard 2 --pp 2 --set model.experts.dense_layers=1 --global-batch 8",
    "experts cut": "moe-tiny --ep 2 --etp 2 --tp 2 --dp-shard 2 --sharding fsdp --recompute full --global-batch 8",
}
"""What ``knee dryrun`` is asked."""
BATCH, SEQ_LEN = 8, 16


load_cluster, load_profile = cache(load_cluster), cache(load_profile)


def job_of(plan: dict) -> Job:
    """A job of the tiny model, with two layers a stage where there is a pipeline."""
    chosen = Plan(**{"micro_batch": BATCH // (plan.get("dp_shard", 1) * plan.get("dp_replicate", 1)), **plan})
    model = replace(TINY, layers=2 * chosen.pp if chosen.virtual_stages < 4 else 8)
    # one node holds all of it, so that no message shows in two pieces
    cluster, profile = load_cluster("dgx-h100").spec, load_profile("eager").spec
    if chosen.precision == "fp8":
        # widths that fp8 products take, apart from keys and values under tp 4
        model = replace(model, hidden=64, ffn=128, heads=8, kv_heads=4, head_size=16)
        profile = replace(profile, fp8_shared_casts=True, fp8_gathers=True, fp8_smallest=32)
    return Job(
        model=model,
        cluster=cluster,
        profile=profile,
        plan=chosen,
        gpus=chosen.gpus,
        global_batch=BATCH,
        seq_len=SEQ_LEN,
    )


def work_of(plain: dict) -> StageWork:
    calls = {Collective(**{k: v for k, v in c.items() if k != "calls"}): c["calls"] for c in plain["collectives"]}
    return StageWork(**{**plain, "collectives": calls})


@cache
def simulated(name: str) -> list[StageWork]:
    return simulated_work(job_of(EQUAL[name]))


def torch_work() -> TorchWork:
    """Traces on fake ranks, some of them also of layouts that real ranks log, and the command."""
    real = [case for case in test_parity.torch_work().cases[2] if case.get("log")]
    real.append({"name": "experts", "job": EXPERTS.as_json(), "log": True})
    traces = {name: traced_job(job_of(plan)).as_json() for name, plan in EQUAL.items()}
    return TorchWork(
        cases={2: real},
        traces=traces | {f"real {case['name']}": case["job"] for case in real},
        without_values={name: traces[name] for name in WITHOUT_VALUES},
        commands=COMMANDS,
    )


@pytest.fixture(scope="module")
def seen(pool: TorchPool) -> dict[str, StageWork]:
    """Traces on fake ranks by "name/stage"."""
    return {key: work_of(plain) for key, plain in pool.left("traces").items()}


def real_work(pool: TorchPool, name: str) -> list[StageWork]:
    """What each of the two real ranks logged."""
    return [work_of(shown[name]["work"]) for shown in pool.by_rank[2]]


@pytest.mark.parametrize("name", EQUAL)
def test_the_simulators_work_is_the_programs(name: str, seen: dict[str, StageWork]) -> None:
    trained = [as_trained(job_of(EQUAL[name]), work)[0] for work in simulated(name)]
    found = [seen[f"{name}/{work.stage}"] for work in trained]
    assert [work.rank for work in found] == [work.rank for work in trained]
    assert [d for a, b in zip(found, trained, strict=True) for d in differences(a, b)] == []


def test_tensors_that_hold_nothing_log_the_same(pool: TorchPool, seen: dict[str, StageWork]) -> None:
    found = {key: work_of(plain) for key, plain in pool.left("without_values").items()}
    assert {key.split("/")[0] for key in found} == set(WITHOUT_VALUES)
    assert found == {key: seen[key] for key in found}


def test_every_rule_is_needed(seen: dict[str, StageWork]) -> None:
    """Each justified difference shows in some plan (fp16's name apart), and not without its rule."""
    used: set[str] = set()
    for name, plan in EQUAL.items():
        job = job_of(plan)
        for work in simulated(name):
            trained, reasons = as_trained(job, work)
            used.update(reasons)
            assert bool(reasons) == (trained != work)
            assert bool(differences(seen[f"{name}/{work.stage}"], work)) == bool(reasons)
    elsewhere = (_named_type, _router_weights)  # of fp16, and of experts, whose messages are the command's
    assert used == {why for why, change in RULES if change not in elsewhere}


@pytest.mark.parametrize("name", test_parity.LOGGED)
def test_fake_ranks_log_what_real_ranks_do(name: str, pool: TorchPool, seen: dict[str, StageWork]) -> None:
    for real in real_work(pool, name):
        assert differences(real, seen[f"real {name}/{real.stage}"]) == []


def test_experts_log_the_same_and_exchange_every_row(pool: TorchPool, seen: dict[str, StageWork]) -> None:
    fake = seen["real experts/0"]
    assert all(differences(real, fake) == [] for real in real_work(pool, "experts"))
    rows = 2 * 16 * 2  # of a microbatch
    layers, microbatches, hidden = TINY.layers, 2, TINY.hidden
    exchanged = {c.message_bytes: n for c, n in fake.collectives.items() if c.collective == "all_to_all"}
    # there and back, forward and backward; weights go there, their gradients come back
    assert exchanged == {4 * rows * hidden: 4 * layers * microbatches, 4 * rows: 2 * layers * microbatches}


@pytest.fixture(scope="module")
def answers(pool: TorchPool) -> dict[str, dict]:
    """What the command said."""
    done = pool.left("commands")
    assert all(one["code"] == 0 for one in done.values()), done
    return {name: json.loads(one["stdout"]) for name, one in done.items()}


def test_the_command_says_the_same_of_thousands_of_ranks(answers: dict[str, dict]) -> None:
    assert answers["thousands"]["differences"] == []
    gathers = [c for c in answers["thousands"]["stages"][0]["collectives"] if c["collective"] == "all_gather"]
    assert [(c["group"], c["group_size"], c["calls"], c["dtype"]) for c in gathers] == [
        ("dp_shard", 1024, 1, "bf16"),
        ("dp_shard", 1024, 2, "bf16"),
        ("tp", 2, 10, "bf16"),
    ]


@pytest.mark.parametrize("name", ["experts", "experts cut"])
def test_messages_of_experts_are_the_simulators(name: str, answers: dict[str, dict]) -> None:
    """With balanced routing."""
    assert answers[name]["differences"] == []
    assert any("router" in why for why in answers[name]["justified"])


def test_what_is_not_trained_is_not_traced() -> None:
    assert refused("dryrun", "llama-tiny", "--gpus", "2", "--sharding", "zero1").code == "not-trained"


def test_a_result_has_rows_and_says_what_differs() -> None:
    work = tuple(simulated("four stages"))
    equal = DryRun(job=job_of(EQUAL["four stages"]), program=work, simulated=work, justified=(), differences=())
    equal.check_equal()
    assert equal.equal_stages() == [[0], [1, 2], [3]]
    assert [stage["simulated"]["rank"] for stage in equal.to_dict()["stages"]] == [0, 1, 2, 3]
    assert len(equal.rows()) == sum(len(one.collectives) for one in work)
    assert all(row["calls"] == row["simulated_calls"] > 0 for row in equal.rows())
    found = Difference(stage=0, what="product_flop", program=1, simulated=2)
    with pytest.raises(RunFailed) as failed:
        replace(equal, differences=(found,)).check_equal()
    assert failed.value.code == "unexplained-differences"


def test_stages_alike_do_the_same(seen: dict[str, StageWork]) -> None:
    """What lets the command trace one of them."""
    one, two = (seen[f"four stages/{stage}"] for stage in (1, 2))
    assert differences(one, two) == []


COUNTED = (
    "fsdp",
    "hsdp",
    "hsdp, accumulation",
    "fsdp x pp",
    "tp",
    "tp without sp",
    "1f1b",
    "interleaved",
    "fsdp x tp x pp",
)


@pytest.mark.parametrize("name", COUNTED)
def test_the_answers_table_counts_the_same_calls(name: str) -> None:
    """``comm_loads`` of an answer, mean over stages, against the passes."""
    job = job_of(EQUAL[name])
    calls: Counter[tuple[str, str]] = Counter()
    for work in simulated(name):
        for c, n in work.collectives.items():
            calls[c.collective.replace("recv", "send_recv"), c.group] += n
    table: Counter[tuple[str, str]] = Counter()
    for load in simulate(job).comm_loads:
        if load.collective != "straggler_wait":
            table[load.collective, load.group] += load.calls * job.plan.pp
    assert table == pytest.approx(calls)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("olmo2-7b", "model.qk_norm"),
        ("gemma2-2b", "model.mlp"),
        ("gpt-neox-20b", "model.mlp"),
    ],
)
def test_models_that_are_not_trained_are_not_traced(model: str, field: str) -> None:
    error = refused("dryrun", model, "--gpus", "2", "--seq-len", "64")
    assert (error.code, error.field) == ("not-trained", field)
