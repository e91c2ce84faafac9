"""A budget beside one whose replicas exchange only every few steps."""

from __future__ import annotations

import pytest

import knee
from knee.base.arrays import extreme_values
from knee.engine.cost.outer_sync import fitted_replicas, loss_ratio, loss_words, outside_fit
from knee.search.plan_search import search
from knee.search.space import Space
from refusals import refused

SLOW = {"cluster.fabric.nic_bytes_per_s": "1 Gbit/s"}
ASKED = {"cluster": "dgx-h100", "gpus": 64, "days": 3, "sync_every": 30}


@pytest.mark.slow
def test_a_slow_network_gains_by_rare_exchanges() -> None:
    slow, fast = knee.budget(**ASKED, overrides=SLOW, params="1B"), knee.budget(**ASKED, params="1B")
    rare = slow.rare_exchange
    assert rare is not None
    assert fast.rare_exchange is not None
    assert rare.gained > 0 > fast.rare_exchange.gained  # on a fast network, replicas only cost loss
    assert rare.loss_ratio == loss_ratio(slow.best.counted, rare.replicas) > 1
    assert rare.plan.dp_replicate == rare.replicas in fitted_replicas()
    assert rare.extrapolated == ()
    # the reduced set of plans against all of them, on the GPUs and the batch that were chosen
    space = Space(
        model=slow.best.model, gpus=rare.gpus, global_batch=rare.global_batch, seq_len=4096, sync_every=30, max_cp=1
    )
    with extreme_values():
        rates = slow.problem.rates
        every = search(space, rates.cluster, rates.profile, only=f"dp_replicate == {rare.replicas}", keep=1)
    assert 0.95 * float(every.results.tokens_per_s[0]) <= rare.tokens_per_s
    # fewer bits beside compute train on more tokens
    narrow = knee.budget(**ASKED, overrides=SLOW, params="1B", sync_fragments=4, sync_dtype="fp4").rare_exchange
    assert narrow is not None
    assert narrow.loss < rare.loss
    assert "rare_exchange" not in knee.budget(cluster="dgx-h100", gpus=8, days=1, params="350M").to_dict()


@pytest.mark.slow
def test_every_size_is_weighed_and_the_range_of_the_law_is_said() -> None:
    asked = ASKED | {"gpus": 32, "days": 1}
    found = knee.budget(**asked, overrides=SLOW)
    rare = found.rare_exchange
    assert rare is not None
    near = knee.budget(**asked, overrides=SLOW, params=found.best.params).rare_exchange
    assert near is not None
    assert rare.loss <= near.loss
    assert rare.params > found.best.params  # more tokens are worth a larger model
    assert len(rare.extrapolated) == 1  # more than 2.4 billion parameters
    assert [len(outside_fit(n, m, sync_every=h)) for n, m, h in ((1e9, 8, 30), (1e10, 16, 100))] == [0, 3]
    assert ";" not in loss_words(1e9, 8, sync_every=30)


@pytest.mark.parametrize(
    ("given", "field"),
    [(["--sync-every", "0"], "sync_every"), (["--sync-fragments", "4"], "sync_fragments")],
)
def test_exchanges_that_cannot_be(given: list[str], field: str) -> None:
    for command in (["budget", "--days", "1"], ["plan", "llama2-7b", "--local-batch", "1"]):
        error = refused(*command, "--cluster", "dgx-h100", "--gpus", "16", *given)
        assert (error.field or "").removeprefix("plan.") == field
