"""Microbatches that are counted instead of walked, over plans of a whole space: within 0.2% of walking all."""

from __future__ import annotations

import numpy as np
import pytest

from knee.engine.simulator import evaluate
from knee.search.space import Space, whole_table
from knee.specs.load import load_cluster, load_model, load_profile

pytestmark = pytest.mark.slow

JOBS = [("llama-1b", "dgx-h100", "paper", 16, 128), ("llama2-13b", "dgx-a100", "fused", 64, 256)]


@pytest.mark.parametrize(("model", "cluster", "profile", "gpus", "batch"), JOBS)
def test_counted_microbatches_are_walked_ones(model: str, cluster: str, profile: str, gpus: int, batch: int) -> None:
    specs = load_model(model).spec, load_cluster(cluster).spec, load_profile(profile).spec
    table = whole_table(Space(model=specs[0], gpus=gpus, global_batch=batch, seq_len=4096))
    piped = np.flatnonzero((table.pp > 1) & (table.microbatches > 8))
    some = table.rows(np.sort(np.random.default_rng(0).choice(piped, 500, replace=False)))
    counted, walked = (evaluate(*specs, some, fold=fold).results.step_s for fold in (True, False))
    assert np.abs(counted / walked - 1).max() < 2e-3
