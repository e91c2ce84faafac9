"""Scaling laws of ``catalog/scaling_laws.toml``: the loss of N parameters after D tokens, the split of a number of FLOP
that loses least, how sure the coefficients are, and the batch that they may be trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from knee.base.arrays import Floats
from knee.base.errors import InputError
from knee.base.units import amount, short
from knee.engine.workload.parameters import embedding_tensors, head_tensors, parameter_count
from knee.specs.catalog import ROOT, nearest, read_toml
from knee.specs.defaults import DEFAULT_BATCH_LAW
from knee.specs.model import Model

FLOP_PER_PARAM_TOKEN = 6.0
"""C = 6 N D: two for a product and its sum, forward once and backward twice (Kaplan et al. 2020, section 2.1)."""
DRAWS = 200
SEED = 20240416
BAND_FRAC = 0.8
"""Share of the draws that a law's band holds, as that of a validated answer's trust."""
_NOT_LAWS = ("critical_batch", "flop_counting")
_COEFFICIENTS = {
    "additive": ("E", "A", "B", "alpha", "beta"),
    "joint": ("N_c", "D_c", "alpha_N", "alpha_D"),
    "loss": ("B_star_tokens", "alpha_B"),
    "plateau": ("plateau_tokens",),
}

Range = tuple[float, float]


AROUND, POINTS = 16.0, 33
"""Sizes of a curve: from so many times smaller to so many times larger, and how many of them."""
LEVELS = (-0.08, -0.04, -0.02, 0.0, 0.02, 0.04, 0.08, 0.16)
"""Losses of the curves, from that of the best run."""


def sizes_around(params: float) -> list[float]:
    """Return the sizes at which curves around ``params`` are drawn."""
    return [params * AROUND ** (2.0 * i / (POINTS - 1) - 1.0) for i in range(POINTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One published fit."""

    name: str
    form: Literal["additive", "joint"]
    values: dict[str, float]
    errors: dict[str, float]
    """Standard errors; empty where none were published."""
    counts: Literal["all", "non_embedding"]
    """Which parameters N counts."""
    loss_of: str
    """What the loss is of: unit and data."""
    spread: str
    """Where the errors come from, or why there are none."""
    params: Range
    tokens: Range
    flop: Range | None
    """Of the runs that were fitted; None where it was not published."""
    kind: str
    source: str

    def counted(self, model: Model) -> float:
        """The N of a model, as this law counts it."""
        if self.counts == "all":
            return float(parameter_count(model))
        ends = sum(t.size for t in embedding_tensors(model) + head_tensors(model) if t.cols > 1)
        return float(parameter_count(model) - ends)

    def loss(self, params: Any, tokens: Any, values: Any = None) -> Any:
        """Formula: E + A / N^alpha + B / D^beta, or [(N_c / N)^(alpha_N / alpha_D) + D_c / D]^alpha_D

        Where:   N parameters as ``counts`` says, D tokens, each seen once
        Source:  that of the law
        Valid:   within the fitted ranges; beyond them ``outside`` says so
        """
        v = self.values if values is None else values
        if self.form == "additive":
            return v["E"] + v["A"] / params ** v["alpha"] + v["B"] / tokens ** v["beta"]
        ratio = v["alpha_N"] / v["alpha_D"]
        return ((v["N_c"] / params) ** ratio + v["D_c"] / tokens) ** v["alpha_D"]

    def split(self, flop: float) -> tuple[float, float]:
        """The parameters and tokens that lose least for so many FLOP.

        Formula: additive: N = (alpha A / (beta B))^(1/(alpha+beta)) (C/6)^(beta/(alpha+beta)); joint, with
                 r = alpha_N / alpha_D: N = (r N_c^r C / (6 D_c))^(1/(1+r)); D = C / (6 N)
        Where:   C = 6 N D
        Source:  Hoffmann et al. 2022, equation 4; the joint form by setting its derivative along C = 6 N D to zero
        """
        v, c = self.values, flop / FLOP_PER_PARAM_TOKEN
        if self.form == "additive":
            total = v["alpha"] + v["beta"]
            scale = (v["alpha"] * v["A"] / (v["beta"] * v["B"])) ** (1.0 / total)
            params = scale * c ** (v["beta"] / total)
        else:
            ratio = v["alpha_N"] / v["alpha_D"]
            params = (ratio * v["N_c"] ** ratio * c / v["D_c"]) ** (1.0 / (1.0 + ratio))
        return params, c / params

    def flop_for(self, loss: float) -> float:
        """The FLOP with which the best split reaches a loss: what a run is worth. Infinite where none does."""
        low, high = 1.0, 1e40
        if not float(self.loss(*self.split(high))) < loss:
            return math.inf
        while high / low > 1.0 + 1e-9:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if float(self.loss(*self.split(middle))) > loss else (low, middle)
        return math.sqrt(low * high)

    def tokens_for(self, loss: float, params: float) -> float:
        """The tokens after which so many parameters reach a loss; infinite where they never do."""
        v = self.values
        if self.form == "additive":
            left, exponent, top = loss - v["E"] - v["A"] / params ** v["alpha"], v["beta"], v["B"]
            return math.inf if left <= 0 else float((top / left) ** (1.0 / exponent))
        left = loss ** (1.0 / v["alpha_D"]) - (v["N_c"] / params) ** (v["alpha_N"] / v["alpha_D"])
        return math.inf if left <= 0 else float(v["D_c"] / left)

    def equal_loss_curves(self, params: float, tokens: float) -> list[dict[str, Any]]:
        """Return curves of equal loss around a run: the ``loss`` of each, and its ``points`` [parameters, tokens]."""
        best, found = float(self.loss(params, tokens)), []
        for level in LEVELS:
            curve = [[n, self.tokens_for(best + level, n)] for n in sizes_around(params)]
            points = [[n, d] for n, d in curve if math.isfinite(d) and d < 1e18]
            if len(points) > 1:
                found.append({"loss": best + level, "points": points})
        return found

    def draws(self, count: int = DRAWS) -> dict[str, Floats] | None:
        """Coefficients drawn from their standard errors; None where none were published.

        Formula: exponent ~ N(value, se); ln A = ln A_0 + (alpha - alpha_0) ln N_mid, and so B with D_mid; E ~ N(E, se)
        Where:   N_mid, D_mid the geometric middle of the fitted runs, where the data fixes a term best
        Valid:   as far as coefficient and exponent of a term are one number in the fit, which their errors agree with:
                 se(ln A) = 0.26 = 0.015 ln N_mid, se(ln B) = 0.62 = 0.025 ln D_mid, exponents' errors being rounded to
                 0.02; E apart from the terms is drawn too wide, not too narrow
        """
        if not self.errors:
            return None
        rng = np.random.default_rng(SEED)
        drawn = {name: rng.normal(self.values[name], self.errors[name], count) for name in ("E", "alpha", "beta")}
        middles = (("A", "alpha", self.params), ("B", "beta", self.tokens))
        for name, exponent, (low, high) in middles:
            moved = drawn[exponent] - self.values[exponent]
            drawn[name] = self.values[name] * np.exp(moved * 0.5 * math.log(low * high))
        return drawn

    def band(self, params: float, tokens: float) -> Range | None:
        """Ends of the loss that its draws hold; None without errors."""
        drawn = self.draws()
        if drawn is None:
            return None
        tail = (1.0 - BAND_FRAC) / 2.0
        low, high = np.quantile(self.loss(params, tokens, drawn), [tail, 1.0 - tail])
        return float(low), float(high)

    def outside(self, params: float, tokens: float) -> list[str]:
        """Sentences about what lies beyond the fitted runs."""
        flop = FLOP_PER_PARAM_TOKEN * params * tokens
        asked = (("parameters", params, self.params), ("tokens", tokens, self.tokens), ("FLOP", flop, self.flop))
        return [said for what, value, ends in asked if ends and (said := _beyond(what, value, ends))]


def _beyond(what: str, value: float, ends: Range) -> str:
    """Empty within the ends."""
    if ends[0] <= value <= ends[1]:
        return ""
    times, end = (value / ends[1], ends[1]) if value > ends[1] else (ends[0] / value, ends[0])
    way = "times the largest" if value > ends[1] else "times smaller than the smallest"
    return f"{short(value)} {what} are {amount(times)} {way} value that it was fitted to ({short(end)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaw:
    """The critical batch: beyond it more tokens per step save steps at a price in tokens."""

    name: str
    form: Literal["loss", "plateau"]
    values: dict[str, float]
    fitted_tokens: Range
    """Batches that were measured."""
    kind: str
    source: str

    def tokens(self, loss: float) -> float:
        """Tokens a step that a run which ends at this loss may have.

        Formula: B_* / L^(1 / alpha_B), or one number for all
        Source:  that of the law
        Valid:   within the measured batches; beyond them ``outside`` says so
        """
        if self.form == "plateau":
            return self.values["plateau_tokens"]
        return float(self.values["B_star_tokens"] / loss ** (1.0 / self.values["alpha_B"]))

    @property
    def formula(self) -> str:
        """With its numbers."""
        if self.form == "plateau":
            return f"{self.values['plateau_tokens']:.3g} tokens"
        return f"{self.values['B_star_tokens']:.3g} / loss^{1.0 / self.values['alpha_B']:.2f} tokens"

    def outside(self, tokens: float) -> str:
        """A sentence where a batch is beyond those that were measured; else empty."""
        return _beyond("tokens per step", tokens, self.fitted_tokens)


@cache
def _document() -> dict[str, Any]:
    return read_toml(ROOT / "scaling_laws.toml")


def law_names() -> list[str]:
    """Laws of the catalogue, the default first."""
    return [name for name in _document() if name not in _NOT_LAWS]


def law_of(name: str) -> Law:
    """A law by its name."""
    if name not in law_names():
        raise unknown_name("scaling law", name, law_names())
    raw = _document()[name]
    names = _COEFFICIENTS[raw["form"]]
    return Law(
        name=name,
        form=raw["form"],
        values=_numbers(raw, names),
        errors={key: float(raw[f"{key}_se"]) for key in names if f"{key}_se" in raw},
        counts=raw["counts"],
        loss_of=raw["loss"],
        spread=raw["spread"],
        params=_range(raw["params"]),
        tokens=_range(raw["tokens"]),
        flop=_range(raw["flop"]) if "flop" in raw else None,
        kind=raw["kind"],
        source=raw["source"],
    )


def batch_law_names() -> list[str]:
    """Laws of the critical batch, the default first."""
    return list(_document()["critical_batch"])


def batch_law(name: str = DEFAULT_BATCH_LAW) -> BatchLaw:
    """A law of the critical batch by its name."""
    if name not in batch_law_names():
        raise unknown_name("law of the critical batch", name, batch_law_names())
    raw = _document()["critical_batch"][name]
    return BatchLaw(
        name=name,
        form=raw["form"],
        values=_numbers(raw, _COEFFICIENTS[raw["form"]]),
        fitted_tokens=_range(raw["tokens"]),
        kind=raw["kind"],
        source=raw["source"],
    )


def _numbers(raw: dict[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    return {name: float(raw[name]) for name in names}


def _range(ends: list[float]) -> Range:
    return float(ends[0]), float(ends[1])


def unknown_name(what: str, name: str, known: list[str]) -> InputError:
    """The error for a name that is not one of the known."""
    hint = " ".join(filter(None, (nearest(name, known), f"use one of {', '.join(known)}")))
    return InputError(f"no {what} named {name!r}", hint=hint, code="unknown-name", field=what)


def assumed_mfu() -> tuple[float, str]:
    """What FLOP counting takes a cluster to reach of its peak, and from where."""
    raw = _document()["flop_counting"]["mfu_frac"]
    return float(raw["value"]), str(raw["source"])
