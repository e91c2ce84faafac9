"""The ranks of a stage's groups, against the mesh written out."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from knee.engine.one_job import evaluated
from knee.engine.timeline.step_events import group, stage_rank
from knee.specs.load import load_model
from knee.specs.plan import AXES
from tables import job

SIZES = {"pp": 2, "dp_shard": 2, "cp": 2, "tp": 2}
ORDERS = [order for order in permutations(AXES) if order.index("dp_replicate") == 2][::4]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("axes", [("tp",), ("dp_shard", "cp"), ("dp_shard", "cp", "tp"), ("dp_replicate",)])
def test_ranks_of_a_group_are_those_of_the_mesh(order: tuple[str, ...], axes: tuple[str, ...]) -> None:
    """The first axis of a placement has neighbouring ranks."""
    plan = job(model=load_model("llama-tiny").spec, seq_len=256, placement=order, microbatches=2, **SIZES)  # type: ignore[arg-type]
    parts = evaluated(plan).parts
    mesh = np.arange(plan.gpus).reshape([SIZES.get(axis, 1) for axis in reversed(order)])
    for stage in range(2):
        kept = tuple(slice(None) if axis in axes else stage if axis == "pp" else 0 for axis in reversed(order))
        found = group(parts, "some", axes, stage)
        assert sorted(found.ranks) == sorted(mesh[kept].ravel().tolist())
        assert stage_rank(parts, stage) == min(found.ranks)
