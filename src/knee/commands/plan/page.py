"""The page of a search of plans: the recommended plan, the ranking, the front, and what more hardware would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knee.base.units import amount, precise, short
from knee.engine.one_job import ASSUMPTIONS
from knee.show.page.failure_section import failure_section
from knee.show.page.page import Key, Page, Section, render_page
from knee.show.page.tables import Table, record_table
from knee.specs.metrics import METRICS, VIEWS, values_of

# The part of a page about a whole run: days, GPU-hours, dollars, energy and CO2e.

WORDS = {
    "tokens": "tokens",
    "days": "days",
    "low_days": "days, at the highest throughput of the range",
    "high_days": "days, at the lowest throughput of the range",
    "gpu_hours": "GPU-hours",
    "cost_usd": "USD",
    "energy_mwh": "MWh",
    "gpu_mwh": "MWh of GPUs",
    "host_mwh": "MWh of hosts",
    "network_mwh": "MWh of the network",
    "site_mwh": "MWh of cooling and power supply",
    "co2e_kg": "kg CO2e",
    "pue": "PUE",
    "g_co2e_per_kwh": "g CO2e per kWh",
}
FAILED = {"days": "days with failures", "gpu_hours": "GPU-hours with failures", "cost_usd": "USD with failures"}


def training_section(run: Mapping[str, Any]) -> Section:
    """``run`` is ``training`` of an answer."""
    failed = run["with_failures"]
    values = {words: (key, run[key]) for key, words in WORDS.items()}
    values |= {words: (key, failed.get(key)) for key, words in FAILED.items()}
    rows = [
        {"what": words, "value": short(value) if key == "tokens" else amount(value)}
        for words, (key, value) in values.items()
        if value is not None
    ]
    return Section(
        id="training",
        title="The whole run",
        says="GPUs, hosts, network and the site's cooling and power supply; without checkpoints and failures, except "
        "where they are named.",
        blocks=(record_table("Training", rows),),
    )


Data = Mapping[str, Any]
RANKING = VIEWS["ranking of plans"]


def plan_page(data: Data, words: Mapping[int, str], *, command: str = "", month: Sequence[Data] = ()) -> str:
    """One HTML file of ``knee plan --json``'s data; ``words`` is each ranked plan in words, ``month`` the spans of a
    month of the run."""
    best, counts, run = data["recommended"], data["counts"], data.get("training")
    keys = [
        Key(value=precise(best["tokens_per_s"]), says="tokens/s with the recommended plan"),
        Key(value=f"{best['mfu_frac']:.1%}", says="MFU"),
        Key(value=f"{best['exposed_frac']:.1%}", says="of the step is exposed communication"),
    ]
    keys += [] if run is None else [Key(value=f"{run['days']:,.1f}", says=f"days for {short(run['tokens'])} tokens")]
    by = f"By {data['objective']}."
    sections = [
        Section(id="plans", title="Best plans", says=by, blocks=(_ranking(data["plans"], words),)),
        Section(
            id="front",
            title="The front",
            says="Simulated plans that no other beats in tokens/s, tokens/J and free memory at once.",
            blocks=(_ranking(data["front"], words),),
        ),
        Section(
            id="sensitivity",
            title="What more hardware would bring",
            says="+25% and -25% of each resource; the plan is chosen again each time.",
            blocks=(_sensitivity(data["sensitivity"]),),
        ),
    ]
    if run is not None:
        if month:
            sections.insert(0, failure_section(run["with_failures"], month))
        sections.insert(0, training_section(run))
    page = Page(
        title="The best parallel plan",
        question=f"{data['model']} on {data['gpus']:,} GPUs of {data['cluster']}, profile {data['profile']}, "
        f"{data['global_batch']:,} sequences of {data['seq_len']:,} tokens per step: which plan?",
        command=command,
        keys=tuple(keys),
        found=(
            f"Recommended: {words[best['rank']]}.",
            f"{str(data['why'])[:1].upper()}{str(data['why'])[1:]}.",
            f"{counts['plans']:,} valid plans; {counts['simulated']:,} were simulated, and bounds rule out that "
            f"another is among the best {counts['ranked']:,}.",
        ),
        sections=tuple(sections),
        assumptions=ASSUMPTIONS,
    )
    return render_page(page)


def _ranking(plans: Sequence[Data], words: Mapping[int, str]) -> Table:
    heads = ("rank", *(METRICS[name].heading for name in RANKING), "plan")
    rows = []
    for plan in plans:
        values = values_of(plan, "ranking of plans")
        cells = (None if value is None else METRICS[name].cell(value) for name, value in values.items())
        rows.append(dict(zip(heads, (plan["rank"], *cells, words[plan["rank"]]), strict=True)))
    return record_table("Plans", rows, heads)


def _sensitivity(bars: Sequence[Data]) -> Table:
    rows = [{key: f"{value:.4g}" if isinstance(value, float) else value for key, value in bar.items()} for bar in bars]
    flat = [{key: value for key, value in row.items() if not isinstance(value, (dict, list))} for row in rows]
    return record_table("Sensitivity", flat)
