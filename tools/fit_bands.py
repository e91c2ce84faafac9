"""Fit how wide bands of trust must be, and show what they hold of sources that are left out.

    python tools/fit_bands.py [--write]

Run it after ``tools/fit_published.py --write`` and ``tools/fit_moe_runs.py --write``. Prints what the bands of each
label hold of each source, with labels, bands and their constants all from the errors of the other sources; then what
the bands that users see hold, whose constants are fitted on all sources. --write puts those into bands.toml (dense
models) and moe_bands.toml (mixtures of experts) of src/knee/catalog/validation; ``knee simulate`` widens its bands by
them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from band_coverage import QUANTITIES, Coverage, coverage, judged_runs, table
from band_fit import ASSUMED, constants_without_each, fit_constants

from knee.trust.bands import CONSTANTS, FEW_SOURCES, LABELS, MOE_CONSTANTS, Constants, Quantity, unseen
from knee.trust.error_table import EXPERTS, NAMES, OWN, Errors, read_errors
from knee.trust.validation.bundled_runs import PROMISED, jobs_of

HEAD = """\
# How much wider bands are with distance from what was measured, and with a weaker label (src/knee/trust/bands.py).
# Fitted values: tools/fit_bands.py, on the carried runs, each predicted without its source and as far as it is from the
# runs of other sources.
"""


def main(arguments: Sequence[str]) -> None:
    """Fit, judge, write."""
    for path, constants in ((OWN, CONSTANTS), (EXPERTS, MOE_CONSTANTS)):
        errors = read_errors(path)
        jobs = jobs_of(errors)
        judged = judged_runs(errors, jobs)
        found = fit_constants(errors, jobs)
        all_sources = dict.fromkeys(errors.words["source"], found)
        for words, by in (("without each source", constants_without_each(errors, jobs)), ("of all", all_sources)):
            rows = coverage(errors, by, judged)
            print(f"{path.name}, constants {words}:\n{table(rows)}\n{held_of_all(rows)}")
        text = HEAD + "".join(_lines(errors, quantity, found) for quantity in QUANTITIES)
        print(text)
        if "--write" in arguments:
            constants.write_text(text, encoding="utf-8")


def held_of_all(rows: Sequence[Coverage]) -> str:
    """What bands of all labels hold of left-out runs of throughput."""
    lines = []
    for promised in PROMISED:
        of = [row for row in rows if row.quantity == "throughput" and row.source and row.covered_frac == promised]
        held = sum(row.runs * row.held_frac for row in of) / sum(row.runs for row in of)
        lines.append(f"bands of {promised:.0%} hold {held:.1%} of {sum(row.runs for row in of)} left-out runs")
    return "\n".join(lines)


def _lines(errors: Errors, quantity: Quantity, found: Mapping[Quantity, Constants]) -> str:
    constants, sources = found[quantity], _sources(errors, quantity)
    few = f"used while fewer than {FEW_SOURCES} sources have measured it"
    lines = [f"\n[{quantity}]", *(_line(name, getattr(constants, name), None, few) for name in SPREADS)]
    lines.append(f"\n[{quantity}.distance]")
    for name, factor in zip(NAMES, constants.factors.tolist(), strict=True):
        before = ASSUMED[quantity][name]
        moved = round(factor, 2) != before
        lines.append(_line(name, round(factor, 2), sources if moved else None, WHY[name]))
    lines.append(f"\n[{quantity}.label]")
    why = (
        "too few sources to fit this factor"
        if sources is None
        else "widens bands until they contain the promised share of runs"
    )
    lines += [_line(label, constants.labels[label], sources, why) for label in LABELS]
    return "\n".join(lines) + "\n"


SPREADS = ("assumed_between", "assumed_within")
WHY = {
    "small_layers": "per halving of a layer's time below 2 ms",
    "stack": "no run of the software stack",
    "doublings": "per doubling of GPUs beyond the largest run",
    "gpu": "no run on the GPU",
    "precision": "no run in the precision",
    "parallelism": "no run with the kinds of parallelism, or the schedule",
    "tp_across_nodes": "a tensor-parallel group spans nodes",
}


def _line(name: str, value: float, sources: int | None, why: str) -> str:
    kind = "assumed" if sources is None else "fitted"
    source = why if sources is None else f"{why}: tools/fit_bands.py on {sources} sources, each left out in turn"
    return f'{name} = {{ value = {value:g}, kind = "{kind}", source = "{source}" }}'


def _sources(errors: Errors, quantity: Quantity) -> int | None:
    """None: too few to fit on."""
    measured = unseen(errors, quantity)
    found = len(set(errors.of("source", measured == measured)))
    return found if found >= FEW_SOURCES else None


if __name__ == "__main__":
    main(sys.argv[1:])
