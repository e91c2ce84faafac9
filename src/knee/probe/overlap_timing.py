"""An all-gather and products at the same time: how much each slows the other down."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from knee.probe.torchrun_ranks import Ranks
from knee.record.probe_points import Record

PRODUCT = {"cuda": (8192, 4096, 4096), "cpu": (256, 256, 256)}
"""(m, n, k): a layer's on a GPU; on a CPU one that takes about a millisecond."""
WINDOW_S = {"cuda": 0.03, "cpu": 0.15}
"""The one that is timed runs this long; the other is given half as much again, so that it is there all the while."""
SURPLUS = 1.5


def measure_beside(ranks: Ranks, gather: Callable[[], Any], rounds: int) -> Record:
    """Times of a product and of an all-gather, alone and beside the other; ``gather`` starts one and returns."""
    run = _Both(ranks, _product(ranks), gather)
    run(3, 3)  # picks algorithms, connects
    window_s = WINDOW_S[ranks.kind]
    products, gathers = 8, 2
    product_s, gather_s = run(products, 0)[0] / products, run(0, gathers)[1] / gathers
    products, gathers = max(4, round(window_s / product_s)), max(2, round(window_s / gather_s))
    samples: dict[str, list[float]] = {name: [] for name in ("gemm", "gemm_beside", "gather", "gather_beside")}
    # alone and beside in turn, so that clocks and neighbours are the same for both
    for _ in range(max(rounds, 3)):
        samples["gemm"].append(run(products, 0)[0] / products)
        samples["gather"].append(run(0, gathers)[1] / gathers)
        # a slowed-down partner outlasts its plan; one that ended early would leave time alone in the sample
        lasting = max(2, round(SURPLUS * 2 * window_s / gather_s))
        samples["gemm_beside"].append(run(products, lasting)[0] / products)
        lasting = max(4, round(SURPLUS * 2 * window_s / product_s))
        samples["gather_beside"].append(run(lasting, gathers)[1] / gathers)
    times = {f"{name}_s": statistics.median(values) for name, values in samples.items()}
    spreads = [(max(v) - min(v)) / 2 / statistics.median(v) for v in samples.values()]
    return {"time_s": times["gather_beside_s"], "spread_frac": max(spreads), "samples": len(samples["gemm"]), **times}


class _Both:
    """Runs so many products and so many all-gathers at once and returns the slowest rank's seconds for each."""

    def __init__(self, ranks: Ranks, multiply: Callable[[], Any], gather: Callable[[], Any]) -> None:
        self.ranks, self.multiply, self.gather = ranks, multiply, gather

    def __call__(self, products: int, gathers: int) -> tuple[float, float]:
        self.ranks.barrier()
        start = time.perf_counter()
        works = [self.gather() for _ in range(gathers)]
        ended: list[float] = []
        waiting = threading.Thread(target=self._wait, args=(works, ended))
        waiting.start()
        launched = time.perf_counter()
        for _ in range(products):
            self.multiply()
        self._finish_products()
        multiplied = time.perf_counter()
        waiting.join()
        multiplied_s, gathered_s = self.ranks.slowest([multiplied - launched, ended[0] - start])
        return multiplied_s, gathered_s

    def _finish_products(self) -> None:
        if self.ranks.kind == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()

    def _wait(self, works: list[Any], ended: list[float]) -> None:
        """The end of the last all-gather, on a thread and a stream of its own so that products do not wait for it."""
        if self.ranks.kind == "cuda":
            import torch

            stream = torch.cuda.Stream(self.ranks.device)
            with torch.cuda.device(self.ranks.device), torch.cuda.stream(stream):
                for work in works:
                    work.wait()
            stream.synchronize()
        else:
            for work in works:
                work.wait()
        ended.append(time.perf_counter())


def _product(ranks: Ranks) -> Callable[[], Any]:
    import torch

    m, n, k = PRODUCT[ranks.kind]
    # 16-bit products on CPUs are emulated on many: fp32 there
    dtype = torch.bfloat16 if ranks.kind == "cuda" else torch.float32
    left = torch.randn(m, k, dtype=torch.float32, device=ranks.device).to(dtype)
    right = torch.randn(n, k, dtype=torch.float32, device=ranks.device).to(dtype).t()
    out = torch.empty(m, n, dtype=dtype, device=ranks.device)
    return lambda: torch.mm(left, right, out=out)
