"""Every message of the trainer's experts is one of the simulator's, on fake ranks with balanced routing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize(
    "plan",
    [
        "--ep 2 --dp-shard 2 --pp 2 --set model.experts.dense_layers=1",
        "--ep 2 --etp 2 --tp 2 --dp-shard 2 --sharding fsdp --recompute full",
    ],
)
def test_messages_of_experts_are_the_simulators(plan: str) -> None:
    words = [sys.executable, "-m", "knee", "dryrun", "moe-tiny", *plan.split(), "--global-batch", "8", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["differences"] == []
    assert any("router" in why for why in answer["justified"])
