"""Judge every claim of the paper under random profiles and under other assumptions; write what the page shows of it.

    python tools/claim_evidence.py --draws 300 --seed 1 [--jobs N]       three seconds a draw
    python tools/claim_evidence.py --draws 0                  only the assumptions anew, in a minute

Random profiles do not depend on what was fitted, so that draws need to be repeated when the engine or a test changes.
Verdicts under other assumptions do, and are repeated after each fit.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import repeat
from math import exp, log
from statistics import mean, median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from knee.base.errors import SpecError
from knee.base.files import write_text
from knee.commands.study.claims import Claim, Verdict, judge
from knee.commands.study.quantities import NOISE, Row
from knee.commands.study.questions import Question, StudyPoint, all_points, jobs_of, together
from knee.commands.study.rows import step_row
from knee.commands.study.run_study import sheet_rows
from knee.commands.study.study_file import BATCHES, Many, Study, StudyGrid, load_study, study_names
from knee.commands.study.summary_section import CANNOT_FAIL_FRAC, FILE, MADE_BY, Flip, RandomBaseline, carried_evidence
from knee.engine.one_job import comm_loads
from knee.engine.simulator import EvaluatedStep, Results, evaluate
from knee.specs.catalog import ROOT, read_toml
from knee.specs.defaults import DEFAULT_CONVENTION
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter, applied
from knee.trust.trust import asked_of

# Studies under many profiles: the plans of all questions in a few tables, made once and simulated anew each time.

Specs = tuple[Cluster, Profile]
Change = Callable[[Cluster, Profile], Specs]
BY_COLLECTIVE = ("all_gather_s", "reduce_scatter_s", "gather_bytes", "exchange_s", "exchange_frac", "fsdp_ranks")
"""Columns that need the loads of each collective, which take a while to list."""


def unchanged(cluster: Cluster, profile: Profile) -> Specs:
    """As the catalogue has them."""
    return cluster, profile


class LeanRuns:
    """The points of some studies, ready to be simulated under any profile."""

    def __init__(self, studies: Sequence[Study]) -> None:
        self.studies = tuple(studies)
        self._points = [point for study in studies for point in dict.fromkeys(all_points(study))]
        self._groups = list(together(_jobs(self._points)))
        self._sheets = {study.name: list(sheet_rows(study)) for study in studies}
        self._detailed = {study.name for study in studies if _needs_loads(study)}

    def verdicts(
        self, change: Change = unchanged, *, convention: str = DEFAULT_CONVENTION, bubbles: bool = True
    ) -> dict[str, Verdict]:
        """Every claim of the studies under a changed profile; ``bubbles``: waiting for a stage counts as exposed."""
        records = self._records(change, convention)
        rows = {name: list[Row](sheets) for name, sheets in self._sheets.items()}
        for point in self._points:
            if point.question in records:
                record = records[point.question] | ({} if bubbles else {"bubble_s": 0.0})
                rows[point.study].append(step_row(record, study=point.study, series=point.series))
        return {v.id: v for study in self.studies for v in judge(study.claim, rows, study.name)}

    def _records(self, change: Change, convention: str) -> dict[Question, dict[str, Any]]:
        """What the plan that each question means takes."""
        found = {}
        detailed = {point.question for point in self._points if point.study in self._detailed}
        for group in self._groups:
            model, cluster, profile = group.specs
            step = evaluate(model, *change(cluster, profile), group.table, convention=convention)
            for question, row in group.meant(step.results).items():
                if not isinstance(row, SpecError):
                    found[question] = _record(group.jobs[row], step, row, loads=question in detailed)
        return found


def _jobs(points: Iterable[StudyPoint]) -> dict[Question, list[Job]]:
    """Of the points that can be."""
    found = {}
    for question in dict.fromkeys(point.question for point in points):
        with suppress(SpecError):
            found[question] = jobs_of(question)
    return found


def _needs_loads(study: Study) -> bool:
    metrics = {getattr(getattr(t, "of", t), "metric", "") for claim in study.claim for t in claim.test}
    return bool(metrics & set(BY_COLLECTIVE))


def _record(job: Job, step: EvaluatedStep, row: int, *, loads: bool) -> dict[str, Any]:
    answer = {f.name: getattr(step.results, f.name)[row].item() for f in fields(Results)}
    by_collective = {"comm_loads": [asdict(load) for load in comm_loads(step, row)]} if loads else {}
    return asked_of(job) | {"kind": "simulated", "compute_load_s": answer["compute_s"], **answer, **by_collective}


# Claims under profiles drawn at random: in what share of them each holds, and how many a random profile reproduces. A
# claim that holds whatever the profile says nothing for the one that was fitted.

DRAWN = (
    *PARAMETERS,
    Parameter(path="gpu.comm_w", low=20.0, high=600.0, spread=1.0, meaning="draw of communication beside compute"),
)
"""The profile's parameters, and the draw that tools/fit_paper.py fits with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What random profiles reproduce."""

    draws: int
    seed: int
    held_frac: dict[str, float]
    """Claim -> share of the draws in which it holds; data sheets and idle links have no profile, and are not here."""
    reproduced: tuple[int, ...]
    """Of each draw: independent claims that hold."""
    independent: int
    """Claims that are counted there: independent ones that depend on the profile."""


def draw(random: np.random.Generator) -> Change:
    """A profile: each parameter from its whole range, evenly, by its logarithm where it is no share."""
    values = {}
    for parameter in DRAWN:
        at = float(random.random())
        low, high = parameter.low, parameter.high
        even = low + at * (high - low)
        values[parameter.path] = even if parameter.is_share else exp(log(low) + at * (log(high) - log(low)))

    def change(cluster: Cluster, profile: Profile) -> Specs:
        return applied(cluster, profile, values)

    return change


def held_in_draw(runs: LeanRuns, seed: int, number: int) -> frozenset[str]:
    """Claims that hold under one random profile; each draw has its own stream, so that they can be made anywhere."""
    with np.errstate(all="ignore"):
        verdicts = runs.verdicts(draw(np.random.default_rng((seed, number))))
    return frozenset(id for id, verdict in verdicts.items() if verdict.verdict == "reproduced")


def draw_claims(runs: LeanRuns, *, draws: int, seed: int, passed: Sequence[frozenset[str]] | None = None) -> Draws:
    """Judge every claim under so many random profiles; ``passed`` has what holds in each, if that is known."""
    passed = passed if passed is not None else [held_in_draw(runs, seed, i) for i in range(draws)]
    held = Counter(id for one in passed for id in one)
    claims = [claim for study in runs.studies if study.grid for claim in study.claim]
    held_frac = {claim.id: held[claim.id] / draws for claim in claims}
    counted = evidence(claims, held_frac)
    return Draws(
        draws=draws,
        seed=seed,
        held_frac=held_frac,
        reproduced=tuple(len(one & counted) for one in passed),
        independent=len(counted),
    )


def evidence(claims: Sequence[Claim], held_frac: dict[str, float]) -> set[str]:
    """Claims of these that are independent and can fail."""
    return {c.id for c in claims if c.role == "independent" and held_frac[c.id] < CANNOT_FAIL_FRAC}


# What the paper left open, assumed otherwise: a study with that change, and the verdicts that flip.

ALTERNATIVES_FILE = ROOT / "claims" / "alternatives.toml"
MARGINS = ("margin_frac", "noise_frac")
"""By how much an ordering or a trend must show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One assumption, and what would have been as plausible."""

    assumed: str
    instead: str
    studies: tuple[str, ...]
    plan: Mapping[str, Many] = field(default_factory=dict)
    """Laid over the plans of every grid."""
    grid: Mapping[str, Many] = field(default_factory=dict)
    """Laid over every grid."""
    set: Mapping[str, str] = field(default_factory=dict)
    """As ``--set``."""
    convention: str = DEFAULT_CONVENTION
    """Of MFU."""
    bubbles: bool = True
    """Waiting for a pipeline stage counts as exposed communication."""
    beyond: float | None = None
    """By how much orderings and trends must show."""
    test: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Claim -> what its tests have instead."""

    def applied(self, study: Study) -> Study:
        """The study with this assumption."""
        grids = tuple(self._grid(grid) for grid in study.grid)
        return replace(study, grid=grids, claim=tuple(self._claim(claim) for claim in study.claim))

    def _grid(self, grid: StudyGrid) -> StudyGrid:
        laid: dict[str, Any] = dict(self.grid)
        if BATCHES & laid.keys():
            laid = dict.fromkeys(BATCHES) | laid
        return replace(grid, plan={**grid.plan, **self.plan}, set={**grid.set, **self.set}, **laid)

    def _claim(self, claim: Claim) -> Claim:
        given = self.test.get(claim.id, {})
        return replace(claim, test=tuple(_changed(self._loosened(test), given) for test in claim.test))

    def _loosened(self, test: Any) -> Any:
        """Another margin where it is the one of all orderings; what is constant has none."""
        names = {f.name for f in fields(test) if f.name in MARGINS and getattr(test, f.name) == NOISE}
        if self.beyond is None or not names or getattr(test, "goes", "") == "constant":
            return test
        return replace(test, **dict.fromkeys(names, self.beyond))


def _changed(part: Any, given: Mapping[str, Any]) -> Any:
    """A test, or the value that it is about, with some of its fields changed."""
    inner = {name: _changed(getattr(part, name), value) for name, value in given.items() if name == "of"}
    return replace(part, **{name: _tuples(value) for name, value in given.items()} | inner)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


@cache
def alternatives() -> tuple[Alternative, ...]:
    """All that are tried."""
    return TypeAdapter(tuple[Alternative, ...]).validate_python(read_toml(ALTERNATIVES_FILE)["alternative"])


def flips(of: Mapping[str, Verdict]) -> Iterator[Flip]:
    """Every study under every alternative to one of its assumptions, against the verdicts as they are."""
    for alternative in alternatives():
        studies = [alternative.applied(load_study(name)) for name in alternative.studies]
        named = {study.name for study in studies}
        needed = dict.fromkeys(name for study in studies for name in study.needs if name not in named)
        found = LeanRuns([*studies, *map(load_study, needed)]).verdicts(
            convention=alternative.convention, bubbles=alternative.bubbles
        )
        for study in studies:
            flipped = [c.id for c in study.claim if _holds(found[c.id]) is not _holds(of[c.id])]
            yield Flip(
                study=study.name,
                assumed=alternative.assumed,
                instead=alternative.instead,
                holds=tuple(id for id in flipped if not _holds(of[id])),
                fails=tuple(id for id in flipped if _holds(of[id])),
            )


def _holds(verdict: Verdict) -> bool:
    return verdict.verdict == "reproduced"


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


@cache
def paper_runs() -> LeanRuns:
    """The paper's studies, loaded once in each process."""
    return LeanRuns([load_study(name) for name in study_names("paper")])


def one_draw(seed: int, number: int) -> frozenset[str]:
    """For a pool of processes."""
    return held_in_draw(paper_runs(), seed, number)


def main() -> None:
    """Print what cannot fail and the baseline; write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    runs = paper_runs()
    if asked.draws > 0:
        with ProcessPoolExecutor(asked.jobs) as pool:
            passed = list(pool.map(one_draw, repeat(asked.seed), range(asked.draws)))
        found = draw_claims(runs, draws=asked.draws, seed=asked.seed, passed=passed)
        baseline, held_frac = baseline_of(found), found.held_frac
    else:
        carried = carried_evidence()
        baseline, held_frac = carried.baseline, dict(carried.held_frac)
    write_text(FILE, as_toml(baseline, held_frac, flips(runs.verdicts())))
    claims = {claim.id: claim for study in runs.studies for claim in study.claim}
    for id, share in held_frac.items():
        if share >= CANNOT_FAIL_FRAC:
            print(f"{id} holds in {share:.1%} of random profiles ({claims[id].role}): {claims[id].says}")
    print(baseline)


if __name__ == "__main__":
    main()
