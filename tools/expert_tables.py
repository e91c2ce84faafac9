"""Published times of fused expert layers -> errors of the grouped products, and what else is in a layer's time.

The products have the rates of dense products. A table adds its own four constants: the start of all kernels of a layer,
and the memory traffic of sorting tokens by expert, of the activation, and of the result.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.cost.expert_dispatch import BALANCED, RankLoads, rank_loads
from knee.engine.cost.kernel_cost import gemm_s, grouped_gemm_s, grouped_weight_gemm_s
from knee.engine.workload.projections import BYTES
from knee.measure.hardware_fit.residuals import minimum
from knee.specs.hardware import GemmRate, GemmType, Gpu

# Published tables of matrix products -> rates of a GPU, by the cost model's own formula. A table differs from a
# probe's readings: its products begin at full clocks and are slowed by the power limit only when they are long, and
# those below 16 bit have the cast of their activations in them.

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


KEYS = ("hidden", "ffn", "up_projections", "top_k", "experts", "tp", "ep", "tokens")
SLOWER = {BALANCED: 1.1}
"""How much slower than a larger layer a layer must be to count as untuned; drawn routing varies more."""
DRAWN_SLOWER = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """Expert layers of one GPU, type of operands and routing."""

    gpu: str
    kind: GemmType
    routing: str
    columns: dict[str, Floats]
    """By the names of ``KEYS``."""
    measured_s: Floats

    @property
    def width(self) -> Floats:
        """Width of an expert on one rank."""
        return self.columns["ffn"] / self.columns["tp"]

    @property
    def shapes(self) -> list[tuple[float, ...]]:
        """Shapes of the models: what is left out whole."""
        names = ("hidden", "ffn", "top_k", "experts")
        return list(zip(*(self.columns[name].tolist() for name in names), strict=True))

    def kept(self, which: Bools) -> LayerTable:
        """Some of its rows."""
        columns = {name: column[which] for name, column in self.columns.items()}
        return LayerTable(
            gpu=self.gpu, kind=self.kind, routing=self.routing, columns=columns, measured_s=self.measured_s[which]
        )

    def loads(self) -> RankLoads:
        """Tokens of the slowest rank's experts."""
        c = self.columns
        return rank_loads(self.routing, c["tokens"], c["top_k"], c["experts"], c["ep"])

    def untuned(self) -> Bools:
        """Rows that took longer than a layer with at least as much of everything.

        No prediction enters: a kernel that a smaller layer makes slower was not chosen by the library's tuner. The
        collector finds tuned kernels by the beginning of a file name, so that some layers run with another's.
        """
        c, width, margin = self.columns, self.width, SLOWER.get(self.routing, DRAWN_SLOWER)
        found = np.zeros(len(width), dtype=np.bool_)
        for i in range(len(width)):
            larger = (c["hidden"] >= c["hidden"][i]) & (width >= width[i]) & (c["tokens"] >= c["tokens"][i])
            if self.routing == BALANCED:
                each, local = c["tokens"] * c["top_k"] / c["experts"], c["experts"] / c["ep"]
                larger &= (each >= each[i]) & (local >= local[i])
            else:
                same = (c["experts"] == c["experts"][i]) & (c["top_k"] == c["top_k"][i])
                larger &= same & (c["ep"] <= c["ep"][i])
            larger &= c["up_projections"] >= c["up_projections"][i]
            found[i] = bool((self.measured_s[larger] * margin < self.measured_s[i]).any())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFit:
    """What a fused layer takes beside its products."""

    start_s: float
    """Start of all kernels of one layer."""
    row_bytes: float
    """Memory traffic per token-expert pair and element of the hidden size: sorting, casts, the sum over experts."""
    activation_bytes: float
    """Memory traffic per token-expert pair and element of the expert's width."""
    token_bytes: float
    """Memory traffic per token of the group and element of the hidden size."""

    def predict(self, gpu: Gpu, table: LayerTable, products_s: Floats) -> Floats:
        """Seconds as the table would have them."""
        c, rows, hbm = table.columns, table.loads().rows, gpu.hbm_bytes_per_s * gpu.hbm_frac
        moved = self.row_bytes * rows * c["hidden"] + self.activation_bytes * rows * table.width
        return products_s + self.start_s + (moved + self.token_bytes * c["tokens"] * c["hidden"]) / hbm


def read_layers(path: Path) -> dict[tuple[str, GemmType, str], LayerTable]:
    """The tables of a file with a column per GPU, type and routing, in microseconds."""
    rows = list(csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode("ascii"))))
    values = np.array([[float(cell or "nan") for cell in row] for row in rows[1:]])
    tables: dict[tuple[str, GemmType, str], LayerTable] = {}
    for column, name in enumerate(rows[0][len(KEYS) :], start=len(KEYS)):
        gpu, kind, routing = name.split(" ")
        known = values[~np.isnan(values[:, column])]
        columns = {key: known[:, index] for index, key in enumerate(KEYS)}
        tables[gpu, kind, routing] = LayerTable(  # type: ignore[index]
            gpu=gpu,
            kind=kind,  # type: ignore[arg-type]
            routing=routing,
            columns=columns,
            measured_s=known[:, column] * 1e-6,
        )
    return tables


def experts_forward_s(
    gpu: Gpu,
    kind: GemmType,
    loads: RankLoads,
    hidden: Floats,
    ffn: Floats,
    *,
    up_projections: Floats | float = 2.0,
    clock_frac: Floats | float | None = None,
) -> Floats:
    """Both grouped products of an expert layer: up (and gate, with 2 up projections) and down.

    ``ffn`` is the expert's width on one rank: divided by etp.
    """
    up = grouped_gemm_s(gpu, kind, loads, up_projections * ffn, hidden, clock_frac=clock_frac)
    return up + grouped_gemm_s(gpu, kind, loads, hidden, ffn, clock_frac=clock_frac)


def experts_backward_s(
    gpu: Gpu,
    kind: GemmType,
    loads: RankLoads,
    hidden: Floats,
    ffn: Floats,
    *,
    up_projections: Floats | float = 2.0,
    gradient_bytes: float = BYTES,
    clock_frac: Floats | float | None = None,
) -> Floats:
    """Input and weight gradients of both grouped products of an expert layer."""
    wide = up_projections * ffn
    inputs = grouped_gemm_s(gpu, kind, loads, hidden, wide, clock_frac=clock_frac)
    inputs = inputs + grouped_gemm_s(gpu, kind, loads, ffn, hidden, clock_frac=clock_frac)
    weights = grouped_weight_gemm_s(
        gpu, kind, loads, wide, hidden, gradient_bytes=gradient_bytes, clock_frac=clock_frac
    )
    return (
        inputs
        + weights
        + grouped_weight_gemm_s(gpu, kind, loads, hidden, ffn, gradient_bytes=gradient_bytes, clock_frac=clock_frac)
    )


def products_s(gpu: Gpu, table: LayerTable) -> Floats:
    """Seconds of both grouped products at the clock of so long a run: nothing is fitted."""
    c, loads = table.columns, table.loads()
    peak, of = gpu.gemm_rate(table.kind)
    full_s = 2.0 * loads.rows * c["hidden"] * table.width * (1.0 + c["up_projections"]) / (peak * of.peak_frac)
    capped = 1.0 - np.exp(-full_s / SETTLE_S.get(table.gpu, USUAL_SETTLE_S))
    clock = 1.0 / (1.0 + (1.0 / of.sustained_frac - 1.0) * capped)
    return experts_forward_s(
        gpu, table.kind, loads, c["hidden"], table.width, up_projections=c["up_projections"], clock_frac=clock
    )


def fit_layers(gpu: Gpu, table: LayerTable, products: Floats) -> LayerFit:
    """The four constants of least absolute relative error."""

    def made(x: Floats) -> LayerFit:
        start, row, activation, token = (float(v) for v in x)
        return LayerFit(start_s=start, row_bytes=row, activation_bytes=activation, token_bytes=token)

    c, rows, hbm = table.columns, table.loads().rows, gpu.hbm_bytes_per_s * gpu.hbm_frac
    terms = np.stack([np.full(len(rows), 1.0), rows * c["hidden"] / hbm, rows * table.width / hbm])
    terms = np.concatenate([terms, (c["tokens"] * c["hidden"] / hbm)[None]])

    def loss(x: Floats) -> float:
        return float(np.mean(np.abs(np.log((products + x @ terms) / table.measured_s))))

    low, high = (1e-6, 0.1, 0.1, 0.1), (2e-4, 100.0, 100.0, 50.0)
    return made(minimum(loss, (3e-5, 8.0, 6.0, 3.0), low=low, high=high))


def left_out_s(gpu: Gpu, table: LayerTable, fitted_on: LayerTable) -> Floats:
    """Seconds of each row by constants that were fitted without its model, on tuned layers with gates."""
    fitted_on = fitted_on.kept(~fitted_on.untuned() & (fitted_on.columns["up_projections"] == 2))
    fitted_products, products = products_s(gpu, fitted_on), products_s(gpu, table)
    predicted = np.empty(len(products))
    for shape in sorted(set(table.shapes)):
        away = np.array([other == shape for other in table.shapes])
        kept = np.array([other != shape for other in fitted_on.shapes])
        fit = fit_layers(gpu, fitted_on.kept(kept), fitted_products[kept])
        predicted[away] = fit.predict(gpu, table.kept(away), products[away])
    return predicted
