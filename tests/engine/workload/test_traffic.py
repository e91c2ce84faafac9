"""What one GPU that shards nothing holds is the model."""

from __future__ import annotations

import pytest

from knee.engine.cost.compute_costs import shapes_of
from knee.engine.workload.parameters import parameter_count
from knee.engine.workload.traffic import Modes, traffic_of
from knee.specs.load import load_model
from tables import EAGER, job, table


@pytest.mark.parametrize("name", ["llama2-7b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
@pytest.mark.parametrize("pp", [1, 2])
def test_elements_before_sharding_are_the_models_parameters(name: str, pp: int) -> None:
    """All of them on one stage; on the fuller of two stages half or more, and less than all."""
    model = load_model(name).spec
    plans = table(job(model=model, pp=pp, sharding="ddp", seq_len=1024, microbatches=4))
    modes = Modes.of(plans)
    traffic = traffic_of(model, plans, modes, fp8=shapes_of(model, plans, EAGER).fp8)
    whole = float(traffic.whole_elements(model, plans)[0])
    owned = float(traffic.owned_elements(model, plans, modes)[0])
    every = parameter_count(model)
    if pp == 1:
        assert whole == owned == pytest.approx(every, rel=1e-9)
    else:
        assert every / 2 <= whole == owned < 0.6 * every


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_shards_of_all_ranks_are_the_model(name: str, ep: int) -> None:
    """Experts are sharded over the ranks that hold the same ones, and other weights over all."""
    model = load_model(name).spec
    plans = table(job(model=model, dp_shard=8, ep=ep, sharding="fsdp", seq_len=1024))
    modes = Modes.of(plans)
    traffic = traffic_of(model, plans, modes, fp8=shapes_of(model, plans, EAGER).fp8)
    assert 8 * float(traffic.owned_elements(model, plans, modes)[0]) == pytest.approx(parameter_count(model), rel=1e-3)
