"""Figure 7's statement that does not fit the others: the algebra, what each subset needs, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from knee.evidence.conflict import (
    GAP,
    MFU_16,
    MFU_16_ROUNDING,
    MFU_256,
    SMALL,
    least_exposed_16,
    most_exposed_256,
    subsets,
)
from knee.figures.conflict_chart import conflict_chart
from knee.figures.figure import Figure
from knee.figures.vega import Spec
from knee.report.page import Chart, chart_of
from knee.report.tables import Table, kind_table, record_table
from knee.studies.run_study import Ran

STUDY = "fig7"
"""The article that it stands in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What the article shows of it."""

    says: str
    steps: tuple[str, ...]
    table: Table
    chart: Chart


def conflict_of(ran: Sequence[Ran], draw: Callable[[Spec], str]) -> Conflict:
    """The derivation, with knee's own point where its runs are there."""
    point = _simulated(ran)
    rows = [{"exposed on 16 GPUs": f"{e:.0%}", "exposed on 256 GPUs": _ends(e)} for e in (0.0, 0.05, 0.10, 0.15, 0.20)]
    figure = Figure(
        id="conflict-fig7",
        title="Where the statements hold",
        caption="Statements can be true together where their areas meet. T09 and T12 are a band, because T12 is "
        "rounded; no point of it lies in both of the others." + (" The cross is knee's own run." if point else ""),
        spec=conflict_chart(
            lambda e, mfu: most_exposed_256(e, mfu),
            mfu_16=(MFU_16 - MFU_16_ROUNDING, MFU_16 + MFU_16_ROUNDING),
            gap=GAP,
            small=SMALL,
            simulated=point,
        ),
        columns=tuple(rows[0]),
        rows=tuple(rows),
    )
    kinds = dict.fromkeys(("given up", "kept", "then", "stated", "apart"), "words")
    table = kind_table("Which statements can be true together", kinds, [tuple(asdict(s).values()) for s in subsets()])
    charted = chart_of(figure, [record_table("Exposed shares by T09 and T12", figure.columns, rows)], draw)
    return Conflict(says=_says(), steps=_steps(), table=table, chart=charted)


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


def _ends(e_16: float) -> str:
    low, high = (max(most_exposed_256(e_16, MFU_16 + sign * MFU_16_ROUNDING), 0.0) for sign in (-1, 1))
    return f"{low:.1%} to {high:.1%}"


def _simulated(ran: Sequence[Ran]) -> tuple[float, float] | None:
    """knee's exposed shares: FSDP on 16 H100s, and the fastest plan on 256."""
    rows = {one.study.name: one.rows for one in ran}
    few = [r for r in rows.get("fig3", ()) if r["series"] == "FSDP" and r["gpus"] == 16 and r["kind"] == "simulated"]
    many = [r for r in rows.get(STUDY, ()) if r.get("cluster") == "dgx-h100" and r.get("fits")]
    if not few or not many:
        return None
    best = max(many, key=lambda row: float(row["tokens_per_s"]))
    return float(few[0]["exposed_frac"]), float(best["exposed_frac"])
