"""The part of a page about a whole run: days, GPU-hours, dollars, energy and CO2e."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knee.report.page import Section
from knee.report.tables import record_table
from knee.units import amount, short

WORDS = {
    "tokens": "tokens",
    "days": "days",
    "low_days": "days, at the highest throughput of the range",
    "high_days": "days, at the lowest throughput of the range",
    "gpu_hours": "GPU-hours",
    "cost_usd": "USD",
    "energy_mwh": "MWh",
    "gpu_mwh": "MWh of GPUs",
    "host_mwh": "MWh of hosts",
    "network_mwh": "MWh of the network",
    "site_mwh": "MWh of cooling and power supply",
    "co2e_kg": "kg CO2e",
    "pue": "PUE",
    "g_co2e_per_kwh": "g CO2e per kWh",
}
FAILED = {"days": "days with failures", "gpu_hours": "GPU-hours with failures", "cost_usd": "USD with failures"}


def training_section(run: Mapping[str, Any]) -> Section:
    """``run`` is ``training`` of an answer."""
    failed = run["with_failures"]
    values = {words: (key, run[key]) for key, words in WORDS.items()}
    values |= {words: (key, failed.get(key)) for key, words in FAILED.items()}
    rows = [
        {"what": words, "value": short(value) if key == "tokens" else amount(value)}
        for words, (key, value) in values.items()
        if value is not None
    ]
    return Section(
        id="training",
        title="The whole run",
        says="GPUs, hosts, network and the site's cooling and power supply; without checkpoints and failures, except "
        "where they are named.",
        blocks=(record_table("Training", ("what", "value"), rows),),
    )
