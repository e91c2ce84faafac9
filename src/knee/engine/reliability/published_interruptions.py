"""Published training runs and their interruptions, beside what the default failure rates predict for them."""

from __future__ import annotations

from dataclasses import dataclass

from knee.engine.reliability.defaults import RATE_ENDS, default_of
from knee.engine.reliability.goodput import goodput_of
from knee.engine.reliability.whole_run import poisson_range
from knee.specs.catalog import ROOT, read_toml
from knee.specs.load import load_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedRun:
    """One run of ``catalog/interrupted_runs.toml``."""

    name: str
    gpus: int
    days: float
    least: int
    """Published count, or the lower end of what was published."""
    most: int
    predicted: float
    low: int
    """Of the predicted count: Poisson's 95% at the lowest published failure rate of a cluster, and at the highest; at
    the rate itself for the run that it comes from."""
    high: int
    effective_frac: float | None
    """Published: more than this share of the time was effective."""
    goodput_frac: float
    fitted: bool
    """Whether the default rates come from this run."""
    assumed: str
    source: str

    @property
    def agrees(self) -> bool:
        """Whether published and predicted counts overlap, and the effective time is as published."""
        long_enough = self.effective_frac is None or self.goodput_frac > self.effective_frac
        return self.low <= self.most and self.least <= self.high and long_enough


def interrupted_runs() -> list[InterruptedRun]:
    """All runs, with the conditions of their cluster."""
    ends = [default_of("run", name)[0] for name in RATE_ENDS]
    found = []
    for name, raw in read_toml(ROOT / "interrupted_runs.toml").items():
        goodput = goodput_of(float(raw["params"]), load_cluster(raw["cluster"]).spec, int(raw["gpus"]))
        per_day = goodput.interruptions_per_day
        count = sum(per_day[cause] for cause in raw.get("causes", per_day)) * raw["days"]
        low, high = (count, count) if raw["fitted"] else (count * end for end in ends)
        found.append(
            InterruptedRun(
                name=name,
                gpus=raw["gpus"],
                days=raw["days"],
                least=raw["least"],
                most=raw["most"],
                predicted=count,
                low=poisson_range(low)[0],
                high=poisson_range(high)[1],
                effective_frac=raw.get("effective_frac"),
                goodput_frac=goodput.goodput_frac,
                fitted=raw["fitted"],
                assumed=raw["assumed"],
                source=raw["source"],
            )
        )
    return found
