"""Matrix products that others measured and published, which nothing was fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from knee.engine.cost.kernel_cost import gemm_s
from knee.specs.load import load_cluster

# TFLOP/s of squares, cuBLASLt and hipBLASLt with random data: github.com/samuel-bohman/AI-benchmarking-guide,
# Azure_Results of ND A100 v4 (fp16), ND H100 v5, ND H200 v5, ND GB200 v6 and ND MI300X v5 (fp8)
PUBLISHED = {
    ("dgx-a100", "fp16"): {2048: 221.8, 4096: 228.0, 8192: 253.7, 16384: 256.5},
    ("dgx-h100", "fp8"): {2048: 1011.3, 4096: 1216.9, 8192: 1290.1, 16384: 1377.3, 32768: 1382.2},
    ("dgx-h200", "fp8"): {2048: 1013.4, 4096: 1249.1, 8192: 1300.6, 16384: 1366.3, 32768: 1349.5},
    ("gb200-nvl72", "fp8"): {2048: 1676.1, 4096: 2802.7, 8192: 2848.0, 16384: 2929.0, 32768: 2973.3},
    ("mi300x-8", "fp8"): {4096: 955.17, 8192: 1159.23, 16384: 1015.1, 32768: 1029.14},
}


@pytest.mark.parametrize(("machine", "squares"), PUBLISHED.items(), ids=[name for name, _ in PUBLISHED])
def test_squares(machine: tuple[str, str], squares: dict[int, float]) -> None:
    cluster, precision = machine
    gpu = load_cluster(cluster).spec.gpu
    side = np.array([float(n) for n in squares])
    seconds = gemm_s(gpu, "fp8" if precision == "fp8" else "bf16", side, side, side)
    assert 2 * side**3 / seconds / 1e12 == pytest.approx(np.array(list(squares.values())), rel=0.15)
