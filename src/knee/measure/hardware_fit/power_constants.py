"""The simulator's power model fitted on the draw of several loads, and how far off it stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Bools, Floats
from knee.base.errors import InputError
from knee.engine.cost.kernel_cost import attention_energy
from knee.engine.energy import demand_w, power_w
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.readings import Machine, Readings
from knee.specs.hardware import Cluster, Gpu
from knee.specs.write import Value

FIELDS = ("gemm_j_per_flop", "hbm_j_per_byte", "cap_sharpness")
"""What is fitted. The idle draw and the limit are read."""
BOUNDS = {"gemm_j_per_flop": (1e-14, 1e-10), "hbm_j_per_byte": (1e-12, 1e-8), "cap_sharpness": (2.0, 64.0)}
"""Above 64 the cap is a plain minimum, and the fit cannot tell how plain."""
SPREAD_FRAC = 0.02
"""Relative error beyond which a window pulls with constant force: one load that the model does not describe, such as
an attention kernel, must not bend the others."""
AROUND_FRAC = 0.2
"""Demands this close to the cap are around it."""
HELD_BACK = ("copy", "attention", "mixed")
"""Kinds of load that are left out whole, each in turn. Without products or idle nothing tells their draw."""
UNFITTED = "attention"
"""Has energies of its own, fitted after the others: an attention kernel draws more per operation than a product, for
softmax and for registers, and by how much depends on the kernel."""
BELOW_FRAC = 0.9
"""A draw below this share of the limit tells the energy of its load; above it the limit does."""
NEEDED = ("idle", "gemm", "copy")
ROUNDS = 200
MOST_DAMPING = 1e9
"""Damping at which no step is small enough to be better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Power readings as columns, one row per window."""

    load: tuple[str, ...]
    duty_frac: Floats
    window_s: Floats
    busy_s: Floats
    """Time within the window that the load ran; the rest was idle."""
    flop: Floats
    moved_bytes: Floats
    power_w: Floats
    instant_w: Floats
    """Mean of instant readings, and NaN where there were none."""
    sm_hz: Floats
    by: str
    """What the draw was read from."""

    def __len__(self) -> int:
        return len(self.load)

    def of(self, kind: str) -> Bools:
        """Windows of a kind of load: ``mixed`` is all that begin so."""
        return np.array([name.split("_")[0] == kind for name in self.load], dtype=bool)

    def only(self, rows: Bools) -> Windows:
        """The windows of the rows that are True."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        kept = tuple(name for name, row in zip(self.load, rows, strict=True) if row)
        return Windows(load=kept, by=self.by, **columns)


_COLUMNS = ("duty_frac", "window_s", "busy_s", "flop", "moved_bytes", "power_w", "instant_w", "sm_hz")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerFit:
    """The fitted GPU and what the fit is worth."""

    gpu: Gpu
    windows: Windows
    modelled_w: Floats
    demand_w: Floats
    """Draw of the load if the board had no limit."""
    errors: Residuals
    fitted: Residuals
    """Of the windows that were fitted on."""
    around_cap: Residuals | None
    """None where no load came near the cap: the bend there is then not fitted."""
    held_back: dict[str, Residuals]
    """Kind of load -> its errors under a fit that has not seen it."""
    before: Residuals
    """Of the values that the fit started from."""

    @property
    def error_frac(self) -> Floats:
        """Modelled over read, less one."""
        return self.modelled_w / self.windows.power_w - 1.0


def windows_of(readings: Readings) -> Windows:
    """The readings of ``knee probe power``."""
    found = list(readings.good("power"))
    try:
        columns = {
            "duty_frac": [point.duty_frac for point, _ in found],
            "window_s": [r["window_s"] for _, r in found],
            "busy_s": [r.get("busy_s", r["window_s"]) for _, r in found],
            "flop": [r["calls"] * r["flop_per_call"] for _, r in found],
            "moved_bytes": [r["calls"] * r["bytes_per_call"] for _, r in found],
            "power_w": [r["power_w"] for _, r in found],
            "instant_w": [r.get("instant_w") for _, r in found],
            "sm_hz": [r.get("sm_hz") for _, r in found],
        }
        arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a power reading is incomplete or not a number: {error}") from None
    ways = {r.get("by", "energy counter") for _, r in found}
    windows = Windows(load=tuple(point.load for point, _ in found), by=" and ".join(sorted(ways)), **arrays)
    for name in ("window_s", "busy_s", "power_w"):
        if not np.all(arrays[name] > 0):
            raise InputError(f"a power reading has a {name} that is not positive")
    return windows


def modelled_w(gpu: Gpu, w: Windows) -> Floats:
    """What the simulator's model draws in each window.

    Formula: (P * busy + idle * (window - busy)) / window
    Where:   P is the model's draw while the load runs; the rest of a window waits for the counter's next refresh
    Valid:   loads that repeat all the time they run, so that their mean rate is their rate
    """
    busy = power_w(gpu, step_s=w.busy_s, flop=_flop(gpu, w), moved_bytes=w.moved_bytes, comm_s=np.zeros(len(w)))
    return (busy * w.busy_s + gpu.idle_w * (w.window_s - w.busy_s)) / w.window_s


def _kernel(load: str) -> str | None:
    """The attention kernel of a load; None where it is another load."""
    return load.removeprefix("attention_") if load.startswith("attention_") else None


def _flop(gpu: Gpu, w: Windows) -> Floats:
    """Operations of each window, those of attention by their energy."""
    shares = [attention_energy(gpu, name) if (name := _kernel(load)) in gpu.attention else 1.0 for load in w.load]
    return np.asarray(w.flop * np.array(shares), dtype=np.float64)


def _with_attention(gpu: Gpu, w: Windows) -> Gpu:
    """Energies of attention kernels: the median of their windows below the limit, those of products where none is.

    Formula: J/FLOP = ((demand - idle) busy - bytes J/B) / flop, with demand = P / (1 - (P/cap)^p)^(1/p)
    Where:   P is the draw while the load runs; the second form turns the bend at the cap around
    """
    drawn = (w.power_w * w.window_s - gpu.idle_w * (w.window_s - w.busy_s)) / w.busy_s
    below = drawn < BELOW_FRAC * gpu.tdp_w
    straight = 1.0 - (np.minimum(drawn / gpu.tdp_w, BELOW_FRAC)) ** gpu.cap_sharpness
    demand = drawn / straight ** (1.0 / gpu.cap_sharpness)
    each = ((demand - gpu.idle_w) * w.busy_s - w.moved_bytes * gpu.hbm_j_per_byte) / np.maximum(w.flop, 1.0)
    attention = dict(gpu.attention)
    for name, rate in gpu.attention.items():
        rows = np.array([_kernel(load) == name for load in w.load]) & below
        attention[name] = replace(rate, j_per_flop=float(np.median(each[rows])) if rows.any() else None)
    return replace(gpu, attention=attention)


def fit_power(w: Windows, start: Gpu, *, limit_w: float | None) -> PowerFit:
    """Fit the energies and the bend at the cap; ``start`` has all other values, and the limit where none is known."""
    if missing := _missing(w):
        raise InputError(
            f"the power model needs readings of {', '.join(NEEDED)}; those of {' and '.join(missing)} are missing",
            hint="run `knee probe power` again; it continues where it stopped and repeats failed readings",
            code="no-readings",
        )
    before = Residuals.of(modelled_w(start, w), w.power_w)
    bare = {name: replace(rate, j_per_flop=None) for name, rate in start.attention.items()}
    idle = float(np.median(w.power_w[w.of("idle")]))
    start = replace(start, attention=bare, tdp_w=limit_w or start.tdp_w, idle_w=idle)
    gpu = _with_attention(_fitted(start, w), w)
    demand = demand_w(gpu, step_s=w.busy_s, flop=_flop(gpu, w), moved_bytes=w.moved_bytes, comm_s=np.zeros(len(w)))
    modelled = modelled_w(gpu, w)
    near, fitted = np.abs(demand / gpu.tdp_w - 1.0) <= AROUND_FRAC, ~w.of(UNFITTED)
    return PowerFit(
        gpu=gpu,
        windows=w,
        modelled_w=modelled,
        demand_w=demand,
        errors=Residuals.of(modelled, w.power_w),
        fitted=Residuals.of(modelled[fitted], w.power_w[fitted]),
        around_cap=Residuals.of(modelled[near], w.power_w[near]) if near.any() else None,
        held_back={kind: _held_back(start, w, w.of(kind)) for kind in HELD_BACK if w.of(kind).any()},
        before=before,
    )


def _missing(w: Windows) -> list[str]:
    """Loads that the fit cannot do without, and that were not measured."""
    return [kind for kind in NEEDED if not w.of(kind).any()]


def _held_back(start: Gpu, w: Windows, rows: Bools) -> Residuals:
    held = w.only(rows)
    return Residuals.of(modelled_w(_fitted(start, w.only(~rows)), held), held.power_w)


def _fitted(start: Gpu, w: Windows) -> Gpu:
    """The best of several starts: far above the cap the draw says little about any of the three."""
    w = w.only(~w.of(UNFITTED))
    starts = [replace(start, cap_sharpness=sharp) for sharp in (start.cap_sharpness, 4.0, 24.0)]
    done = [_descend(gpu, w) for gpu in starts]
    return min(done, key=lambda pair: pair[1])[0]


def _descend(gpu: Gpu, w: Windows) -> tuple[Gpu, float]:
    """Levenberg-Marquardt on the logarithms of the values, by weighted squares that amount to Huber's loss."""
    low, high = (np.log([BOUNDS[name][end] for name in FIELDS]) for end in (0, 1))

    def with_values(x: Floats) -> Gpu:
        return replace(gpu, **dict(zip(FIELDS, np.exp(x).tolist(), strict=True)))

    def residual(x: Floats) -> Floats:
        error: Floats = modelled_w(with_values(x), w) / w.power_w - 1.0
        return error

    x = np.clip(np.log([getattr(gpu, name) for name in FIELDS]), low, high)
    r, damping = residual(x), 1e-2
    for _ in range(ROUNDS):
        jacobian = np.stack([(residual(x + step) - r) / 1e-6 for step in 1e-6 * np.eye(len(x))], axis=1)
        weight = np.minimum(1.0, SPREAD_FRAC / np.maximum(np.abs(r), 1e-12))
        curve = jacobian.T @ (weight[:, None] * jacobian)
        # the small constant holds still what no window depends on
        curve += damping * np.diag(np.diag(curve)) + 1e-12 * np.eye(len(x))
        move = np.linalg.solve(curve, -jacobian.T @ (weight * r))
        there = np.clip(x + np.clip(move, -0.5, 0.5), low, high)
        if _loss(after := residual(there)) < _loss(r):
            x, r, damping = there, after, damping / 3.0
        else:
            damping *= 4.0
        if damping > MOST_DAMPING:
            break
    return with_values(x), _loss(r)


def _loss(r: NDArray[np.float64]) -> float:
    """Huber's: squares up to the spread, then linear."""
    size = np.abs(r)
    return float(np.sum(np.where(size < SPREAD_FRAC, r**2 / 2, SPREAD_FRAC * (size - SPREAD_FRAC / 2))))


def power_values(readings: Readings, cluster: Cluster) -> dict[str, Value]:
    """Fields of the GPU that its draw tells, for a cluster file: none while the probe has only begun."""
    windows = windows_of(readings)
    if _missing(windows):
        return {}
    return values_of(fit_power(windows, cluster.gpu, limit_w=readings.machine.power_limit_w), readings.machine)


def values_of(fit: PowerFit, machine: Machine) -> dict[str, Value]:
    """Dotted field -> value for a cluster file."""
    who = f"knee probe power, {machine.date}, {machine.device}"
    who += f", driver {machine.driver}" if machine.driver else ""
    many = f"{fit.fitted.points} windows of {np.median(fit.windows.busy_s):.1f} s by the {fit.windows.by}"
    worth = f"residual median {fit.fitted.median_frac:.1%}, worst {fit.fitted.worst_frac:.1%}"
    if UNFITTED in fit.held_back:
        worth += f"; {UNFITTED} has energies of its own"
    values: dict[str, Value] = {}
    if machine.power_limit_w is not None:
        values["gpu.tdp_w"] = Value(
            value=f"{machine.power_limit_w:g} W", kind="measured", source=f"{who}: the enforced limit"
        )
    values["gpu.idle_w"] = Value(
        value=f"{fit.gpu.idle_w:.1f} W",
        kind="measured",
        source=f"{who}, by the {fit.windows.by}: a context and no work",
    )
    fitted: Sequence[tuple[str, str | float]] = (
        ("gemm_j_per_flop", f"{fit.gpu.gemm_j_per_flop * 1e12:.4g} pJ/FLOP"),
        ("hbm_j_per_byte", f"{fit.gpu.hbm_j_per_byte * 1e12:.4g} pJ/B"),
        ("cap_sharpness", round(fit.gpu.cap_sharpness, 1)),
    )
    for name, value in fitted:
        if name != "cap_sharpness" or fit.around_cap is not None:
            values[f"gpu.{name}"] = Value(value=value, kind="fitted", source=f"{who}, {many}; {worth}")
    for kernel, rate in fit.gpu.attention.items():
        if rate.j_per_flop is not None:
            values[f"gpu.attention.{kernel}.j_per_flop"] = Value(
                value=f"{rate.j_per_flop * 1e12:.4g} pJ/FLOP",
                kind="fitted",
                source=f"{who}, by the {fit.windows.by}: causal forward attention below the limit",
            )
    return values
