"""Random valid jobs over a few models, clusters and stacks of the catalogue."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from knee.specs import Cluster, Job, Model, Plan, Profile
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.plan import (
    AXES,
    CP_METHODS,
    DISPATCHERS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    REDUCE_DTYPES,
    REDUCING,
    ROUTINGS,
    SHARDINGS,
    STATE_DTYPES,
)
from knee.specs.schedules import PIPELINE_SCHEDULES

MODELS = ("llama-tiny", "llama-tiny", "llama2-7b", "llama3-8b", "llama3-8b", "llama3-405b")
MODELS += ("gemma3-4b", "olmo2-7b", "gpt-neox-20b")
MODELS += ("qwen3-30b-a3b", "deepseek-v3", "llama4-maverick")
"""Of Llama's shape, with windows, other norms and a parallel residual, and with experts."""
CLUSTERS = ("dgx-a100", "dgx-h100", "gb200-nvl72")
PROFILES = ("eager", "fused", "paper")


@cache
def model(name: str) -> Model:
    return load_model(name).spec


@cache
def cluster(name: str) -> Cluster:
    return load_cluster(name).spec


@cache
def profile(name: str) -> Profile:
    return load_profile(name).spec


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[Model, Cluster, Profile, tuple[str, ...]]:
    """What a table of plans shares; profiles get knobs that the catalogue leaves at their defaults."""
    where = cluster(draw(st.sampled_from(CLUSTERS)))
    names = [name for name in PROFILES if profile(name).attention in where.gpu.attention]
    stack = replace(
        profile(draw(st.sampled_from(names))),
        reduces_in_flight=draw(st.sampled_from((0, 0, 1, 2))),
        comm_slowdown=draw(st.sampled_from((1.0, 1.0, 1.3))),
        gather_overlap=draw(st.booleans()),
        reduce_overlap=draw(st.booleans()),
        skew_s=draw(st.sampled_from((0.0, 0.5e-3))),
        p2p_overlap_frac=draw(st.sampled_from((0.0, 0.8, 1.0))),
        pat=draw(st.sampled_from(("off", "off", "nccl", "any"))),
    )
    placement = draw(st.one_of(st.just(AXES), st.permutations(AXES).map(tuple)))
    return model(draw(st.sampled_from(MODELS))), where, stack, placement


def modules_of(of: Model) -> list[str]:
    """Parts of a block that the model has; parts of ``moe`` are left to it."""
    lacks = {"moe_act", "shared_experts"}
    lacks |= set() if of.latent_attention else {"mla_up_proj"}
    lacks |= set() if of.experts else {"moe"}
    lacks |= {"mlp"} if of.experts and of.expert_layers == of.layers else set()
    return [module for module in RECOMPUTE_MODULES if module not in lacks]


@st.composite
def plans(draw: st.DrawFn, of: Model, placement: tuple[str, ...], most_microbatches: int = 12) -> tuple[Plan, int, int]:
    """A valid plan, its number of microbatches and its sequence length."""
    sharding = draw(st.sampled_from(SHARDINGS))
    shard = 1 if sharding == "ddp" else draw(st.sampled_from((1, 2, 3, 8, 16, 64, 128)))
    copies = 1 if sharding == "fsdp" else draw(st.sampled_from((1, 2, 4, 32)))
    if sharding == "hsdp":
        shard, copies = max(shard, 2), max(copies, 2)
    tp = draw(st.sampled_from([1, *(size for size in (1, 2, 4, 8, 16) if of.heads % size == 0)]))
    pp = draw(st.sampled_from((1, 1, 2, 3, 4) if of.layers < 16 else (1, 1, 2, 3, 4, 8)))
    schedules = [s.name for s in PIPELINE_SCHEDULES if not (s.splits_backward and sharding in REDUCING)]
    schedules = [s for s in schedules if s != "dualpipe" or pp % 2 == 0]
    chunks = [v for v in (2, 4) if pp > 1 and pp * v <= of.layers]
    if pp > 1 and not chunks:
        schedules.remove("interleaved")
    schedule = draw(st.sampled_from(schedules)) if pp > 1 else "1f1b"
    virtual = draw(st.sampled_from(chunks)) if schedule == "interleaved" else 1
    rounds = draw(st.integers(1, most_microbatches))
    microbatches = rounds if schedule != "interleaved" else pp * max(1, rounds // pp)
    if schedule == "dualpipe":
        microbatches = max(2 * pp, microbatches + microbatches % 2)
    cp, recompute = draw(st.sampled_from((1, 1, 2, 4))), draw(st.sampled_from(RECOMPUTES))
    named = st.lists(st.sampled_from(modules_of(of)), min_size=1, max_size=3, unique=True).map(tuple)
    sparse = {}
    if of.experts is not None:
        ranks = (copies if sharding == "ddp" else shard) * cp * tp
        folds = [
            (e, t) for e in (1, 2, 8, 16, 64) for t in (1, tp) if ranks % (e * t) == 0 and of.experts.count % e == 0
        ]
        ep, etp = draw(st.sampled_from(folds))
        sparse = {
            "ep": ep,
            "etp": etp,
            "dispatcher": draw(st.sampled_from(DISPATCHERS)),
            "ep_overlap": draw(st.booleans()),
            "routing": draw(st.sampled_from(ROUTINGS)),
            "imbalance": draw(st.sampled_from((None, None, 1.5))),
            "capacity_factor": draw(st.sampled_from((None, None, 1.25))),
        }
    plan = Plan(
        **sparse,
        dp_shard=shard,
        dp_replicate=copies,
        tp=tp,
        pp=pp,
        cp=cp,
        sharding=sharding,
        sequence_parallel=draw(st.booleans()) if of.experts is None else True,
        tp_overlap_frac=draw(st.sampled_from((None, 0.0, 0.5, 1.0))),
        schedule=schedule,
        virtual_stages=virtual,
        cp_method=draw(st.sampled_from(CP_METHODS)),
        micro_batch=draw(st.sampled_from((1, 2, 4))),
        recompute=recompute,
        recompute_modules=draw(named) if recompute == "modules" else (),
        prefetch=draw(st.integers(0, 3)),
        reduce_dtype=draw(st.sampled_from(REDUCE_DTYPES)),
        state_dtype=draw(st.sampled_from(STATE_DTYPES)),
        placement=placement,
        sync_every=(every := draw(st.sampled_from((1, 1, 2, 500))) if copies > 1 else 1),
        sync_fragments=draw(st.sampled_from((1, 2))) if every > 1 else 1,
        sync_dtype=draw(st.sampled_from((None, "fp8"))) if every > 1 else None,
        collectives=draw(st.sampled_from(("flat", "flat", "hierarchical"))),
    )
    return plan, microbatches, draw(st.sampled_from((256,) if of.layers < 16 else (1024, 4096)))


@st.composite
def jobs(draw: st.DrawFn, most_microbatches: int = 12) -> Job:
    """A valid job."""
    of, where, stack, placement = draw(settings_of())
    return job_of(of, where, stack, draw(plans(of, placement, most_microbatches)))


@st.composite
def job_tables(draw: st.DrawFn, least: int = 6, most: int = 12, most_microbatches: int = 12) -> list[Job]:
    """Jobs that one table can hold: they differ in plan, batch and length. One table costs little more than one job."""
    of, where, stack, placement = draw(settings_of())
    drawn = draw(st.lists(plans(of, placement, most_microbatches), min_size=least, max_size=most))
    return [job_of(of, where, stack, cut) for cut in drawn]


def job_of(of: Model, where: Cluster, stack: Profile, cut: tuple[Plan, int, int]) -> Job:
    plan, microbatches, seq_len = cut
    return Job(
        model=of,
        cluster=where,
        profile=stack,
        plan=plan,
        gpus=plan.gpus,
        seq_len=seq_len,
        global_batch=plan.dp * plan.micro_batch * microbatches,
    )
