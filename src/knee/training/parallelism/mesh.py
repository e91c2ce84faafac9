"""Which ranks work together: the plan's axes as process groups."""

from __future__ import annotations

import atexit
import os
import warnings
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from knee.base.errors import SpecError
from knee.engine.workload.layers_per_stage import chunk_layers
from knee.specs.plan import Plan
from knee.training.parallelism.torch_internals import NamedGroup
from knee.training.parallelism.trainer_job import TrainJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMesh:
    """This rank's place among the ranks of its stage, folded for experts: edp * ep * etp."""

    ep: NamedGroup | None = None
    """Ranks that hold different experts."""
    etp: NamedGroup | None = None
    """Ranks that hold different columns of the same experts."""
    sharded: Any = None
    """DeviceMesh over which FSDP2 shards the experts; None where they are not."""
    copies: Any = None
    """Process group over which their gradients are averaged (ddp); None where there is none."""
    apart: bool = False
    """Whether experts are spread over other ranks than a block's other weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's place in the plan. Axes of degree 1 have no group."""

    plan: Plan
    rank: int
    world: int
    device: Any
    root: Any
    """torch's DeviceMesh of the axes of more than one rank, outermost first; None for one process."""
    sharded: Any
    """DeviceMesh over which FSDP2 works: (dp_replicate,) dp_shard x cp; None where nothing is sharded."""
    copies: Any
    """Process group over which unsharded gradients are averaged (ddp); None where there is none."""
    experts: ExpertMesh = field(default_factory=ExpertMesh)
    fake: bool = False
    """Fake ranks: no values, no weights to be set."""

    def size(self, axis: str) -> int:
        """Return the degree of an axis."""
        return int(getattr(self.plan, axis))

    def index(self, axis: str) -> int:
        """This rank's place along the axis."""
        return int(self.root.get_local_rank(axis)) if self.size(axis) > 1 else 0

    def process_group(self, axis: str) -> Any:
        """torch's process group of the axis; None for degree 1."""
        return self.root.get_group(axis) if self.size(axis) > 1 else None

    def group(self, axis: str) -> NamedGroup | None:
        """The axis's group for functional collectives; None for degree 1."""
        return NamedGroup.of(self.process_group(axis)) if self.size(axis) > 1 else None


def local_device(kind: str) -> Any:
    """Return this process's device."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device("cpu")


def make_mesh(plan: Plan, device: Any, *, fake: bool = False) -> Mesh:
    """The plan's groups over the running process group; placement says which axis is innermost."""
    axes = [axis for axis in reversed(plan.placement) if getattr(plan, axis) > 1]
    if not axes:
        alone = _mesh_of_one(device) if plan.sharding == "fsdp" else None
        return Mesh(
            plan=plan,
            rank=0,
            world=1,
            device=device,
            root=None,
            sharded=alone,
            copies=None,
            experts=ExpertMesh(sharded=alone),
            fake=fake,
        )
    shape = tuple(getattr(plan, axis) for axis in axes)
    if prod(shape) != dist.get_world_size():
        raise SpecError(f"the plan fills {prod(shape)} processes, but {dist.get_world_size()} were started")
    root = init_device_mesh(device.type, shape, mesh_dim_names=tuple(axes))
    sharded, copies = _sharded(plan, root, axes), _copies(plan, root, axes)
    return Mesh(
        plan=plan,
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        device=device,
        root=root,
        sharded=sharded,
        copies=copies,
        experts=_expert_mesh(plan, device, root, sharded, copies),
        fake=fake,
    )


def _mesh_of_one(device: Any) -> Any:
    """What FSDP2 needs to run on one process: the program that runs on many, without their communication."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(dist.destroy_process_group)
    return init_device_mesh(device.type, (1,), mesh_dim_names=("dp_shard",))


def _flat(root: Any, axes: list[str], wanted: tuple[str, ...], name: str) -> Any:
    """One mesh dimension over several axes, in the mesh's own order; None where the plan has none of them."""
    there = tuple(axis for axis in axes if axis in wanted)
    if len(there) > 1:
        return root[there]._flatten(name)
    return root[there[0]] if there else None


def _sharded(plan: Plan, root: Any, axes: list[str]) -> Any:
    if plan.sharding == "ddp":
        return None
    shards = _flat(root, axes, ("dp_shard", "cp"), "shards")
    if shards is None:
        return None
    if plan.dp_replicate == 1:
        return shards
    with warnings.catch_warnings():  # torch 2.11 has no other way to put a flattened dimension beside one of the root's
        warnings.filterwarnings("ignore", message="Slicing a flattened dim", category=UserWarning)
        return root["dp_replicate", shards.mesh_dim_names[0]]


def _copies(plan: Plan, root: Any, axes: list[str]) -> Any:
    if plan.sharding != "ddp":
        return None
    copies = _flat(root, axes, ("dp_replicate", "cp"), "copies")
    return None if copies is None else copies.get_group()


def _expert_mesh(plan: Plan, device: Any, root: Any, sharded: Any, copies: Any) -> ExpertMesh:
    """Experts with tp as their etp, and nothing else, lie where the rest of their block lies."""
    if plan.ep == 1 and plan.etp == plan.tp:
        etp = NamedGroup.of(root.get_group("tp")) if plan.etp > 1 else None
        return ExpertMesh(etp=etp, sharded=sharded, copies=copies)
    folded = folded_ranks(plan)
    # replicas of shards are a dimension of FSDP2's mesh, and it has one of shards even if that is of one rank
    replicated = plan.sharding != "ddp" and plan.dp_replicate > 1
    kept = [name for name, size in folded.items() if size > 1 or (name == "edp" and replicated)]
    ranks = torch.tensor(_order_of_ranks(plan)).view([folded[name] for name in kept])
    mesh = DeviceMesh(device.type, ranks, mesh_dim_names=tuple(kept))

    def group(name: str) -> NamedGroup | None:
        return NamedGroup.of(mesh.get_group(name)) if name in kept else None

    ddp, shards = plan.sharding == "ddp", mesh["edp"] if "edp" in kept else None
    return ExpertMesh(
        ep=group("ep"),
        etp=group("etp"),
        sharded=None if ddp else mesh["edp_replicate", "edp"] if replicated else shards,
        copies=shards.get_group() if ddp and shards is not None else None,
        apart=True,
    )


def folded_ranks(plan: Plan) -> dict[str, int]:
    """Axes of a stage's ranks as its experts have them, outermost first. tp is innermost, so that etp may be tp."""
    replicas = 1 if plan.sharding == "ddp" else plan.dp_replicate
    edp = plan.dp * plan.cp * plan.tp // (replicas * plan.ep * plan.etp)
    return {"pp": plan.pp, "edp_replicate": replicas, "edp": edp, "ep": plan.ep, "etp": plan.etp}


def _order_of_ranks(plan: Plan) -> list[int]:
    """All ranks, in the order in which they are folded."""
    placed = list(reversed(plan.placement))
    first = ["pp"] if plan.sharding == "ddp" else ["pp", "dp_replicate"]
    order = [*first, *(axis for axis in placed if axis not in (*first, "tp")), "tp"]
    ranks = torch.arange(plan.gpus).view([getattr(plan, axis) for axis in placed])
    return [int(rank) for rank in ranks.permute([placed.index(axis) for axis in order]).flatten()]


def chunks_here(job: TrainJob, mesh: Mesh) -> list[tuple[int, range]]:
    """Return (number, layers) of each chunk of this rank, assigned as the simulator assigns them."""
    plan = job.plan
    counts = chunk_layers(job.model.layers, plan.pp * plan.virtual_stages)
    ends = list(accumulate(counts))
    numbers = range(mesh.index("pp"), len(counts), plan.pp)
    return [(n, range(ends[n] - counts[n], ends[n])) for n in numbers]
