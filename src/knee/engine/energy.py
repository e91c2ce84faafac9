"""Watts, joules and dollars of a step."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError, argument
from knee.specs.catalog import catalog_file, did_you_mean
from knee.specs.constants import constant
from knee.specs.hardware import Cluster, Gpu

# What a joule from the socket emits: grids of ``catalog/grids.toml``, or a number of one's own.

J_PER_KWH = 3.6e6
MOST_G_PER_KWH = 5000.0
"""No fuel emits as much; more is a mistake of units."""
_WRITTEN = re.compile(r"^\s*+(\d++(?:\.\d*+)?+|\.\d++)\s*+(?:g/kWh)?+\s*+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonGrid:
    """Where the electricity comes from."""

    name: str
    kg_co2e_per_j: float
    kind: str
    source: str

    @property
    def g_per_kwh(self) -> float:
        """The intensity in grams per kilowatt-hour, as people write it."""
        return self.kg_co2e_per_j * 1e3 * J_PER_KWH


def grid_names() -> list[str]:
    """Grids that the catalogue has."""
    return list(catalog_file("grids.toml"))


def grid(name: str) -> CarbonGrid:
    """A grid by its name, or from a number of grams per kilowatt-hour."""
    match = _WRITTEN.match(name)
    if match is not None:
        return CarbonGrid(
            name=f"{float(match[1]):g} g/kWh", kg_co2e_per_j=_kg_per_j(name), kind="user", source=argument("grid")
        )
    entry = catalog_file("grids.toml").get(name)
    if entry is None:
        close = did_you_mean(name, grid_names())
        guess = f"did you mean {close}? " if close else ""
        hint = f"{guess}use one of {', '.join(grid_names())}, or grams per kWh"
        raise InputError(f"no grid named {name!r}", hint=hint, code="unknown-name", field="grid")
    value = entry["intensity"]
    return CarbonGrid(name=name, kg_co2e_per_j=_kg_per_j(value["value"]), kind=value["kind"], source=value["source"])


def _kg_per_j(text: str) -> float:
    match = _WRITTEN.match(text)
    value = float(match[1]) if match else math.nan
    if not value <= MOST_G_PER_KWH:
        hint = "give grams of CO2e per kWh, such as 250"
        raise InputError(f"a grid of {text} is higher than for any fuel", hint=hint, code="out-of-range", field="grid")
    return value / 1e3 / J_PER_KWH


# Watts of what stands beside the GPUs: hosts and the switches of the network.


def host_w_per_gpu(cluster: Cluster) -> float:
    """A GPU's share of its node's other parts.

    Formula: host_frac * tdp_w
    Source:  ``site.host_frac`` in catalog/constants.toml, measured on a node of eight H100
    Valid:   nodes at work; hosts draw nearly as much whatever the GPUs do
    """
    return constant("site", "host_frac") * cluster.gpu.tdp_w


def network_w_per_gpu(cluster: Cluster, gpus: int) -> float:
    """A GPU's share of the switches between nodes; NICs belong to the host.

    Formula: (2 L - 1) ports * W per port * NIC rate / port rate
    Where:   L levels of switches: one, and one for each tier that a job of so many nodes crosses; a path up and down
             passes two ports a level, and its uppermost switch one on each side
    Source:  ``site.switch_port_w`` in catalog/constants.toml
    Valid:   a fabric without oversubscription, of the size that the job needs; 0 within a node
    """
    nodes = math.ceil(gpus / cluster.node.gpus)
    if nodes == 1:
        return 0.0
    levels = 1 + sum(nodes > tier.nodes for tier in cluster.fabric.tiers)
    rate = cluster.fabric.nic_bytes_per_s / constant("site", "switch_port_bytes_per_s")
    return (2 * levels - 1) * constant("site", "switch_port_w") * rate


def demand_w(gpu: Gpu, *, step_s: Floats, flop: Floats, moved_bytes: Floats, comm_s: Floats) -> Floats:
    """Mean draw of one GPU over a step if its board had no limit.

    Formula: idle + (flop * J/FLOP + bytes * J/B + comm_s * W) / step
    Where:   flop and bytes are one GPU's tensor-core work and HBM traffic per step; comm_s is exposed communication
             plus what overlapped communication takes from compute (kappa / (1 + kappa) of it)
    Source:  energies per GPU in the catalogue
    Valid:   work of matrix products; attention kernels that do not use the newest tensor-core instructions draw more
    """
    dynamic_j = flop * gpu.gemm_j_per_flop + moved_bytes * gpu.hbm_j_per_byte + comm_s * gpu.comm_w
    return gpu.idle_w + dynamic_j / step_s


def power_w(gpu: Gpu, *, step_s: Floats, flop: Floats, moved_bytes: Floats, comm_s: Floats) -> Floats:
    """Mean draw of one GPU over a step.

    Formula: P = demand / (1 + (demand/cap)^p)^(1/p)
    Where:   a rounded minimum of demand and the board's cap; p is the GPU's cap_sharpness
    Source:  `knee probe power` fits p on windows around the cap
    Valid:   averages over many steps; the cap's effect on clocks is part of the GPU's sustained GEMM rate
    """
    demand = demand_w(gpu, step_s=step_s, flop=flop, moved_bytes=moved_bytes, comm_s=comm_s)
    sharp = gpu.cap_sharpness
    # the smaller of the two is taken out first: a high power of a demand far above the cap has no float
    low, high = np.minimum(demand, gpu.tdp_w), np.maximum(demand, gpu.tdp_w)
    return low / (1.0 + (low / high) ** sharp) ** (1.0 / sharp)


def usd_per_mtoken(usd_per_gpu_h: float, tokens_per_s_per_gpu: Floats) -> Floats:
    """Rental cost of a million tokens."""
    return usd_per_gpu_h / 3600.0 / tokens_per_s_per_gpu * 1e6
