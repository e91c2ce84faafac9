"""Experts and latent attention train as one process does, in every layout: losses and gradient norms, in fp32.

Weights are drawn large, so that experts matter in losses and norms and routers choose unequally.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import SPLITS_EXPERTS, TrainJob, torch_release
from lanes import of_lane

from .torch_pool import Shown, TorchPool, TorchWork, apart

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TOLERANCE = 1e-5
STEPS, SAVED = 3, 1
SIZES = {"layers": 2, "hidden": 32, "ffn": 48, "heads": 8, "kv_heads": 8, "vocab": 64}
QWEN = Model(name="qwen", qk_norm="head", experts=Experts(count=8, top_k=2, ffn=16), **SIZES)
SHARED = Experts(
    count=8,
    top_k=3,
    ffn=16,
    shared_ffn=16,
    shared_gate=True,
    dense_layers=1,
    scores="sigmoid",
    router_bias=True,
    groups=4,
    top_groups=2,
    weight_scale=1.5,
)
LATENT = LatentAttention(kv_rank=16, nope_size=8, rope_size=4, value_size=8, q_rank=12)
DEEPSEEK = Model(name="deepseek", experts=SHARED, latent_attention=LATENT, **SIZES)
LATENT_ONLY = Model(
    name="latent", latent_attention=LatentAttention(kv_rank=16, nope_size=8, rope_size=4, value_size=8), **SIZES
)
SHORT = replace(QWEN, name="short", layers=1)
MODELS = {"short": SHORT, "qwen": QWEN, "deepseek": DEEPSEEK, "latent": LATENT_ONLY}
PP = {"pp": 2, "micro_batch": 2}
BALANCE = {"balance_loss": 0.5}
CAPPED = {"capacity_factor": 1.0}
OF_EXPERTS = "experts: "
"""Before the names of cases here: dense layouts have the same."""


def _reference(model: str, settings: dict) -> str:
    return f"one {model} {settings}"


# model, name -> plan, and settings of the job that the reference shares
CASES: dict[int, dict[str, tuple[str, dict, dict]]] = {
    1: {
        "accumulation": ("qwen", {"micro_batch": 2}, BALANCE),
        "recompute": ("deepseek", {"recompute": "full"}, {}),
        "compile and recompute": ("short", {"compile": True, "recompute": "full"}, {}),
    },
    2: {
        "fsdp": ("qwen", {"dp_shard": 2}, BALANCE),
        "ep": ("qwen", {"dp_shard": 2, "ep": 2}, BALANCE),
        "ep fsdp": ("deepseek", {"dp_shard": 2, "ep": 2, "sharding": "fsdp"}, {}),
        "ep accumulation": ("deepseek", {"dp_shard": 2, "ep": 2, "micro_batch": 1}, {}),
        "ep ddp": ("deepseek", {"dp_replicate": 2, "ep": 2, "sharding": "ddp"}, {}),
        "ep recompute": ("deepseek", {"dp_shard": 2, "ep": 2, "recompute": "full"}, {}),
        "ep compile": ("short", {"dp_shard": 2, "ep": 2, "compile": True}, {}),
        "ep skewed": ("qwen skewed", {"dp_shard": 2, "ep": 2}, {}),
        "ep capacity": ("qwen", {"dp_shard": 2, "ep": 2}, CAPPED),
        "ep balanced": ("qwen", {"dp_shard": 2, "ep": 2}, {"routing": "balanced"}),
        "ep over cp": ("qwen", {"cp": 2, "ep": 2}, BALANCE),
        "ep over tp": ("deepseek", {"tp": 2, "ep": 2}, {}),
        "etp": ("deepseek", {"tp": 2, "etp": 2}, {}),
        "latent tp": ("latent", {"tp": 2}, {}),
        "latent tp without sp": ("latent", {"tp": 2, "sequence_parallel": False}, {}),
        "latent cp": ("latent", {"cp": 2}, {}),
        "pp": ("deepseek", PP, {}),
    },
    4: {
        "ep x fsdp": ("deepseek", {"dp_shard": 4, "ep": 2, "sharding": "fsdp"}, {}),
        "ep x fsdp accumulation, recompute": (
            "qwen",
            {"dp_shard": 4, "ep": 2, "sharding": "fsdp", "micro_batch": 1, "recompute": "full"},
            BALANCE,
        ),
        "ep x hsdp": ("qwen", {"dp_shard": 2, "dp_replicate": 2, "ep": 2, "sharding": "hsdp"}, BALANCE),
        "ep x ddp": ("qwen", {"dp_replicate": 4, "ep": 2, "sharding": "ddp"}, BALANCE),
        "ep x tp": ("deepseek", {"dp_shard": 2, "tp": 2, "ep": 2}, {}),
        "ep 4 x tp": ("qwen", {"dp_shard": 2, "tp": 2, "ep": 4}, BALANCE),
        "ep x etp": ("deepseek", {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {}),
        "ep x etp skewed": ("qwen skewed", {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {}),
        "fsdp x etp": ("qwen", {"dp_shard": 2, "tp": 2, "etp": 2}, BALANCE),
        "ep x cp": ("qwen", {"dp_shard": 2, "cp": 2, "ep": 2}, BALANCE),
        "ep 4 x cp, cp outside": (
            "qwen",
            {"dp_shard": 2, "cp": 2, "ep": 4, "placement": ["tp", "dp_shard", "pp", "cp", "dp_replicate"]},
            BALANCE,
        ),
        "ep x pp": ("deepseek", {"dp_shard": 2, "ep": 2, **PP}, {}),
        "ep x pp zero_bubble": ("qwen", {"dp_shard": 2, "ep": 2, **PP, "schedule": "zero_bubble"}, BALANCE),
        "ep x pp capacity": ("qwen", {"dp_shard": 2, "ep": 2, **PP}, CAPPED),
        "ep x pp fsdp recompute": ("qwen", {"dp_shard": 2, "ep": 2, **PP, "sharding": "fsdp", "recompute": "full"}, {}),
    },
}
RARE = {
    1: {"compile and recompute"},
    2: {"ep compile"},
    4: {
        "ep x fsdp",
        "ep x ddp",
        "ep x tp",
        "ep x etp",
        "fsdp x etp",
        "ep x cp",
        "ep x pp",
        "ep x pp capacity",
        "ep x pp fsdp recompute",
    },
}
"""Layouts whose pairs of splits another one has, or one that resumes; and ten seconds of capturing."""
CASES = {ranks: of_lane(some, RARE[ranks]) for ranks, some in CASES.items()}
if torch_release() < SPLITS_EXPERTS:
    del CASES[4]["ep x pp zero_bubble"]
RESUMED: dict[int, dict[str, tuple[str, dict]]] = {
    2: {
        "resumed ep": (_reference("deepseek", {}), {"dp_shard": 2, "ep": 2, "sharding": "fsdp"}),
        "resumed etp": ("resumed ep", {"tp": 2, "etp": 2}),
    },
    4: {
        "resumed ep x etp": ("resumed etp", {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}),
        "resumed ep x pp": ("resumed ep x etp", {"dp_shard": 2, "ep": 2, **PP}),
        "resumed fsdp x etp": ("resumed ep x pp", {"dp_shard": 2, "tp": 2, "etp": 2}),
        "resumed ep x ddp": ("resumed fsdp x etp", {"dp_replicate": 4, "ep": 2, "sharding": "ddp"}),
    },
}
"""Each starts from the checkpoint that another layout wrote after the first step, and writes it again."""
RESUMED[4] = of_lane(RESUMED[4], {"resumed ep x pp", "resumed fsdp x etp", "resumed ep x ddp"})
BROKEN = {"ep all_to_all": {"dp_shard": 2, "ep": 2}, "experts' gradients": {"dp_shard": 2, "ep": 2}}


def _case(name: str, model: str, plan: dict, settings: dict, ranks: int, **more: object) -> dict:
    degrees = {k: tuple(v) if k == "placement" else v for k, v in plan.items() if k != "compile"}
    chosen = Plan(**{"micro_batch": 8 // (degrees.get("dp_shard", 1) * degrees.get("dp_replicate", 1)), **degrees})
    job = TrainJob(
        model=MODELS[model.split()[0]],
        plan=chosen,
        gpus=ranks,
        global_batch=8,
        seq_len=16,
        steps=STEPS,
        warmup=0,
        lr=3e-3,
        clip_norm=0.3,
        compile=plan.get("compile", False),
        **settings,
    )
    skewed = {"skew": True} if "skewed" in model else {}
    if "resume" in more:
        more["resume"] = f"{OF_EXPERTS}{more['resume']}"
    return {"name": f"{OF_EXPERTS}{name}", "job": job.as_json(), "std": 0.15, **skewed, **more}


def torch_work() -> TorchWork:
    """All layouts, by world size."""
    cases = {n: [_case(name, *what, n) for name, what in some.items()] for n, some in CASES.items()}
    kinds = {
        _reference(model, settings): (model, settings)
        for some in CASES.values()
        for model, _, settings in some.values()
    }
    cases[1] += [_case(name, model, {}, settings, 1) for name, (model, settings) in kinds.items()]
    first = f"{OF_EXPERTS}{_reference('deepseek', {})}"
    next(case for case in cases[1] if case["name"] == first)["save"] = SAVED
    for n, some in RESUMED.items():
        for name, (before, plan) in some.items():
            cases[n].append(_case(name, "deepseek", plan, {}, n, resume=before, save=SAVED))
    cases[2] += [_case(f"broken {name}", "qwen", plan, BALANCE, 2, **{"break": name}) for name, plan in BROKEN.items()]
    return TorchWork(cases=cases)


@pytest.fixture(scope="module")
def seen(pool: TorchPool) -> Shown:
    """What every case showed, by world size; all ranks say the same."""
    return {
        ranks: {name.removeprefix(OF_EXPERTS): one for name, one in some.items() if name.startswith(OF_EXPERTS)}
        for ranks, some in pool.shown().items()
    }


@pytest.mark.parametrize("ranks", CASES)
def test_every_layout_trains_as_one_process(ranks: int, seen: Shown) -> None:
    differences = {}
    for name, (model, _, settings) in CASES[ranks].items():
        differences[name] = apart(seen[ranks][name], seen[1][_reference(model, settings)])
        print(f"{ranks} {name:35} {differences[name]:8.1e} {seen[ranks][name]['seconds']:6.1f} s")
    assert max(differences.values()) < TOLERANCE, {n: d for n, d in differences.items() if d >= TOLERANCE}


@pytest.mark.parametrize("ranks", RESUMED)
def test_a_checkpoint_moves_between_layouts(ranks: int, seen: Shown) -> None:
    reference = seen[1][_reference("deepseek", {})]
    differences = {name: apart(seen[ranks][name], reference) for name in RESUMED[ranks]}
    for name, difference in differences.items():
        print(f"{ranks} {name:35} {difference:8.1e} {seen[ranks][name]['seconds']:6.1f} s")
    assert max(differences.values()) < TOLERANCE, differences


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_part_shows(name: str, seen: Shown) -> None:
    assert apart(seen[2][f"broken {name}"], seen[1][_reference("qwen", BALANCE)]) > 100 * TOLERANCE


def test_what_routes_differently_differs(seen: Shown) -> None:
    """Else equality would say little."""
    kinds = [("qwen", BALANCE), ("qwen", CAPPED), ("qwen", {"routing": "balanced"}), ("qwen skewed", {})]
    first, *others = (seen[1][_reference(*kind)] for kind in kinds)
    assert all(apart(other, first) > 100 * TOLERANCE for other in others)
