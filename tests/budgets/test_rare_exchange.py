"""A budget beside one whose replicas exchange only every few steps."""

from __future__ import annotations

import knee


def test_a_slow_network_gains_by_rare_exchanges() -> None:
    asked = {"cluster": "dgx-h100", "gpus": 64, "days": 3, "params": "1B", "sync_every": 50}
    slow = {"cluster.fabric.nic_bytes_per_s": "1 Gbit/s"}
    rare = knee.budget(**asked, overrides=slow).rare_exchange()
    fast = knee.budget(**asked).rare_exchange()
    assert rare is not None
    assert fast is not None
    assert rare.gained > 0 > fast.gained  # on a fast network, replicas only cost loss
    assert rare.replicas > 1
    assert rare.loss_ratio > 1
    assert "rare_exchange" not in knee.budget(cluster="dgx-h100", gpus=8, days=1, params="350M").to_dict()
