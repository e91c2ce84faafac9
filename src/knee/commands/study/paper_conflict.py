"""Figure 7's statement that does not fit the others: the algebra, what each subset needs, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from knee.commands.study.run_study import Ran
from knee.show.figures.palette import GRID, INK, PARTS, SERIES
from knee.show.figures.vega import CONFIG, SCHEMA, Figure, Spec
from knee.show.page.page import chart_of
from knee.show.page.tables import kind_table, record_table

# Statements of the paper that cannot all be true of one machine: T10 against T09, T12, T17 and T29. Formula: MFU = u
# (1 - e) Where: e is the exposed share of a step and u the MFU of the rest of it, on 16 and on 256 H100s, both with
# two sequences a GPU. Compute time does not depend on the count (T24), and a best plan at 256 computes no better than
# FSDP at 16: u256 <= u16. T12's best plan at 16 is no slower than FSDP there. Then: (1 - e16) MFU256 <= MFU16 (1 -
# e256), and T10 gives e256 >= 12.83%, whatever an A100 exposes.

MFU_256 = 0.4077
"""T09."""
MFU_16, MFU_16_ROUNDING = 0.40, 0.005
"""T12, and half of its last digit."""
GAP = 0.1283
"""T10, as points of the step."""
SMALL = 0.05
"""T17 and T29: our bound for minimal overhead."""


def least_exposed_16(mfu_16: float = MFU_16 + MFU_16_ROUNDING, e_256: float = GAP) -> float:
    """The least that 16 GPUs expose, by T09, T10 and T12."""
    return 1.0 - mfu_16 / MFU_256 * (1.0 - e_256)


def most_exposed_256(e_16: float = SMALL, mfu_16: float = MFU_16 + MFU_16_ROUNDING) -> float:
    """The most that 256 GPUs expose, by T09, T12 and a bound on 16."""
    return 1.0 - MFU_256 / mfu_16 * (1.0 - e_16)


def subsets() -> list[tuple[str, str, str, str, str]]:
    """Each statement given up in turn, at the kindest rounding of T12: it, the statements that are kept, what they ask
    for in its place, what the paper says, and how far the two are from each other."""
    top, every = MFU_16 + MFU_16_ROUNDING, ("T09", "T10", "T12", "T17", "T24", "T29")
    needed_16, needed_256 = MFU_256 * (1.0 - SMALL) / (1.0 - GAP), top * (1.0 - GAP) / (1.0 - SMALL)
    faster, exposed, gap = needed_16 / top - 1, least_exposed_16(), most_exposed_256()
    rows = (
        (
            *("T17 and T29", f"16 GPUs expose at least {exposed:.1%} of a step"),
            *(f"minimal overhead, taken as less than {SMALL:.0%}", exposed - SMALL),
        ),
        ("T12", f"MFU on 16 GPUs of at least {needed_16:.1%}", f"{MFU_16:.0%}", needed_16 - MFU_16),
        ("T09", f"MFU on 256 H100s of at most {needed_256:.1%}", f"{MFU_256:.2%}", needed_256 - MFU_256),
        (
            *("T10", f"H100s expose at most {gap:.1%} of a step at 256, and at most that much more than A100s"),
            *(f"{100 * GAP:+.2f} points", gap - GAP),
        ),
    )
    found = [
        (given_up, ", ".join(one for one in every if one not in given_up), then, stated, f"{100 * apart:+.1f} points")
        for given_up, then, stated, apart in rows
    ]
    then = f"the best plan on 256 GPUs computes at least {faster:.1%} faster than FSDP on 16"
    found.append(("T24", "T09, T10, T12, T17, T29", then, "constant compute time", f"{100 * faster:+.1f}%"))
    then = f"H100s expose {1 + GAP:.4g} times the A100s' share, and at most {gap:.1%}"
    relative = f"{100 * GAP:+.2f}%, without a unit"
    return [*found, ("T10 in points", "all, T10 as a relative change", then, relative, "none")]


# Exposed shares at two counts of GPUs: where each statement of the paper holds, and that they do not meet.

WIDTH, HEIGHT = 312, 240
X_END, Y_END = 0.20, 0.20
STEPS = 20


def conflict_chart(simulated: tuple[float, float] | None) -> Spec:
    """The band of T09 and T12, the bounds of the others, and knee's exposed shares on 16 and 256 GPUs."""
    low, high, gap, small = MFU_16 - MFU_16_ROUNDING, MFU_16 + MFU_16_ROUNDING, GAP, SMALL
    xs = [X_END * i / STEPS for i in range(STEPS + 1)]
    ends = [(x, *(min(max(most_exposed_256(x, mfu), 0.0), Y_END) for mfu in (low, high))) for x in xs]
    x = _axis("x", "exposed share on 16 GPUs", X_END)
    y = _axis("y", "exposed share on 256 GPUs", Y_END)
    band = [{"x": at, "y": least, "y2": most} for at, least, most in ends]
    words = [
        {"x": small, "y": gap, "text": f"T10: at least {gap:.2%}", "dy": -9, "align": "left"},
        {"x": small, "y": 0.195, "text": f"T17, T29: less than {small:.0%}", "dy": 0, "align": "left"},
        {"x": 0.075, "y": most_exposed_256(0.075, high), "text": "T09 and T12", "dy": 20, "align": "left"},
    ]
    layers: list[Spec] = [
        _box({"x": 0.0, "x2": X_END, "y": gap, "y2": Y_END}, PARTS["exposed"].light, x, y),
        _box({"x": 0.0, "x2": small, "y": 0.0, "y2": Y_END}, SERIES[2].light, x, y),
        {
            "data": {"values": band},
            "mark": {"type": "area", "color": SERIES[3].light, "fillOpacity": 0.5, "clip": True},
            "encoding": {"x": x, "y": y, "y2": {"field": "y2"}},
        },
        *(_text(word, x, y) for word in words),
    ]
    if simulated is not None:
        layers += _dot(simulated, x, y)
    return {"$schema": SCHEMA, "config": CONFIG, "width": WIDTH, "height": HEIGHT, "layer": layers}


def _axis(name: str, title: str, end: float) -> Spec:
    return {
        "field": name,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": [0.0, end], "nice": False},
        "axis": {"format": ".0%", "tickCount": 5, "labelFontSize": 11, "gridColor": GRID.light},
    }


def _box(value: Spec, color: str, x: Spec, y: Spec) -> Spec:
    return {
        "data": {"values": [value]},
        "mark": {"type": "rect", "color": color, "fillOpacity": 0.22},
        "encoding": {"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}},
    }


def _text(word: Spec, x: Spec, y: Spec) -> Spec:
    place = {"align": word["align"], "dy": word["dy"], "dx": 5 if word["align"] == "left" else 0}
    return {
        "data": {"values": [word]},
        "mark": {"type": "text", "fontSize": 11, "color": INK.light, **place},
        "encoding": {"x": x, "y": y, "text": {"field": "text"}},
    }


def _dot(at: tuple[float, float], x: Spec, y: Spec) -> list[Spec]:
    value = {"x": at[0], "y": at[1], "text": "knee", "dy": -10, "align": "left"}
    mark = {"type": "point", "shape": "cross", "filled": True, "size": 90, "color": INK.light}
    said = {"value": f"knee: {at[0]:.1%} exposed on 16 GPUs, {at[1]:.1%} on 256"}
    return [
        {"data": {"values": [value]}, "mark": mark | {"opacity": 1}, "encoding": {"x": x, "y": y, "description": said}},
        _text(value, x, y),
    ]


STUDY = "fig7"
"""The article that it stands in."""


def conflict_of(ran: Sequence[Ran], draw: Callable[[Spec], str]) -> dict[str, Any]:
    """What the article shows of it: the derivation, with knee's own point where its runs are there."""
    point = _simulated(ran)
    rows = []
    for e_16 in (0.0, 0.05, 0.10, 0.15, 0.20):
        low, high = (max(most_exposed_256(e_16, MFU_16 + sign * MFU_16_ROUNDING), 0.0) for sign in (-1, 1))
        rows.append({"exposed on 16 GPUs": f"{e_16:.0%}", "exposed on 256 GPUs": f"{low:.1%} to {high:.1%}"})
    figure = Figure(
        id="conflict-fig7",
        title="Where the statements hold",
        caption="Statements can be true together where their areas meet. T09 and T12 are a band, because T12 is "
        "rounded; no point of it lies in both of the others." + (" The cross is knee's own run." if point else ""),
        spec=conflict_chart(point),
        rows=tuple(rows),
    )
    kinds = dict.fromkeys(("given up", "kept", "then", "stated", "apart"), "words")
    table = kind_table("Which statements can be true together", kinds, subsets())
    charted = chart_of(figure, [record_table("Exposed shares by T09 and T12", rows)], draw)
    return {"says": _says(), "steps": _steps(), "table": table, "chart": charted}


def _says() -> str:
    return (
        f"T10 cannot hold together with T09, T12, T17 and T29: with {GAP:.2%} of the step exposed on 256 H100s, equal "
        f"utilisation on 16 and 256 asks for at least {least_exposed_16():.1%} exposed on 16, where the paper calls "
        "overhead minimal. This is algebra on the paper's own numbers; no simulation enters."
    )


def _steps() -> tuple[str, ...]:
    top = MFU_16 + MFU_16_ROUNDING
    return (
        "MFU = u (1 - e), where e is the exposed share of a step and u the MFU of the rest of it.",
        "With two sequences a GPU on 16 and on 256 H100s compute takes as long (T24), and more model parallelism does "
        "not make products faster: u(256) is at most u(16).",
        f"T09: u(256) (1 - e(256)) = {MFU_256:.2%}. T12: u(16) (1 - e(16)) is at most {MFU_16:.0%}, {top:.1%} before "
        "rounding, because the best plan on 16 is no slower than FSDP.",
        f"Together: 1 - e(16) is at most {top:.1%} / {MFU_256:.2%} x (1 - e(256)).",
        f"T10: e(256) is {GAP:.2%} more than on A100s, so at least {GAP:.2%}. Then e(16) is at least "
        f"{least_exposed_16():.1%}; with T12 at {MFU_16:.0%} sharp, {least_exposed_16(MFU_16):.1%}.",
        f"T17 and T29: e(16) is minimal, which we took as less than {SMALL:.0%}; any bound below "
        f"{least_exposed_16():.1%} contradicts the rest.",
    )


def _simulated(ran: Sequence[Ran]) -> tuple[float, float] | None:
    """knee's exposed shares: FSDP on 16 H100s, and the fastest plan on 256."""
    rows = {one.study.name: one.rows for one in ran}
    few = [r for r in rows.get("fig3", ()) if r["series"] == "FSDP" and r["gpus"] == 16 and r["kind"] == "simulated"]
    many = [r for r in rows.get(STUDY, ()) if r.get("cluster") == "dgx-h100" and r.get("fits")]
    if not few or not many:
        return None
    best = max(many, key=lambda row: float(row["tokens_per_s"]))
    return float(few[0]["exposed_frac"]), float(best["exposed_frac"])
