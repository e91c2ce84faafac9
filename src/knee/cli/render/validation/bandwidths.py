"""Bandwidths of collectives in ``knee validate``: what is printed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knee.cli.render.table import print_heading
from knee.cli.render.validate import ALL, print_counts, print_errors, print_skipped, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knee.hardware_fit.residuals import Residuals
    from knee.validation.bandwidths.bandwidth_errors import BandwidthScore, BandwidthValidation

LARGE = "messages of 16 MiB and more"


def print_bandwidths(found: BandwidthValidation) -> None:
    """Tables on stdout."""
    large = found.all.large
    if large:
        print_heading(
            f"error of bus bandwidth, {LARGE}: {large.median_frac:.1%} (median), {large.p90_frac:.1%} (p90), "
            "largest "
            f"error a factor of {found.all.large_factor:.2f}, {large.points:,} tests"
        )
    print_scores(found)


def print_scores(found: BandwidthValidation) -> None:
    """By source, operation, nodes and message size."""
    scores = {**found.sources, ALL: found.all} if len(found.sources) > 1 else found.sources
    cells = [["source", "rows", "used", "skipped", "tests"]]
    cells += [
        [name, f"{s.rows:,}", f"{s.rows_used:,}", f"{s.rows - s.rows_used:,}", f"{s.tests:,}"]
        for name, s in scores.items()
    ]
    print_table("rows of bandwidths (repeated measurements count as one test)", cells)
    _print_large("source", scores)
    _print_large("operation", found.operations)
    print_errors(f"error by nodes, {LARGE}", _flat(found.nodes, " on {} nodes"), of="operation", counted="tests")
    print_errors("error by message size", _flat(found.sizes, ", {}"), of="operation", counted="tests")
    print_skipped({name: s.skipped for name, s in found.sources.items()})
    print_counts("assumptions", found.assumptions)


def _print_large(of: str, scores: Mapping[str, BandwidthScore]) -> None:
    cells = [[of, "tests", "median", "p90", "largest factor", "signed median"]]
    for name, s in scores.items():
        if (r := s.large) is not None:
            rates = [f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{s.large_factor:.2f}x", f"{r.bias_frac:+.1%}"]
            cells.append([name, f"{r.points:,}", *rates])
    print_table(f"error by {of}, {LARGE}", cells)


def _flat(cells: dict[str, dict[str, Residuals]], words: str) -> dict[str, Residuals | None]:
    """Two names as one."""
    flat = {name + words.format(key): r for name, by_key in cells.items() for key, r in by_key.items()}
    return {name.replace(" 1 nodes", " 1 node"): r for name, r in flat.items()}
