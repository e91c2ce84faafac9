"""Watts, joules and dollars of a step."""

from __future__ import annotations

from knee.columns import Floats
from knee.specs.constants import constant
from knee.specs.hardware import Gpu


def power_w(gpu: Gpu, *, step_s: Floats, flop: Floats, moved_bytes: Floats, comm_s: Floats) -> Floats:
    """Mean draw of one GPU over a step.

    Formula: demand = idle + (flop * J/FLOP + bytes * J/B + comm_s * W) / step
             P = demand / (1 + (demand/cap)^p)^(1/p)
    Where:   flop and bytes are one GPU's tensor-core work and HBM traffic per step; comm_s is exposed communication
             plus what overlapped communication takes from compute (kappa / (1 + kappa) of it); the second form is a
             rounded minimum of demand and the board's cap
    Source:  energies per GPU in the catalogue; p from an H200's readings at five duty cycles around its cap
    Valid:   averages over many steps; the cap's effect on clocks is part of the GPU's sustained GEMM rate
    """
    dynamic_j = flop * gpu.gemm_j_per_flop + moved_bytes * gpu.hbm_j_per_byte + comm_s * gpu.comm_w
    demand = gpu.idle_w + dynamic_j / step_s
    sharp = constant("power", "cap_sharpness")
    return demand / (1.0 + (demand / gpu.tdp_w) ** sharp) ** (1.0 / sharp)


def usd_per_mtoken(usd_per_gpu_h: float, tokens_per_s_per_gpu: Floats) -> Floats:
    """Rental cost of a million tokens."""
    return usd_per_gpu_h / 3600.0 / tokens_per_s_per_gpu * 1e6
