"""The ranks of a stage's process groups, for the trace of one plan."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from knee.engine.events import RankGroup
from knee.engine.timeline.step_parts import StepParts
from knee.specs.plan import AXES


def group(parts: StepParts, name: str, axes: tuple[str, ...], stage: int) -> RankGroup:
    """The group of the stage's first rank over some axes."""
    table = parts.table
    stride, members, strides = 1, np.zeros(1, dtype=np.int64), []
    for axis in table.placement:
        degree = int(getattr(table, axis)[0])
        if axis in axes and degree > 1:
            strides.append((stride, degree))
            members = (members[None, :] + stride * np.arange(degree)[:, None]).ravel()
        stride *= degree
    first = stage_rank(parts, stage)
    even = all(outer == inner * size for (inner, size), (outer, _) in pairwise(strides))
    ranks = () if even else tuple((first + np.sort(members)).tolist())
    stride = strides[0][0] if strides else 1
    return RankGroup(name=name, size=len(members), first_rank=first, stride=stride, members=ranks)


def expert_groups(parts: StepParts, stage: int) -> tuple[RankGroup, RankGroup]:
    """The groups of the stage's first rank that hold different experts (ep), every etp-th of its neighbours, and that
    split each expert (etp)."""
    table = parts.table
    ep, etp, first = int(table.ep[0]), int(table.etp[0]), stage_rank(parts, stage)
    return (
        RankGroup(name="ep", size=ep, first_rank=first, stride=etp),
        RankGroup(name="etp", size=etp, first_rank=first, stride=1),
    )


def stage_rank(parts: StepParts, stage: int) -> int:
    """Global rank of a stage's first GPU."""
    stride = 1
    for axis in parts.table.placement:
        if axis == "pp":
            return stage * stride
        stride *= int(getattr(parts.table, axis)[0])
    raise AssertionError(f"pp is not among {AXES}")


def neighbours(parts: StepParts, stage: int, other: int) -> RankGroup:
    """The pair of ranks between two stages."""
    here, there = stage_rank(parts, stage), stage_rank(parts, other)
    return RankGroup(name="pp", size=2, first_rank=min(here, there), stride=max(abs(here - there), 1))


def shard_group(parts: StepParts, stage: int) -> RankGroup:
    return group(parts, "dp_shard", ("dp_shard", "cp"), stage)


def expert_shard_group(parts: StepParts, stage: int) -> RankGroup:
    """Ranks over which the experts of the stage's first rank are sharded: beyond those that hold other experts."""
    table, first = parts.table, stage_rank(parts, stage)
    stride = int(table.ep[0] * table.etp[0])
    return RankGroup(name="edp", size=int(parts.traffic.expert_shards[0]), first_rank=first, stride=stride)
