"""Watts, joules and dollars of a step."""

from __future__ import annotations

import numpy as np

from knee.arrays import Floats
from knee.specs.hardware import Gpu


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
