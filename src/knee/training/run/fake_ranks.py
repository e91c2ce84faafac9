"""The trainer on fake ranks: its own code runs, on tensors that hold nothing, and says what it would do.

One rank of each pipeline stage is traced; the others of its stage do the same. Nothing is timed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from knee.engine.events import Collective, StageWork
from knee.engine.workload.layers_per_stage import chunk_layers
from knee.specs.model import Model
from knee.specs.plan import Plan
from knee.training.parallelism.mesh import ExpertMesh, Mesh, make_mesh
from knee.training.parallelism.precision import TYPES
from knee.training.parallelism.torch_internals import (
    collective_of,
    fake_tensors,
    fake_world,
    is_counted_product,
    stands_for_others,
)
from knee.training.parallelism.trainer import Trainer
from knee.training.parallelism.trainer_job import TrainJob

REPLICAS = "edp_replicate"
"""Copies of the shards of experts."""
TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()} | {torch.int64: "int64", torch.uint8: "uint8"}


Names = dict[tuple[bool, str], str]
"""(is ours, torch's name of a process group) -> the simulator's name of it. FSDP may share a group with CP."""


class Log(TorchDispatchMode):
    """Counts the collectives and the FLOP of every operation of this rank, at local shapes."""

    def __init__(self, names: Names, model: Model) -> None:
        super().__init__()
        self.names = names
        self.padding = 0
        """Columns of values that are only there for a CPU's kernel, which wants values as wide as keys."""
        if model.latent_attention is not None:
            self.padding = max(0, model.head_dim - model.latent_attention.value_size)
        self.place: str | None = None
        """A group that is known from where its collective was called."""
        self.collectives: Counter[Collective] = Counter()
        self.product_flop = self.attention_flop = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(stands_for_others(t) for t in types):
            return NotImplemented  # it calls again with its local part
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if name in _FLOP:
            if name in _PRODUCTS:
                self.product_flop += _FLOP[name](*args)
            else:
                self.attention_flop += _FLOP[name](self.padding, *args)
        else:
            # a product that would silently count as nothing
            assert not is_counted_product(func), name
        sent = collective_of(func, args)
        if sent is not None:
            # one group may be both the ep and the tp group
            place = "ep" if sent.collective == "all_to_all" else self.place
            group = place or self.names[sent.functional, sent.group]
            dtype = TYPE_NAMES[sent.dtype]
            self.collectives[Collective(sent.collective, group, sent.group_size, sent.message_bytes, dtype)] += 1
        return out


def trace(job: TrainJob, report_progress: Callable[[int, int], None] | None = None) -> list[StageWork]:
    """Trace one steady step of each pipeline stage; progress is how many kinds of stages are done, and of how many.

    Kinds are traced side by side, in processes of their own where there are several.
    """
    kinds = stage_kinds(job)
    first = [stages[0] for stages in kinds]
    found: dict[int, StageWork] = {}
    with ExitStack() as stack:
        run: Callable[..., Iterable[StageWork]] = map
        if len(first) > 1:
            context = get_context("forkserver")
            context.set_forkserver_preload([__name__])
            workers = min(len(first), os.cpu_count() or 1)
            run = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context)).map
        for done, (stages, work) in enumerate(zip(kinds, run(partial(trace_stage, job), first), strict=True), 1):
            found |= {s: replace(work, stage=s, rank=stage_rank(job.plan, s)) for s in stages}
            if report_progress:
                report_progress(done, len(kinds))
    return [found[stage] for stage in range(job.plan.pp)]


def stage_kinds(job: TrainJob) -> list[list[int]]:
    """Stages that hold alike parts of the model, and so do the same but for the order of it."""
    plan = job.plan
    counts = chunk_layers(job.model.layers, plan.pp * plan.virtual_stages)
    ends, experts = list(accumulate(counts)), job.model.experts
    kinds: dict[Any, list[int]] = {}
    for stage in range(plan.pp):
        layers = tuple(range(ends[n] - counts[n], ends[n]) for n in range(stage, len(counts), plan.pp))
        alike = tuple(tuple(experts is not None and experts.has_experts(i) for i in some) for some in layers)
        kinds.setdefault((stage == 0, stage == plan.pp - 1, alike), []).append(stage)
    return list(kinds.values())


def trace_stage(job: TrainJob, stage: int) -> StageWork:
    """The second step of the stage's first rank: the first also makes states and looks at shapes."""
    rank = stage_rank(job.plan, stage)
    with fake_world(rank, job.gpus), ExitStack() as stack:
        mesh = make_mesh(job.plan, torch.device("cpu"), fake=True)
        stack.enter_context(fake_tensors())
        trainer, log = Trainer(job, mesh), Log(group_names(mesh), job.model)
        tokens = torch.zeros(job.local_sequences, job.seq_len + 1, dtype=torch.int64)
        trainer.step(tokens)
        logged_step(trainer, log, tokens)
    return StageWork(
        stage=stage,
        rank=rank,
        product_flop=log.product_flop,
        attention_flop=log.attention_flop,
        collectives=dict(log.collectives),
    )


def logged_step(trainer: Trainer, log: Log, tokens: Any) -> Any:
    """Log one step and return its result. One axis may fill the world, so the norm's group is known by its caller."""
    norm_and = trainer.optimizer.norm_and

    def named(loss: Any) -> Any:
        log.place = "world"
        try:
            return norm_and(loss)
        finally:
            log.place = None

    trainer.optimizer.norm_and = named  # type: ignore[method-assign]
    try:
        with log:
            return trainer.step(tokens)
    finally:
        trainer.optimizer.norm_and = norm_and  # type: ignore[method-assign]


def stage_rank(plan: Plan, stage: int) -> int:
    """The first rank of a pipeline stage."""
    inner = plan.placement[: plan.placement.index("pp")]
    return stage * prod(int(getattr(plan, axis)) for axis in inner)


def group_names(mesh: Mesh) -> Names:
    """The simulator's name of every process group of this rank."""
    if mesh.root is None:
        return {}
    names = {(False, dist.group.WORLD.group_name): "world"}
    for axis in mesh.root.mesh_dim_names:
        names |= {(ours, mesh.process_group(axis).group_name): axis for ours in (False, True)}
    if mesh.sharded is not None:
        names[False, mesh.sharded.get_group(mesh.sharded.ndim - 1).group_name] = "dp_shard"
    if mesh.copies is not None:
        names[False, mesh.copies.group_name] = "dp_replicate"
    return names | (_names_of_experts(mesh.experts) if mesh.experts.apart else {})


def _names_of_experts(experts: ExpertMesh) -> Names:
    names = {(True, group.name): name for name, group in (("ep", experts.ep), ("etp", experts.etp)) if group}
    if experts.sharded is not None:
        for dim, name in enumerate(("edp", REPLICAS)[experts.sharded.ndim - 1 :: -1]):
            names[False, experts.sharded.get_group(dim).group_name] = name
    if experts.copies is not None:
        names[False, experts.copies.group_name] = REPLICAS
    return names


def _product(a: Any, b: Any) -> int:
    """(..., m, k) times (..., k, n)."""
    return int(2 * a.numel() * b.shape[-1])


def _pairs(q: Any, k: Any) -> int:
    """Pairs of query and key, over heads and sequences; the last query sees all keys, and half of its own block."""
    queries, keys = q.shape[-2], k.shape[-2]
    return int(q.shape[0] * q.shape[1] * (2 * queries * keys - queries * queries) // 2)


def _attention(padding: int, q: Any, k: Any, v: Any, *_: Any) -> int:
    """Scores and their product with the values."""
    return int(2 * _pairs(q, k) * (q.shape[-1] + v.shape[-1] - padding))


def _attention_backward(padding: int, _: Any, q: Any, k: Any, v: Any, *__: Any) -> int:
    """Scores again, and the gradients of queries, keys, scores and values: five products of the forward's size."""
    return int(2 * _pairs(q, k) * (3 * q.shape[-1] + 2 * (v.shape[-1] - padding)))


_PRODUCTS = ("mm", "addmm", "_grouped_mm", "looped_groups")
_FLOP: dict[str, Callable[..., int]] = {
    "mm": _product,
    "addmm": lambda _, a, b: _product(a, b),
    **dict.fromkeys(("_grouped_mm", "looped_groups"), lambda a, b, *_: _product(a, b)),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
