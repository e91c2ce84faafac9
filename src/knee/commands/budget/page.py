"""The page of a budget: the best run beside what FLOP counting chose, every chart with its values, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.base.units import amount, counted, short
from knee.commands.budget.charts import budget_figures
from knee.show.figures.vega import Figure
from knee.show.page.failure_section import failure_section
from knee.show.page.page import Chart, Key, Page, Section, chart_of, render_page
from knee.show.page.tables import Table, record_table

Data = Mapping[str, Any]
SIDES = ("what", "with communication", "counting FLOP", "what that really reaches")


def budget_page(data: Data, *, command: str = "", month: Sequence[Data] = ()) -> str:
    """One HTML file of ``knee budget --json``'s data; ``month`` has the spans of a month of the best run."""
    best, lost = data["best"], data["flop_counting"]["lost"]
    figures = {figure.id: figure for figure in budget_figures(data)}
    keys = [
        Key(value=short(best["params"]), says="parameters"),
        Key(value=short(best["tokens"]), says=f"tokens, {best['tokens_per_param']:.3g} a parameter"),
        Key(value=f"{best['loss']:.3f}", says=f"loss by {data['law']['name']}"),
        Key(
            value=f"{best['gpus']:,}",
            says=f"of {counted(data['limits']['gpus'], 'GPU')}, {counted(best['days'], 'day')}",
        ),
    ]
    if lost is not None:
        keys.append(Key(value=f"{100 * lost['budget_frac']:.3g}%", says="of the budget is lost by counting FLOP alone"))
    sections = [
        Section(
            id="choice",
            title="Which size, how many GPUs",
            charts=_charts(figures, "sizes", "counts"),
            says="The limits decide how many tokens each size gets through on each count of GPUs, the law what "
            "they are worth.",
        )
    ]
    if month:
        sections.append(failure_section(best["with_failures"], month))
    if frontiers := _charts(figures, *(name for name in figures if name.startswith("frontier"))):
        says = "The best run at halves and doubles of what the best takes, while the other limits stay."
        sections.append(Section(id="frontier", title="What more of it buys", charts=frontiers, says=says))
    if both := _charts(figures, "grid", "iso-loss"):
        says = "Over GPUs and sizes the loss is a valley: its height, and its contours."
        sections.append(Section(id="iso", title="Equal loss", charts=both, says=says))
    sections.append(
        Section(
            id="sure",
            title="How sure",
            blocks=(_bands(data), _marginal(data)),
            says="Bands of the law's coefficients and of the simulator's throughput, and what one more "
            "unit of each limit is worth.",
        )
    )
    page = Page(
        title="The best model that a budget can train",
        question=_question(data),
        command=command,
        keys=tuple(keys),
        found=tuple(data["sentences"]),
        tables=(_sides(data), _shape(best)),
        sections=tuple(sections),
        assumptions=tuple(data["assumptions"]),
        sources=(
            ("Hoffmann et al. 2022, arXiv 2203.15556", "https://arxiv.org/abs/2203.15556"),
            ("Besiroglu et al. 2024, arXiv 2404.10102", "https://arxiv.org/abs/2404.10102"),
            ("Kaplan et al. 2020, arXiv 2001.08361", "https://arxiv.org/abs/2001.08361"),
            (
                "Hardware Scaling Trends and Diminishing Returns in Large-Scale Distributed Training, arXiv "
                "2411.13055, section 5",
                "https://arxiv.org/abs/2411.13055",
            ),
        ),
    )
    return render_page(page)


def _question(data: Data) -> str:
    limits = data["limits"]
    days, tokens = limits["days"], limits["tokens_max"]
    some = [counted(days, "day")] if days is not None else []
    some += [
        f"{amount(limits[name])} {unit}" for name, unit in (("usd", "USD"), ("mwh", "MWh")) if limits[name] is not None
    ]
    some += [f"{short(tokens)} tokens of data"] if tokens is not None else []
    return (
        f"Up to {counted(limits['gpus'], 'GPU')} of {data['cluster']} and {', '.join(some)}: which model of the "
        f"family {data['family']}, on how many tokens?"
    )


def _charts(figures: Mapping[str, Figure], *names: str) -> tuple[Chart, ...]:
    return tuple(chart_of(figures[name]) for name in names if name in figures)


def _sides(data: Data) -> Table:
    best, flop, really = data["best"], data["flop_counting"], data["flop_counting"]["really"]
    rows = []
    for name, key in (
        ("parameters", "params"),
        ("tokens", "tokens"),
        ("loss", "loss"),
        ("GPUs", "gpus"),
        ("days", "days"),
        ("GPU hours", "gpu_hours"),
        ("USD", "cost_usd"),
        ("MWh", "energy_mwh"),
        ("kg CO2e", "co2e_kg"),
        ("MFU by 6 N D", "mfu_6nd_frac"),
    ):
        values = (best[key], flop["all_params" if key == "params" else key], really[key] if really else None)
        rows.append(dict(zip(SIDES, (name, *(_cell(key, value) for value in values)), strict=True)))
    return record_table("The best run, and what counting FLOP would have chosen", rows)


def _shape(best: Data) -> Table:
    row = {name: best[name] for name in ("model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab")}
    batch = f"{short(best['batch_tokens'])} tokens; critical: {short(best['critical_batch_tokens'])}"
    return record_table("The shape and its plan", [row | {"batch": batch, "plan": best["plan_words"]}])


def _bands(data: Data) -> Table:
    bands, rows = data["best"]["bands"], []
    law, engine = (f"{bands[name]:.0%}" for name in ("law_covers_frac", "engine_covers_frac"))
    for name, words, holds in (
        ("law", "the law's coefficients", f"{law} of draws"),
        ("engine", "the simulator's throughput", f"{engine} of the published runs most like it"),
        ("both", "both", f"the law's {law} and the simulator's {engine}, added in squares"),
    ):
        ends = bands[name]
        low, high = (f"{end:.4f}" for end in ends) if ends else (None, None)
        rows.append({"loss by": words, "from": low, "to": high, "holds": holds if ends else None})
    return record_table("Bands of the loss", rows)


def _marginal(data: Data) -> Table:
    rows = [
        {"one more": one["what"], "loss": f"{one['loss']:+.2e}", "ends this run": one["binds"], "how": one["how"]}
        for one in data["marginal"]
    ]
    return record_table("What one more unit buys", rows)


def _cell(key: str, value: float | None) -> str | None:
    if value is None:
        return None
    if key in ("params", "tokens"):
        return short(value)
    return f"{value:.4f}" if key == "loss" else f"{value:.1%}" if key == "mfu_6nd_frac" else amount(value)
