"""What each claim is worth, as it was found and is carried: how often it holds by chance, and on what it hangs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from statistics import mean, median

from pydantic import TypeAdapter

from knee.evidence.alternatives import Flip
from knee.evidence.claim_draws import Draws
from knee.specs.catalog import ROOT, read_toml

FILE = ROOT / "claims" / "evidence.toml"
MADE_BY = "python tools/claim_evidence.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBaseline:
    """Independent claims that a profile drawn at random reproduces."""

    draws: int
    seed: int
    independent: int
    """Claims that are counted: independent ones that can fail."""
    reproduced_mean: float
    reproduced_median: float
    reproduced_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    """What is carried."""

    baseline: RandomBaseline
    held_frac: Mapping[str, float]
    """Claim -> share of random profiles under which it holds, of those that depend on a profile."""
    flip: tuple[Flip, ...]

    @property
    def command(self) -> str:
        """What finds it again."""
        return f"{MADE_BY} --draws {self.baseline.draws} --seed {self.baseline.seed}"


@cache
def carried_evidence() -> ClaimEvidence:
    """The file that knee carries."""
    return TypeAdapter(ClaimEvidence).validate_python(read_toml(FILE))


def baseline_of(found: Draws) -> RandomBaseline:
    """The number of claims that random profiles reproduce, in short."""
    return RandomBaseline(
        draws=found.draws,
        seed=found.seed,
        independent=found.independent,
        reproduced_mean=round(mean(found.reproduced), 2),
        reproduced_median=float(median(found.reproduced)),
        reproduced_most=max(found.reproduced),
    )


def as_toml(baseline: RandomBaseline, held_frac: Mapping[str, float], flips: Iterable[Flip]) -> str:
    """The file's text, a line for each study under each alternative."""
    lines = [f"# Made by {MADE_BY} --draws {baseline.draws} --seed {baseline.seed}", "flip = ["]
    lines += ["    { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in asdict(flip).items()) + " }," for flip in flips]
    lines += ["]", "", "[baseline]", *(f"{key} = {json.dumps(value)}" for key, value in asdict(baseline).items())]
    lines += ["", "[held_frac]", *(f"{id} = {round(share, 4)}" for id, share in held_frac.items())]
    return "\n".join(lines) + "\n"
