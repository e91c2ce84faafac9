"""Every layout trains as one process does: losses and gradient norms of three steps, in fp32.

Norms are held as well as losses, because AdamW hides a gradient of the wrong size. Every pair of splits has a layout in
each lane; further layouts of four and eight ranks run nightly.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from knee.specs.model import Model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob
from lanes import NIGHTLY, of_lane

from .torch_pool import Shown, TorchPool, TorchWork, apart

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TINY = Model(
    name="tiny",
    layers=2,
    hidden=32,
    ffn=48,
    heads=8,
    kv_heads=4,
    vocab=64,
    qk_norm="head",
    qkv_bias=True,
    attention_output_bias=True,
    mlp_bias=True,
)
"""Its biases start at 0 and are learned, so the second step holds their gradients."""
DEEP = replace(TINY, layers=4)
"""For four chunks of layers, and for blocks that are gathered ahead."""
ALIKE = replace(TINY, layers=1, ffn=32, vocab=32, kv_heads=8)
"""Few shapes of weights, because each is compiled."""
TOLERANCE = 2e-6
"""Ten times what sums in another order change in so few steps."""
STEPS, SAVED = 3, 1
"""The first holds the gradients, the second what the optimizer made of them, the third its states."""
PP = {"pp": 2, "micro_batch": 2}
TWICE = {"schedule": "interleaved", "virtual_stages": 2, "deep": True}
CASES = {
    1: {
        "one": {},
        "accumulation": {"micro_batch": 2},
        "recompute attention": {"recompute": "attention"},
        "recompute full": {"recompute": "full"},
        "recompute half": {"recompute": "blocks", "recompute_frac": 0.5},
        "one deep": {"deep": True},
        "one alike": {"alike": True},
        "compile": {"alike": True, "compile": True},
    },
    2: {
        "fsdp_no_reshard": {"dp_shard": 2},
        "fsdp": {"dp_shard": 2, "sharding": "fsdp", "deep": True},
        "fsdp prefetch 0": {"dp_shard": 2, "sharding": "fsdp", "prefetch": 0, "deep": True},
        "fsdp_no_reshard accumulation": {"dp_shard": 2, "micro_batch": 1},
        "fsdp accumulation": {"dp_shard": 2, "sharding": "fsdp", "micro_batch": 1},
        "fsdp recompute": {"dp_shard": 2, "sharding": "fsdp", "recompute": "full"},
        "ddp": {"dp_replicate": 2, "sharding": "ddp"},
        "ddp accumulation": {"dp_replicate": 2, "sharding": "ddp", "micro_batch": 1},
        "tp": {"tp": 2},
        "tp without sp": {"tp": 2, "sequence_parallel": False},
        "tp recompute": {"tp": 2, "recompute": "full"},
        "tp compile": {"tp": 2, "compile": True, "alike": True},
        "cp": {"cp": 2},
        "cp ddp": {"cp": 2, "sharding": "ddp"},
        "pp gpipe": {**PP, "schedule": "gpipe"},
        "pp 1f1b": {**PP, "schedule": "1f1b"},
        "pp 1f1b, one microbatch": {"pp": 2, "micro_batch": 8},
        "pp interleaved": {**PP, **TWICE},
        "pp zero_bubble": {**PP, "schedule": "zero_bubble"},
        "pp 1f1b recompute": {**PP, "recompute": "full"},
    },
    4: {
        "hsdp": {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp"},
        "hsdp accumulation": {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp", "micro_batch": 1},
        "replicated fsdp_no_reshard": {"dp_shard": 2, "dp_replicate": 2},
        "fsdp x tp": {"dp_shard": 2, "tp": 2},
        "fsdp x pp": {"dp_shard": 2, **PP},
        "fsdp reshard x pp": {"dp_shard": 2, "sharding": "fsdp", **PP},
        "fsdp reshard x pp interleaved": {"dp_shard": 2, "sharding": "fsdp", **PP, **TWICE},
        "fsdp x pp interleaved": {"dp_shard": 2, **PP, **TWICE},
        "fsdp x pp zero_bubble": {"dp_shard": 2, **PP, "schedule": "zero_bubble"},
        "ddp x pp zero_bubble": {"dp_replicate": 2, "sharding": "ddp", **PP, "schedule": "zero_bubble"},
        "fsdp x cp": {"dp_shard": 2, "cp": 2},
        "fsdp x cp, cp outside": {"dp_shard": 2, "cp": 2, "placement": ["tp", "dp_shard", "pp", "cp", "dp_replicate"]},
        "tp x pp": {"tp": 2, **PP},
        "tp x pp without sp": {"tp": 2, **PP, "sequence_parallel": False},
        "tp x cp": {"tp": 2, "cp": 2},
        "tp 4": {"tp": 4},
        "cp 4": {"cp": 4},
        "pp 4": {"pp": 4, "micro_batch": 1, "deep": True},
        "pp 4 zero_bubble": {"pp": 4, "micro_batch": 1, "schedule": "zero_bubble", "deep": True},
    },
    8: {
        "fsdp x tp x pp": {"dp_shard": 2, "tp": 2, **PP},
        "tp x pp x cp": {"tp": 2, "cp": 2, **PP},
        "hsdp x pp": {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp", "pp": 2, "micro_batch": 1},
        "hsdp x tp": {"dp_shard": 2, "dp_replicate": 2, "tp": 2, "sharding": "hsdp"},
        "hsdp x cp": {"dp_shard": 2, "dp_replicate": 2, "cp": 2, "sharding": "hsdp"},
    },
}
RARE = {
    2: {"tp compile"},
    4: {
        "hsdp",
        "replicated fsdp_no_reshard",
        "fsdp x pp",
        "fsdp reshard x pp",
        "fsdp x pp interleaved",
        "ddp x pp zero_bubble",
        "fsdp x cp",
        "tp x pp without sp",
        "tp 4",
        "cp 4",
        "pp 4",
    },
    8: {"tp x pp x cp", "hsdp x pp", "hsdp x tp", "hsdp x cp"},
}
"""Layouts whose pairs of splits another one has; and ten seconds of capturing."""
CASES = {ranks: of_lane(some, RARE.get(ranks, set())) for ranks, some in CASES.items()}
LOGGED = ("fsdp", "tp", "cp", "pp 1f1b", "pp zero_bubble")
"""Of two ranks: what they issue is held against fake ranks (test_fake_ranks.py)."""
BROKEN = {
    "tp reduce_scatter": {"tp": 2},
    "tp all_reduce": {"tp": 2, "sequence_parallel": False},
    "tp norms": {"tp": 2},
    "cp reduce_scatter": {"cp": 2},
    "ddp all_reduce": {"dp_replicate": 2, "sharding": "ddp"},
}
TRACED = ("fsdp", "fsdp_no_reshard")
RESUMED: dict[int, dict[str, tuple[str, dict]]] = {
    2: {
        "resumed tp": ("one deep", {"tp": 2, "deep": True}),
        "resumed pp interleaved": ("resumed tp", {**PP, **TWICE}),
    },
    4: {
        "resumed fsdp x cp": ("resumed pp interleaved", {"dp_shard": 2, "cp": 2, "deep": True}),
        "resumed hsdp": ("resumed fsdp x cp", {"dp_shard": 2, "dp_replicate": 2, "sharding": "hsdp", "deep": True}),
        "resumed tp x pp": ("resumed hsdp", {"tp": 2, **PP, "deep": True}),
    },
}
"""Each starts from the checkpoint that another layout wrote after the first step, and writes it again."""
RESUMED[4] = of_lane(RESUMED[4], {"resumed tp x pp"})

EIGHT_BIT = {
    1: {"fp8": {"micro_batch": 4}, "fp8 alike": {"micro_batch": 4, "alike": True}},
    2: {
        "fp8 fsdp": {"dp_shard": 2, "sharding": "fsdp"},
        "fp8 ddp": {"dp_replicate": 2, "sharding": "ddp"},
        "fp8 pp": {"pp": 2, "micro_batch": 4},
        "fp8 tp": {"tp": 2, "micro_batch": 4},
        "fp8 tp compile": {"tp": 2, "micro_batch": 4, "compile": True, "alike": True},
    },
    4: {"fp8 fsdp x tp": {"dp_shard": 2, "tp": 2, "sharding": "fsdp"}},
}
"""Microbatches are the same in all of them, because each has scales of its own."""
if not NIGHTLY:
    del EIGHT_BIT[1]["fp8 alike"], EIGHT_BIT[2]["fp8 tp compile"]  # ten seconds of capturing
WIDE = {"hidden": 64, "ffn": 96}
"""Two tensor-parallel ranks have widths of which fp8 products are possible."""
OURS = ("compile", "deep", "alike")
"""Settings of a case that are no settings of a plan."""


def _model(plan: dict) -> Model:
    if plan.get("alike"):
        return replace(ALIKE, hidden=64, ffn=64, vocab=64) if plan.get("precision") == "fp8" else ALIKE
    return replace(DEEP if plan.get("deep") else TINY, **(WIDE if plan.get("precision") == "fp8" else {}))


def _one(plan: dict) -> str:
    """The case of one process with the same model."""
    return "one alike" if plan.get("alike") else "one deep" if plan.get("deep") else "one"


def _job(plan: dict, ranks: int) -> dict:
    degrees = {k: tuple(v) if k == "placement" else v for k, v in plan.items() if k not in OURS}
    chosen = Plan(**{"micro_batch": 8 // (degrees.get("dp_shard", 1) * degrees.get("dp_replicate", 1)), **degrees})
    return TrainJob(
        model=_model(plan),
        plan=chosen,
        gpus=ranks,
        global_batch=8,
        seq_len=32,
        steps=STEPS,
        warmup=0,
        lr=3e-3,
        clip_norm=0.3,
        lr_schedule="cosine",
        lr_warmup=1,
        compile=plan.get("compile", False),
        fp8_smallest=16,
    ).as_json()


def _case(name: str, plan: dict, ranks: int, **more: object) -> dict:
    return {"name": name, "job": _job(plan, ranks), **more}


def torch_work() -> TorchWork:
    """All layouts, by world size."""
    cases = {ranks: [_case(name, plan, ranks) for name, plan in some.items()] for ranks, some in CASES.items()}
    saved = {"one deep", "fp8"}
    for ranks, some in RESUMED.items():
        for name, (before, plan) in some.items():
            cases[ranks].append(_case(name, plan, ranks, resume=before, save=SAVED))
    for ranks, some in EIGHT_BIT.items():
        cases[ranks] += [_case(name, {**plan, "precision": "fp8"}, ranks) for name, plan in some.items()]
    cases[1] = [case | {"save": SAVED} if case["name"] in saved else case for case in cases[1]]
    resumed = {**EIGHT_BIT[2]["fp8 fsdp"], "precision": "fp8"}
    cases[2].append(_case("fp8 resumed", resumed, 2, resume="fp8", save=SAVED))
    cases[2] = [case | {"log": True} if case["name"] in LOGGED else case for case in cases[2]]
    cases[2] += [_case(f"broken {name}", plan, 2, **{"break": name}) for name, plan in BROKEN.items()]
    cases[2] += [
        _case(f"traced {kind}", {"dp_shard": 2, "sharding": kind, "deep": True}, 2, trace=True) for kind in TRACED
    ]
    return TorchWork(cases=cases)


@pytest.fixture(scope="module")
def seen(pool: TorchPool) -> Shown:
    """What every case showed, by world size; all ranks say the same."""
    return pool.shown()


@pytest.mark.parametrize("ranks", CASES)
def test_every_layout_trains_as_one_process(ranks: int, seen: Shown) -> None:
    differences = {name: apart(seen[ranks][name], seen[1][_one(plan)]) for name, plan in CASES[ranks].items()}
    for name, difference in differences.items():
        print(f"{ranks} {name:35} {difference:8.1e} {seen[ranks][name]['seconds']:6.1f} s")
    assert max(differences.values()) < TOLERANCE, {n: d for n, d in differences.items() if d >= TOLERANCE}


def test_layouts_in_fp8_have_the_scales_of_one_process(seen: Shown) -> None:
    for name in ("fp8 fsdp", "fp8 ddp", "fp8 pp"):
        assert apart(seen[2][name], seen[1]["fp8"]) < TOLERANCE, name
    # weights and outputs of attention have scales of their own on each tensor-parallel rank
    for name, one in (("fp8 tp", "fp8"), *([("fp8 tp compile", "fp8 alike")] if NIGHTLY else [])):
        assert TOLERANCE < apart(seen[2][name], seen[1][one]) < 0.05, name
    assert apart(seen[4]["fp8 fsdp x tp"], seen[2]["fp8 tp"]) < TOLERANCE
    assert seen[2]["fp8 resumed"]["losses"] == pytest.approx(seen[1]["fp8"]["losses"][SAVED:], rel=TOLERANCE)


def test_steps_differ(seen: Shown) -> None:
    """Else equality would say little."""
    assert len({round(x, 4) for x in seen[1]["one"]["losses"]}) == STEPS
    assert len({round(x, 4) for x in seen[1]["one"]["norms"]}) == STEPS


@pytest.mark.parametrize("ranks", RESUMED)
def test_a_checkpoint_moves_between_layouts(ranks: int, seen: Shown) -> None:
    differences = {name: apart(seen[ranks][name], seen[1]["one deep"]) for name in RESUMED[ranks]}
    for name, difference in differences.items():
        print(f"{ranks} {name:35} {difference:8.1e} {seen[ranks][name]['seconds']:6.1f} s")
    assert max(differences.values()) < 1e-6, differences


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_collective_shows(name: str, seen: Shown) -> None:
    assert apart(seen[2][f"broken {name}"], seen[1]["one"]) > 10 * TOLERANCE


def test_fsdp_gathers_ahead_and_without_resharding_once(seen: Shown) -> None:
    """FSDP's own markers in a trace."""
    steps, reshard, keep = STEPS, seen[2]["traced fsdp"]["events"], seen[2]["traced fsdp_no_reshard"]["events"]
    for block in range(DEEP.layers):
        assert keep[f"FSDP::all_gather (blocks.{block})"] == steps
        assert reshard[f"FSDP::all_gather (blocks.{block})"] == 2 * steps
        assert reshard[f"FSDP::forward_prefetch for blocks.{block}"] == steps
        assert reshard[f"FSDP::backward_prefetch for blocks.{block}"] == steps
