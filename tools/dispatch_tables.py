"""Published times of dispatch and combine -> rates of a dispatcher, by the cost model's own formula."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from knee.base.arrays import Bools, Floats
from knee.engine.cost.collective_cost import Links
from knee.engine.cost.expert_dispatch import SM_RATES, WIRE_RATES, Direction, Exchange, ExchangeRates, exchange_s
from knee.measure.hardware_fit.residuals import minimum
from knee.specs.plan import Dispatcher

CONGESTED_DOMAINS = 8
"""Nodes from which DeepEP's table is not fitted: see data/moe/README.md."""
_NUMBERS = (
    "domains", "ranks", "hidden", "tokens", "top_k", "experts", "groups", "chosen_groups", "element_bytes", "sms",
)  # fmt: skip
LEAST_TOKENS = 256
"""Tokens per rank from which rows are fitted and judged: fewer are a step of inference."""
_BOUNDS = {
    "base_s": (1e-6, 2e-4),
    "link_ratio": (0.2, 1.5),
    "nic_ratio": (0.2, 1.5),
    "token_s": (1e-9, 5e-6),
    "copy_s": (1e-9, 5e-6),
    "copy_bytes_per_s": (2e9, 1e12),
    "sum_bytes_per_s": (2e9, 1e12),
    "domain_bytes_per_s": (2e9, 1e12),
}
START = {
    "base_s": 3e-5,
    "link_ratio": 0.8,
    "nic_ratio": 1.0,
    "token_s": 4e-7,
    "copy_s": 5e-8,
    "copy_bytes_per_s": 3e10,
    "sum_bytes_per_s": 2e10,
    "domain_bytes_per_s": 1.2e10,
}
"""Where the search begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTable:
    """Rows of one dispatcher and direction."""

    dispatcher: Dispatcher
    direction: Direction
    gpus: tuple[str, ...]
    columns: dict[str, Floats]
    measured_s: Floats

    @property
    def settings(self) -> list[tuple[object, ...]]:
        """GPU, nodes and model of each row: what is left out whole."""
        names = ("domains", "hidden", "experts", "top_k")
        return list(zip(self.gpus, *(self.columns[name].tolist() for name in names), strict=True))

    def kept(self, which: Bools) -> ExchangeTable:
        """Some of its rows."""
        return ExchangeTable(
            dispatcher=self.dispatcher,
            direction=self.direction,
            gpus=tuple(gpu for gpu, kept in zip(self.gpus, which.tolist(), strict=True) if kept),
            columns={name: column[which] for name, column in self.columns.items()},
            measured_s=self.measured_s[which],
        )

    def exchange(self) -> Exchange:
        """The rows as the cost model takes them."""
        c = self.columns
        names = ("tokens", "hidden", "top_k", "experts", "ranks", "groups", "chosen_groups")
        return Exchange(**{name: c[name] for name in names}, per_domain=c["ranks"] / c["domains"])

    def predict(self, links: Mapping[str, Links], rates: ExchangeRates) -> Floats:
        """Seconds of each row on its GPU's cluster."""
        seconds = np.empty(len(self.measured_s))
        for gpu in sorted(set(self.gpus)):
            which = np.array([name == gpu for name in self.gpus])
            part = self.kept(which)
            # a table without SMs is of a dispatcher that has no SM term
            sms = np.nan_to_num(part.columns["sms"], nan=1.0)
            seconds[which] = exchange_s(
                links[gpu],
                self.dispatcher,
                rates,
                part.exchange(),
                element_bytes=part.columns["element_bytes"],
                sms=sms,
            )
        return seconds


def read_exchanges(path: Path) -> dict[tuple[str, Direction], ExchangeTable]:
    """The tables of a file with one row per time, in microseconds, by the dispatcher's name and direction."""
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode("ascii"))))
    tables: dict[tuple[str, Direction], ExchangeTable] = {}
    for name, direction in sorted({(row["dispatcher"], row["direction"]) for row in rows}):
        of = [row for row in rows if (row["dispatcher"], row["direction"]) == (name, direction)]
        tables[name, direction] = ExchangeTable(  # type: ignore[index]
            # the one-sided and two-sided kernels of GB200 send a token once per rank, as HybridEP does
            dispatcher=name if name in ("alltoall", "deepep") else "hybridep",  # type: ignore[arg-type]
            direction=direction,  # type: ignore[arg-type]
            gpus=tuple(row["gpu"] for row in of),
            columns={key: np.array([float(row[key] or "nan") for row in of]) for key in _NUMBERS},
            measured_s=np.array([float(row["time_us"]) for row in of]) * 1e-6,
        )
    return tables


def start_rates(dispatcher: Dispatcher, direction: Direction, base_s: float = START["base_s"]) -> ExchangeRates:
    """Rates from which a fit begins."""
    names = WIRE_RATES + (SM_RATES[direction] if dispatcher == "deepep" else ())
    return replace(ExchangeRates(**{name: START[name] for name in names}), base_s=base_s)


def fit_deepep(links: Mapping[str, Links], table: ExchangeTable, start: ExchangeRates) -> ExchangeRates:
    """Rates inside a domain from the rows of one domain, then those between domains from the rows of several."""
    domains, enough = table.columns["domains"], table.columns["tokens"] >= LEAST_TOKENS
    between = ("nic_ratio", "domain_bytes_per_s")
    inside = tuple(name for name in (*WIRE_RATES, *SM_RATES[table.direction]) if name not in between)
    rates = _fitted(links, table.kept(enough & (domains == 1)), start, inside)
    return _fitted(links, table.kept(enough & (domains > 1) & (domains < CONGESTED_DOMAINS)), rates, between)


def left_out_deepep_s(
    links: Mapping[str, Links], table: ExchangeTable, keys: Sequence[str], start: ExchangeRates
) -> Floats:
    """Seconds of each row by rates that were fitted without the rows of its key; ``start`` where the key is empty."""
    seconds = np.empty(len(keys))
    for key in sorted(set(keys)):
        away = np.array([other == key for other in keys])
        rates = fit_deepep(links, table.kept(~away), start) if key else start
        seconds[away] = table.kept(away).predict(links, rates)
    return seconds


def fit_wires(links: Mapping[str, Links], table: ExchangeTable, start: ExchangeRates) -> ExchangeRates:
    """The ratios of a dispatcher whose SMs are not modelled."""
    one = (table.columns["domains"] == 1).all()
    return _fitted(links, table, start, ("link_ratio",) if one else ("link_ratio", "nic_ratio"))


def _fitted(
    links: Mapping[str, Links], table: ExchangeTable, start: ExchangeRates, names: tuple[str, ...]
) -> ExchangeRates:
    reached = _Reached.of(links, table)

    def made(x: Floats) -> ExchangeRates:
        return replace(start, **dict(zip(names, (float(v) for v in x), strict=True)))

    def loss(x: Floats) -> float:
        return float(np.mean(np.abs(np.log(reached.predict(made(x)) / table.measured_s))))

    low, high = zip(*(_BOUNDS[name] for name in names), strict=True)
    return made(minimum(loss, [getattr(start, name) for name in names], low=low, high=high))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """Terms of the rows that do not depend on the rates: a fit evaluates the formula a thousand times."""

    latency_s: Floats
    link_s: Floats
    nic_s: Floats
    per_sm: Floats
    """What one SM handles: tokens, copies, bytes of copies, bytes of tokens, bytes between domains."""

    @classmethod
    def of(cls, links: Mapping[str, Links], table: ExchangeTable) -> _Reached:
        free = ExchangeRates(base_s=0.0, link_ratio=np.inf, nic_ratio=np.inf)
        terms = [
            table.predict(links, replace(free, link_ratio=1.0)),
            table.predict(links, replace(free, nic_ratio=1.0)),
        ]
        latency = table.predict(links, free)
        names = ("token_s", "copy_s", "copy_bytes_per_s", "sum_bytes_per_s", "domain_bytes_per_s")
        per_sm = [table.predict(links, replace(free, **{name: 1.0})) - latency for name in names]
        return cls(latency_s=latency, link_s=terms[0] - latency, nic_s=terms[1] - latency, per_sm=np.stack(per_sm))

    def predict(self, rates: ExchangeRates) -> Floats:
        seconds = np.array([rates.token_s, rates.copy_s, 1.0 / rates.copy_bytes_per_s])
        seconds = np.append(seconds, [1.0 / rates.sum_bytes_per_s, 1.0 / rates.domain_bytes_per_s])
        wire = np.maximum(self.link_s / rates.link_ratio, self.nic_s / rates.nic_ratio)
        return np.asarray(rates.base_s + self.latency_s + np.maximum(wire, seconds @ self.per_sm))
