"""What training on so many tokens takes: days, energy, dollars and greenhouse gases."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from knee.base.errors import InputError, argument
from knee.base.units import DAY_S, HOUR_S
from knee.engine.energy import J_PER_KWH, CarbonGrid, host_w_per_gpu, network_w_per_gpu
from knee.engine.reliability.whole_run import run_with_failures
from knee.specs.constants import constant
from knee.specs.hardware import Cluster
from knee.specs.model import Model

J_PER_MWH = 1e3 * J_PER_KWH
MOST_PUE = 10.0
# commas only between groups of three: 1,5T is one and a half to who writes it, and would be read as fifteen
_TOKENS = re.compile(
    r"^\s*+((?:\d{1,3}(?:,\d{3})++|\d[\d_]*+)(?:\.\d*+)?+(?:[eE]\+?\d++)?+|\.\d++(?:[eE]\+?\d++)?+)"
    r"\s*+([kKmMbBtT]?+)\s*+$",
    re.ASCII,
)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A whole run."""

    time_s: float
    low_time_s: float | None
    """If throughput is as high as its band allows; None without a band."""
    high_time_s: float | None
    energy_j: float | None
    """Of the GPUs and what the site needs beside them."""
    cost_usd: float | None
    """Rent of the GPUs; electricity is part of it."""
    co2e_kg: float | None
    """Of that energy."""

    @property
    def days(self) -> float:
        """Days of the run."""
        return self.time_s / DAY_S

    @property
    def energy_mwh(self) -> float | None:
        """Energy of the run in MWh."""
        return None if self.energy_j is None else self.energy_j / J_PER_KWH / 1e3


class RunRates(Protocol):
    """What a step says of a whole run."""

    @property
    def step_s(self) -> float: ...

    @property
    def tokens_per_s(self) -> float: ...

    @property
    def tokens_per_j(self) -> float | None: ...

    @property
    def usd_per_mtoken(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestion:
    """Training on so many tokens, at a site."""

    tokens: float
    grid: CarbonGrid
    pue: float

    def answer(
        self, rates: RunRates, model: Model, cluster: Cluster, gpus: int, band: tuple[float, float] | None
    ) -> dict[str, Any]:
        """The whole run as plain data, hosts and network included; every key carries its unit.

        Formula: energy = (GPUs + hosts + network) * PUE, each its watts times the run's seconds
        Valid:   one run without checkpoints, failures and restarts; ``with_failures`` has the run with them
        """
        bill = bill_of(rates, self.tokens, grid=self.grid, pue=self.pue, band=band)
        parts: dict[str, float | None] = {
            "gpu_mwh": None if bill.energy_mwh is None else bill.energy_mwh / self.pue,
            "host_mwh": host_w_per_gpu(cluster) * gpus * bill.time_s / J_PER_MWH,
            "network_mwh": network_w_per_gpu(cluster, gpus) * gpus * bill.time_s / J_PER_MWH,
        }
        known = [mwh for mwh in parts.values() if mwh is not None]
        drawn = sum(known) if len(known) == len(parts) else None
        total = None if drawn is None else drawn * self.pue
        ends = (bill.low_time_s, bill.high_time_s)
        low, high = (None if end is None else end / DAY_S for end in ends)
        power_w = None if rates.tokens_per_j is None else rates.tokens_per_s / rates.tokens_per_j / gpus
        return {
            "tokens": self.tokens,
            "days": bill.days,
            "low_days": low,
            "high_days": high,
            "gpu_hours": bill.time_s / HOUR_S * gpus,
            "cost_usd": bill.cost_usd,
            "energy_mwh": total,
            **parts,
            "site_mwh": None if total is None or drawn is None else total - drawn,
            "co2e_kg": None if total is None else total * J_PER_MWH * self.grid.kg_co2e_per_j,
            "pue": self.pue,
            "grid": self.grid.name,
            "g_co2e_per_kwh": round(self.grid.g_per_kwh, 6),
            "with_failures": run_with_failures(
                model,
                cluster,
                gpus,
                bill.time_s,
                step_s=rates.step_s,
                cost_usd=bill.cost_usd,
                power_w=power_w,
                energy=parts,
                pue=self.pue,
            ),
        }


def bill_of(
    measured: RunRates, tokens: float, *, grid: CarbonGrid, pue: float, band: tuple[float, float] | None = None
) -> Bill:
    """The bill of a run at this speed, without checkpoints, failures and restarts.

    Formula: time = tokens / (tokens/s); energy = tokens / (tokens/J) * PUE; CO2e = energy * intensity
    Where:   tokens/J counts the GPUs' own draw; PUE is the site's power over that of its machines; the band is the true
             throughput over the predicted one, less one
    Valid:   hosts, switches and storage are left out, so the energy is a lower bound
    """
    time_s = tokens / measured.tokens_per_s
    energy_j = None if measured.tokens_per_j is None else tokens / measured.tokens_per_j * pue
    low, high = band or (math.nan, math.nan)
    return Bill(
        time_s=time_s,
        low_time_s=None if band is None else time_s / (1.0 + high),
        high_time_s=None if band is None else time_s / (1.0 + low),
        energy_j=energy_j,
        cost_usd=None if measured.usd_per_mtoken is None else tokens / 1e6 * measured.usd_per_mtoken,
        co2e_kg=None if energy_j is None else energy_j * grid.kg_co2e_per_j,
    )


def parse_tokens(text: str) -> float:
    """``2T``, ``300B``, ``1.4e12``."""
    match = _TOKENS.match(text)
    tokens = float(match[1].replace("_", "").replace(",", "")) * _TIMES[match[2].lower()] if match else 0.0
    if not 1 <= tokens <= 1e18:
        text = f"{argument('tokens')} {text!r} is not a number of tokens"
        raise InputError(text, hint="for example 2T, 1.5T, 300B or 1.4e12", code="not-an-amount", field="tokens")
    return tokens


def checked_pue(pue: float | None) -> float:
    """The site's power over that of its machines, at least 1; the catalogue's where none is given."""
    if pue is None:
        return constant("site", "pue")
    if not 1 <= pue <= MOST_PUE:
        text = f"{argument('pue')} is {pue:g}; it must be between 1 and {MOST_PUE:g}"
        hint = "a survey found a mean of 1.56; large new sites report 1.1"
        raise InputError(text, hint=hint, code="out-of-range", field="pue")
    return pue
