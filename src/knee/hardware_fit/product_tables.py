"""Published tables of matrix products -> rates of a GPU, by the cost model's own formula.

A table differs from a probe's readings: its products begin at full clocks and are slowed by the power limit only when
they are long, and those below 16 bit have the cast of their activations in them.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from knee.arrays import Bools, Floats
from knee.cost.kernel_cost import gemm_s
from knee.hardware_fit.least_squares import minimum
from knee.specs.hardware import GemmRate, GemmType, Gpu

SETTLE_S = {"a100-sxm-80": 2.5e-3}
"""Length of a product at which most of its runs are under the power limit; of 2.5, 5 and 10 ms the best by error."""
USUAL_SETTLE_S = 1e-2
LONG_S = 1e-2
LONG_WEIGHT = 0.2
"""Of products of 10 ms and more, all together: they are few and alone tell the sustained rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTable:
    """Products of one type on one GPU."""

    gpu: str
    kind: GemmType
    m: Floats
    n: Floats
    k: Floats
    measured_s: Floats

    @property
    def weights(self) -> list[tuple[int, int]]:
        """Shapes of the weights: what a held-out set leaves out whole."""
        return list(zip(self.n.astype(int).tolist(), self.k.astype(int).tolist(), strict=True))

    def kept(self, which: Bools) -> ProductTable:
        """Some of its rows."""
        sides = (self.m[which], self.n[which], self.k[which], self.measured_s[which])
        return ProductTable(gpu=self.gpu, kind=self.kind, m=sides[0], n=sides[1], k=sides[2], measured_s=sides[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFit:
    """What a table says: the rate of the products, and what else is in its times."""

    rate: GemmRate
    start_s: float
    """Start of all kernels of one call."""
    cast_bytes: float
    """Memory traffic of the casts, per element of the activations."""

    def predict(self, gpu: Gpu, table: ProductTable) -> Floats:
        """Seconds as the table would have them."""
        gpu = replace(gpu, gemm={**gpu.gemm, table.kind: self.rate}, kernel_s=self.start_s)
        full_s = 2.0 * table.m * table.n * table.k / (gpu.gemm_rate(table.kind)[0] * self.rate.peak_frac)
        # the share of the runs that the power limit slows grows with their length
        capped = 1.0 - np.exp(-full_s / SETTLE_S.get(table.gpu, USUAL_SETTLE_S))
        clock = 1.0 / (1.0 + (1.0 / self.rate.sustained_frac - 1.0) * capped)
        cast_s = self.cast_bytes * table.m * table.k / (gpu.hbm_bytes_per_s * gpu.hbm_frac)
        return gemm_s(gpu, table.kind, table.m, table.n, table.k, clock_frac=clock) + cast_s


def read_tables(path: Path) -> dict[tuple[str, GemmType], ProductTable]:
    """The tables of a file with a column per GPU and type, in microseconds."""
    rows = list(csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode("ascii"))))
    values = np.array([[float(cell or "nan") for cell in row] for row in rows[1:]])
    tables: dict[tuple[str, GemmType], ProductTable] = {}
    for column, name in enumerate(rows[0][3:], start=3):
        gpu, kind = name.split(" ")
        m, n, k, us = values[~np.isnan(values[:, column])][:, [0, 1, 2, column]].T
        tables[gpu, kind] = ProductTable(gpu=gpu, kind=kind, m=m, n=n, k=k, measured_s=us * 1e-6)  # type: ignore[index,arg-type]
    return tables


def fit_table(gpu: Gpu, table: ProductTable, *, sustained_frac: float | None = None) -> TableFit:
    """The parameters of least absolute relative error; the tile is the catalogue's, and the sustained rate where it is
    given."""
    base = gpu.gemm_rate(table.kind)[1]
    casts = table.kind != "bf16"
    long = table.measured_s >= LONG_S
    weight = np.full(len(long), 1.0 / len(long))
    if sustained_frac is None and long.any() and not long.all():
        weight = np.where(long, LONG_WEIGHT / long.sum(), (1.0 - LONG_WEIGHT) / (~long).sum())

    def made(x: Floats) -> TableFit:
        frac, found, half_k, half_intensity, start, cast = (float(v) for v in x)
        clock = found if sustained_frac is None else sustained_frac
        rate = replace(base, peak_frac=frac, sustained_frac=clock, half_k=half_k, half_intensity=half_intensity)
        return TableFit(rate=rate, start_s=start, cast_bytes=cast if casts else 0.0)

    def loss(x: Floats) -> float:
        return float(np.sum(weight * np.abs(np.log(made(x).predict(gpu, table) / table.measured_s))))

    low, high = (0.2, 0.5, 1.0, 0.1, 5e-7, 0.5), (1.0, 1.0, 2048.0, 16.0, 3e-5, 16.0)
    fits = [
        minimum(loss, (frac, sustained, 150.0, 2.0, 3e-6, 5.0), low=low, high=high)
        for frac, sustained in ((0.7, 0.9), (0.8, 0.75))
    ]
    return made(min(fits, key=loss))
