"""Layers with and without experts: each chunk of a pipeline has its own, and all of them add up to the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from knee.engine.simulator import evaluate
from knee.engine.timeline.pipelines.chunks import layout_of
from knee.engine.workload.layers_per_stage import ModelLayers, expert_pattern
from knee.specs import Model
from knee.specs.load import load_model, load_profile
from tables import job, table

FUSED = load_profile("fused").spec
DEEPSEEK, MAVERICK = load_model("deepseek-v3").spec, load_model("llama4-maverick").spec


def _layers(model: Model) -> ModelLayers:
    return ModelLayers(count=model.walked_layers, experts=expert_pattern(model))


def test_chunks_have_the_layers_of_their_place() -> None:
    layers = _layers(DEEPSEEK)
    assert layers.with_experts(16) == (0, *14 * (4,), 3)
    assert layers.with_experts(31)[:3] == (0, 1, 2)
    assert set(_layers(MAVERICK).with_experts(16)) == {1, 2}
    assert expert_pattern(load_model("mixtral-8x22b").spec) == ()


@pytest.mark.parametrize("model", [DEEPSEEK, MAVERICK], ids=lambda model: model.name)
def test_every_layer_is_in_one_chunk(model: Model) -> None:
    layers = _layers(model)
    for ranks, virtual in ((1, 1), (2, 1), (4, 3), (16, 1), (8, 4), (31, 2)):
        layout = layout_of(layers, ranks, virtual)
        assert sum(layout.expert_layers[kind] for kind in layout.kinds) == sum(layers.experts)
        assert sum(layout.layers[kind] for kind in layout.kinds) == layers.count


def test_compute_is_that_of_the_layers_of_each_stage() -> None:
    """Sixteen stages: the first has three dense layers, the others have experts alone."""
    plan = {"pp": 16, "dp_shard": 64, "ep": 64, "sharding": "zero1", "precision": "fp8"}
    alone = replace(FUSED, p2p_overlap_frac=0.0)  # transfers beside compute slow it down
    j = job(model=DEEPSEEK, profile=alone, microbatches=32, **plan)
    w = evaluate(j.model, j.cluster, j.profile, table(j))
    assert w.parts.kinds is not None
    rows, forward = w.actions.rows, w.actions.walked["F"].column("compute_s")
    dense, sparse = (float(k.compute.layer_forward.time_s[0]) for k in (w.parts.kinds.dense, w.parts.kinds.sparse))
    first, middle = np.flatnonzero(rows.embedding)[0], np.flatnonzero(~rows.embedding & ~rows.head)[0]
    embedding = float(w.compute.embedding_forward.time_s[0])
    assert forward[first] == pytest.approx(3 * dense + embedding, rel=1e-12)
    assert forward[middle] == pytest.approx(4 * sparse, rel=1e-12)
    assert 58 * sparse + 3 * dense + sparse == pytest.approx(62 * float(w.compute.layer_forward.time_s[0]), rel=1e-12)


def test_layers_that_are_alike_need_no_kinds() -> None:
    assert ModelLayers(count=32).with_experts(4) == (0, 0, 0, 0)
    j = job(sharding="ddp", dp_replicate=8)
    assert evaluate(j.model, j.cluster, j.profile, table(j)).parts.kinds is None
