"""The page of a user's own records: measured beside simulated, chart by chart, with every value behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from knee.base.errors import InputError
from knee.commands.compare.side_by_side import refuse_mixed
from knee.commands.report.record_files import stack_of
from knee.commands.study.charts import figures_of_rows
from knee.commands.study.quantities import Row
from knee.commands.study.rows import identity
from knee.commands.study.study_file import Draw
from knee.show.figures.axes import is_number
from knee.show.figures.bars import PART_COLUMNS
from knee.show.figures.labels import name_of, value_with_name
from knee.show.figures.vega import Figure
from knee.show.page.page import Bullets, Key, Page, Section, chart_of, render_page
from knee.show.page.tables import Table, record_table
from knee.specs.metrics import VIEWS

PARTS = "parts"
CHARTS = {
    "throughput": {
        "tokens_per_s": ("Tokens per second, all GPUs", "Of all GPUs together."),
        "tokens_per_s_per_gpu": ("Tokens per second per GPU", "A horizontal line would be ideal."),
    },
    "time": {
        "step_s": ("Time per step", "From one step to the next."),
        "exposed_frac": (
            "Exposed share of the step",
            "Communication that runs while nothing computes, including pipeline bubbles.",
        ),
        PARTS: (
            "Time per step, by what the GPU does",
            "Compute, exposed communication, bubble and idle add up to the "
            "step. The dashed bar next to it is communication that overlaps with compute.",
        ),
    },
    "efficiency": {
        "mfu_frac": ("MFU", "The model's FLOP per second divided by the GPUs' peak."),
        "memory_bytes": ("Memory per GPU", "Of the GPU that needs most."),
    },
    "energy": {
        "power_w_per_gpu": ("Power per GPU", "While it trains."),
        "tokens_per_j": ("Tokens per joule", "Of what the GPUs draw."),
    },
}
"""Section -> the metrics that it draws, each with its title and caption, where some record has it."""
SECTIONS = {
    "throughput": ("Throughput", "Tokens per second of all GPUs, and of one."),
    "time": ("Where the time goes", "A step's length, and what a GPU does in it."),
    "efficiency": ("Utilisation and memory", "Model FLOP over the peak, and the memory of the GPU that needs most."),
    "energy": ("Power and energy", "What a GPU draws, and what a joule trains."),
}
"""Section -> its title and what it says."""
ASSUMPTIONS = (
    "Lines and bars are simulated, dots measured, hollow diamonds published. A record says which of them it is.",
    "Unknown means that a record does not say.",
    "A measured and a simulated record are of the same job where model, cluster, GPUs, batch, sequence and plan agree.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A measured record and the simulation of the same job."""

    measured: Row
    simulated: Row

    def error(self, metric: str) -> float | None:
        """Simulated over measured, less one."""
        here, there = self.simulated.get(metric), self.measured.get(metric)
        return here / there - 1.0 if is_number(here) and is_number(there) and there else None


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """Every measured row with the first simulation of its job: of its software, or else of any."""
    known: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["kind"] == "simulated" and row.get("plan") is not None:
            known.setdefault(stack_of(row), row)
            known.setdefault(identity(row), row)
    jobs = [row for row in rows if row["kind"] == "measured" and row.get("plan") is not None]
    beside = [(row, known.get(stack_of(row)) or known.get(identity(row))) for row in jobs]
    return [Pair(measured=row, simulated=simulated) for row, simulated in beside if simulated is not None]


def runs_page(rows: Sequence[Row], *, title: str, command: str, notes: Sequence[str] = ()) -> str:
    """Rows as one HTML file; ``notes`` say what was left out, and why."""
    pairs = pairs_of(rows)
    mixed = _mixed(rows)
    sections = [_section(name, rows, with_mfu=mixed is None) for name in CHARTS]
    first = [*sentences(rows, pairs), *([f"{mixed[:1].upper()}{mixed[1:]}; it is not drawn."] if mixed else [])]
    kinds = Counter(str(row["kind"]) for row in rows)
    models = list(dict.fromkeys(str(row["model"]) for row in rows if row.get("model")))
    counts = sorted({int(row["gpus"]) for row in rows})
    of = f" of {', '.join(models[:4])}{' and others' if len(models) > 4 else ''}" if models else ""
    where = f"{counts[0]:,} to {counts[-1]:,} GPUs" if len(counts) > 1 else f"{counts[0]:,} GPU{'s' * (counts[0] > 1)}"
    return render_page(
        Page(
            title=title,
            question=f"{' and '.join(f'{n:,} {kind}' for kind, n in kinds.items())} steps{of} on {where}.",
            command=command,
            keys=_keys(rows, pairs),
            found=tuple(first),
            tables=(_pair_table(pairs),) if pairs else (),
            sections=(*(s for s in sections if s.charts), _all(rows, notes)),
            assumptions=ASSUMPTIONS,
        )
    )


def sentences(rows: Sequence[Row], pairs: Sequence[Pair]) -> list[str]:
    """What the records say together."""
    found = []
    fastest = [row for row in rows if is_number(row.get("tokens_per_s_per_gpu")) and row.get("fits") is not False]
    if len(fastest) > 1:
        best = max(fastest, key=lambda row: float(row["tokens_per_s_per_gpu"]))
        found.append(
            f"The most of a GPU: {best['series']} on {best['gpus']:,}, "
            f"{value_with_name('tokens_per_s_per_gpu', best['tokens_per_s_per_gpu'])} ({best['kind']})."
        )
    for metric in ("tokens_per_s_per_gpu", "memory_bytes", "power_w_per_gpu"):
        errors = [error for pair in pairs if (error := pair.error(metric)) is not None]
        if errors:
            worst = max(errors, key=abs)
            found.append(
                f"Of {name_of(metric)} knee is off by {median(map(abs, errors)):.1%} in the median of "
                f"{len(errors)}, by {worst:+.1%} at worst."
            )
    lost = [row for row in rows if row.get("fits") is False]
    if lost:
        found.append(f"{len(lost)} of {len(rows)} did not fit in memory; they are in the table only.")
    return found


def _keys(rows: Sequence[Row], pairs: Sequence[Pair]) -> tuple[Key, ...]:
    keys = [Key(value=f"{len(rows):,}", says="records")]
    known = [float(row["tokens_per_s_per_gpu"]) for row in rows if is_number(row.get("tokens_per_s_per_gpu"))]
    if known:
        keys.append(Key(value=f"{max(known):,.0f}", says="tokens/s per GPU at most"))
    errors = [abs(error) for pair in pairs if (error := pair.error("tokens_per_s_per_gpu")) is not None]
    if errors:
        says = f"off is knee's throughput, in the median of {len(errors)} measured"
        keys.append(Key(value=f"{median(errors):.1%}", says=says))
    return tuple(keys)


def _pair_table(pairs: Sequence[Pair]) -> Table:
    metric = "tokens_per_s_per_gpu"
    rows = [
        {
            "series": pair.measured["series"],
            "gpus": pair.measured["gpus"],
            "measured tokens/s per GPU": pair.measured.get(metric),
            "simulated tokens/s per GPU": pair.simulated.get(metric),
            "off_by_frac": pair.error(metric),
            "memory_off_by_frac": pair.error("memory_bytes"),
            "power_off_by_frac": pair.error("power_w_per_gpu"),
            "trust": pair.simulated.get("trust"),
        }
        for pair in pairs
    ]
    return record_table("Measured beside simulated; off by: simulated over measured, less one", rows)


def _mixed(rows: Sequence[Row]) -> str | None:
    try:
        refuse_mixed([str(row.get("record")) for row in rows], rows)
    except InputError as error:
        return error.message
    return None


def charts_of(name: str, rows: Sequence[Row], *, with_mfu: bool = True) -> list[Figure]:
    """A section's metrics that some record has: against GPUs where there are several counts, by curve otherwise."""
    several = len({row["gpus"] for row in rows}) > 1
    named = list(_named(rows))
    draws = []
    for metric, (title, caption) in CHARTS[name].items():
        if metric == PARTS and any(all(is_number(row.get(c)) for c in PART_COLUMNS.values()) for row in rows):
            x = "gpus" if several else "who"
            draws.append(Draw(title=title, mark="parts", x=x, color="who", caption=caption))
        elif (with_mfu or metric != "mfu_frac") and any(is_number(row.get(metric)) for row in rows):
            draws.append(_draw(metric, title, caption, several=several))
    return figures_of_rows(name, draws, named)


def _named(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows with a name each at one count: repeats of a run are not stacked on each other."""
    both = len({row["kind"] for row in rows}) > 1
    seen: Counter[tuple[str, int]] = Counter()
    for row in rows:
        who = f"{row['series']}, {row['kind']}" if both else str(row["series"])
        seen[who, row["gpus"]] += 1
        again = seen[who, row["gpus"]]
        yield {**row, "who": who if again == 1 else f"{who}, run {again}"}


def _draw(metric: str, title: str, caption: str, *, several: bool) -> Draw:
    if not several:
        return Draw(title=title, mark="bar", x="series", y=metric, caption=caption)
    if metric != "tokens_per_s":
        return Draw(title=title, mark="line", x="gpus", y=metric, caption=caption)
    ideal = f"{caption} The wide grey line is ideal scaling of the first curve."
    return Draw(title=title, mark="line", x="gpus", y=metric, log=True, ideal="scaled", caption=ideal)


def _section(name: str, rows: Sequence[Row], *, with_mfu: bool) -> Section:
    charts = tuple(
        chart_of(f, [record_table(f.title, f.rows, (*(c for c in f.columns if c != "trust"), "record"))])
        for f in charts_of(name, rows, with_mfu=with_mfu)
        if f.spec is not None
    )
    title, says = SECTIONS[name]
    return Section(id=name, title=title, says=says, charts=charts)


def _all(rows: Sequence[Row], notes: Sequence[str]) -> Section:
    labels = ("record", "kind", "series", "model", "cluster", "profile", "gpus", "global_batch", "seq_len", "plan")
    columns = [*labels, "flop_convention", *VIEWS["list of records"], "fits", "trust"]
    kept = [name for name in columns if name in labels or any(row.get(name) is not None for row in rows)]
    left = [Bullets(title="Left out", sentences=tuple(notes))] if notes else []
    return Section(
        id="records",
        title="All records",
        says="Every record as it was read.",
        blocks=(record_table("All records", rows, tuple(kept)), *left),
    )
