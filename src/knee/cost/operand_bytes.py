"""Bytes of an operand's element, by the type of a product."""

from __future__ import annotations

from knee.specs.hardware import GemmType
from knee.workload.operations import NVFP4_BYTES

OPERAND_BYTES: dict[GemmType, float] = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0 + 4 / 128, "nvfp4": NVFP4_BYTES}
"""With its share of a scale: fp32 for 128 of block fp8, one byte for 16 of NVFP4."""
