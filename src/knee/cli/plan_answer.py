"""A search's answer: as data, and on the screen."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from knee.cli.answer import trust_words
from knee.cli.table import print_heading, print_rows
from knee.fidelity.trust import Trust, trust_of
from knee.search.best import Found
from knee.search.front import Baseline, baseline, pareto, why
from knee.search.robust import Robust
from knee.search.sensitivity import Bar, sensitivity
from knee.single import simulate
from knee.specs.plan import plan_words
from knee.units import show

SHOWN_FRONT = 8
BAR_WIDTH = 24
METRICS = (
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu_frac",
    "step_s",
    "compute_s",
    "exposed_comm_s",
    "overlapped_comm_s",
    "bubble_s",
    "memory_bytes",
    "power_w_per_gpu",
    "tokens_per_j",
    "usd_per_mtoken",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that is said about a search."""

    found: Found
    drawn: Robust
    base: Baseline | None
    """Plain FSDP; None where it cannot be."""
    why: str
    bars: list[Bar]
    front: list[int]
    trust: Trust
    """Of the recommended plan."""
    top: int
    """Plans that are listed."""

    @classmethod
    def of(cls, found: Found, drawn: Robust, top: int) -> Answer:
        """Put a search and its draws beside plain FSDP, other hardware and published runs."""
        plain, job = baseline(found), found.job(drawn.recommended)
        return cls(
            found=found,
            drawn=drawn,
            base=None if isinstance(plain, str) else plain,
            why=plain if isinstance(plain, str) else why(job, simulate(job), plain),
            bars=sensitivity(found),
            front=pareto(found.results, found.cluster.gpu.hbm_bytes).tolist(),
            trust=trust_of(job),
            top=min(top, len(found)),
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``--json``; every key carries its unit."""
        found, drawn, space = self.found, self.drawn, self.found.space
        return {
            "schema_version": 1,
            "model": space.model.name,
            "cluster": found.cluster.name,
            "profile": found.profile.name,
            "gpus": space.gpus,
            "global_batch": space.global_batch,
            "seq_len": space.seq_len,
            "objective": found.objective,
            "counts": {
                "plans": found.plans,
                "too_large": found.too_large,
                "bounded": found.bounded,
                "simulated": len(found),
            },
            "plans": [self._row(row) for row in range(self.top)],
            "recommended": self._row(drawn.recommended),
            "alike": [row + 1 for row in drawn.alike],
            "why": self.why,
            "baseline": None if self.base is None else self._baseline(self.base),
            "front": [self._row(row) for row in self.front],
            "robustness": {
                "draws": drawn.draws,
                "within_frac": 0.02,
                "parameters": [
                    {"path": p.path, "spread": p.spread, "share": p.is_share, "meaning": p.meaning}
                    for p in drawn.parameters
                ],
            },
            "sensitivity": [asdict(bar) for bar in self.bars],
            "trust": self.trust.as_json(),
        }

    def _row(self, row: int) -> dict[str, Any]:
        values = {name: float(getattr(self.found.results, name)[row]) for name in METRICS}
        shares = {
            "good_frac": self.drawn.good_frac,
            "fits_frac": self.drawn.fits_frac,
            "worst_frac": self.drawn.worst_frac,
        }
        return {
            "rank": row + 1,
            "plan": asdict(self.found.table.plan(row)),
            **self._metrics({name: value if isfinite(value) else None for name, value in values.items()}),
            **{name: float(share[row]) if row < len(share) else None for name, share in shares.items()},
        }

    def _baseline(self, base: Baseline) -> dict[str, Any]:
        if base.row is not None:
            return self._row(base.row)
        return {
            "rank": None,
            "plan": asdict(base.job.plan),
            **self._metrics({name: getattr(base.result, name) for name in METRICS}),
            **dict.fromkeys(("good_frac", "fits_frac", "worst_frac")),
        }

    def _metrics(self, values: dict[str, Any]) -> dict[str, Any]:
        return values | {
            "exposed_frac": values["exposed_comm_s"] / values["step_s"],
            "bubble_frac": values["bubble_s"] / values["step_s"],
            "headroom_bytes": self.found.cluster.gpu.hbm_bytes - values["memory_bytes"],
        }

    def print(self) -> None:
        """The answer as tables."""
        found, drawn, space = self.found, self.drawn, self.found.space
        print_heading(
            f"{space.model.name} on {space.gpus:,} x {found.cluster.gpu.name} ({found.cluster.name}), "
            f"profile {found.profile.name}, {space.global_batch:,} sequences of {space.seq_len:,} tokens a "
            "step"
        )
        large = ", ".join(f"{n:,} by {part}" for part, n in sorted(found.too_large.items(), key=lambda one: -one[1]))
        counts = (
            f"{found.plans:,} plans: {sum(found.too_large.values()):,} do not fit"
            + (f" ({large})" if large else "")
            + f", {found.bounded:,} cannot come within an eighth of the best, "
            f"{len(found):,} simulated"
        )
        sys.stdout.write(f"  {counts}\n")
        alike = [row + 1 for row in drawn.alike if row < self.top]
        print_rows(
            [
                ["recommended", plan_words(found.table.plan(drawn.recommended))],
                ["why", self.why],
                ["robustness", self._robustness()],
                *([["", f"plans {', '.join(map(str, alike))} cannot be told from it"]] if alike else []),
                ["trust", trust_words(self.trust)],
            ]
        )
        rows = {*range(self.top), drawn.recommended}
        rows |= {self.base.row} if self.base is not None and self.base.row is not None else set()
        print_heading(f"best plans by {found.objective}")
        print_rows(self._cells(sorted(rows)), right=tuple(range(11)))
        if len(self.front) > 1:
            print_heading("on the front of tokens/s, tokens/J and free memory, of the simulated plans")
            print_rows(self._cells(_spread(self.front)), right=tuple(range(11)))
        print_heading("a quarter more of it, the plan chosen anew (and a quarter less)")
        print_rows(_bar_rows(self.bars), right=(1, 3))

    def _robustness(self) -> str:
        drawn = self.drawn
        good = drawn.good_frac[drawn.recommended]
        said = f"within 2% of the best in {good:.0%} of {drawn.draws} draws of what is fitted"
        if drawn.recommended:
            said += f"; the plan that is first by the fitted values is in {drawn.good_frac[0]:.0%}"
            if drawn.fits_frac[0] < drawn.fits_frac[drawn.recommended]:
                said += f", and does not fit in {1 - drawn.fits_frac[0]:.0%}"
        return said

    def _cells(self, rows: list[int]) -> list[list[str]]:
        """Some plans, and plain FSDP below them where the search has left it out."""
        head = [
            "#",
            "tokens/s",
            "per GPU",
            "MFU",
            "exposed",
            "bubble",
            "free",
            "W/GPU",
            "tokens/J",
            "$/Mtoken",
            "robust",
            "plan",
        ]
        base = self.base
        table = [head]
        for row in rows:
            marks = [
                word
                for word, is_it in (
                    ("recommended", row == self.drawn.recommended),
                    ("plain FSDP", base is not None and row == base.row),
                )
                if is_it
            ]
            words = plan_words(self.found.table.plan(row)) + (f"  <- {', '.join(marks)}" if marks else "")
            table.append([*_numbers(self._row(row)), words])
        if base is not None and base.row is None:
            table.append([*_numbers(self._baseline(base)), f"{plan_words(base.job.plan)}  <- plain FSDP"])
        return table


def _numbers(row: dict[str, Any]) -> list[str]:
    price, good = row["usd_per_mtoken"], row["good_frac"]
    return [
        "" if row["rank"] is None else f"{row['rank']:,}",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['tokens_per_s_per_gpu']:,.0f}",
        f"{row['mfu_frac']:.1%}",
        f"{row['exposed_frac']:.1%}",
        f"{row['bubble_frac']:.1%}",
        show(row["headroom_bytes"], "bytes"),
        f"{row['power_w_per_gpu']:.0f}",
        f"{row['tokens_per_j']:.2f}",
        "?" if price is None else f"{price:.3f}",
        "" if good is None else f"{good:.0%}",
    ]


def _spread(front: list[int]) -> list[int]:
    """A few of the front, from its fastest end to its roomiest."""
    if len(front) <= SHOWN_FRONT:
        return front
    step = (len(front) - 1) / (SHOWN_FRONT - 1)
    return list(dict.fromkeys(front[round(i * step)] for i in range(SHOWN_FRONT)))


def _bar_rows(bars: list[Bar]) -> list[list[str]]:
    most = max((abs(bar.better_frac) for bar in bars), default=0.0) or 1.0
    return [
        [
            bar.title,
            f"{bar.better_frac:+.1%}",
            "#" * round(BAR_WIDTH * max(0.0, bar.better_frac) / most),
            f"({bar.worse_frac:+.1%})",
        ]
        for bar in bars
    ]
