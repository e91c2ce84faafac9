"""A machine that readings of tests are of."""

from __future__ import annotations

from knee.measure.machine.readings import Machine

MACHINE = Machine(
    probe="kernels",
    date="2026-01-01",
    device="chip",
    kind="cuda",
    devices=1,
    sms=100,
    memory_bytes=1e9,
    power_limit_w=None,
    host="host",
    knee="0",
    python="3",
    torch="2",
    cuda="13",
    driver="1",
    nccl=None,
)
