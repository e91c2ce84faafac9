"""Error on a source that was never seen, without calibration and with eight of its runs: ``knee calibrate``'s own fit.

Each source of the carried runs with at least 30 of them is predicted by the profile that nothing of it was fitted to
(``catalog/validation/left_out.toml``). Eight runs are drawn, calibrated on, and the others are predicted again; priors
come from the other sources. Where the fit is not taken, the predictions are those without calibration.

    python tools/few_shot.py [SOURCE ...] [--draws 5] [--jobs 1]
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from knee.base.arrays import Floats
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS
from knee.trust.profile_fit.calibration import OwnProfile, fit_profile
from knee.trust.profile_fit.stack_fit import stack_priors
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.published_runs import PublishedRun
from knee.trust.validation.run_errors import Ask, cases_of, predicted
from knee.trust.validation.run_to_job import catalog_profile, job_of, left_out_profiles, unseen_job_of
from knee.trust.validation.user_records import Pair, UserRuns

RUNS = 8
FEWEST = 30
JUDGED = 30
"""Of the other runs, drawn too: all of them would take minutes."""
WORSE = 5e-4
"""A median that is larger by less is the same in print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One draw of a source."""

    source: str
    number: int
    before: float
    after: float
    taken: bool
    covered: float
    """Share of the judged runs within the error that the fit states, NaN where it states none."""
    stated: float
    values: dict[str, float]
    seconds: float


def sources() -> dict[str, list[PublishedRun]]:
    """Those with enough runs that ended and of which knee can be asked."""
    found: dict[str, list[PublishedRun]] = {}
    for run in carried_runs().runs:
        if run.status == "ok" and run.tokens_per_s_per_gpu:
            found.setdefault(run.setting.source, []).append(run)
    return {source: runs for source, runs in found.items() if len(runs) >= FEWEST}


def draw(task: tuple[str, int]) -> Draw:
    """Calibrate on eight runs and judge others."""
    source, number = task
    start = perf_counter()
    every = sources()[source]
    runs = random.Random(100 + number).sample(every, min(RUNS + JUDGED, len(every)))
    own = pairs_of(runs[:RUNS], unseen_job_of)
    base = base_of(source, own)
    shared = pairs_of(runs[:RUNS], lambda setting: job_of(setting, profile=base))
    found = fit_profile(as_user(shared), stack_priors(PARAMETERS, base, without=source), own=as_user(own))
    before = errors(runs[RUNS:], unseen_job_of)
    values: dict[str, Any] = {path.removeprefix("profile."): value for path, value in found.values.items()}
    mine = replace(base, **values)
    taken = speed_taken(found)
    after = errors(runs[RUNS:], lambda setting: job_of(setting, profile=mine)) if taken else before
    stated = found.held_out.error_frac if found.held_out is not None and taken else None
    return Draw(
        source=source,
        number=number,
        before=float(np.median(before)),
        after=float(np.median(after)),
        taken=taken,
        covered=float("nan") if stated is None else float(np.mean(after <= stated)),
        stated=float("nan") if stated is None else stated,
        values=values,
        seconds=perf_counter() - start,
    )


def speed_taken(found: OwnProfile) -> bool:
    """Whether a value that changes times was taken."""
    return bool(set(found.values) - {"profile.context_bytes", "profile.allocator_frac"})


def base_of(source: str, pairs: Sequence[Pair]) -> Profile:
    """The profile that most runs are of, as ``knee calibrate`` chooses it, without what single rows state."""
    name = Counter(asked.job.profile.name for _, asked in pairs).most_common(1)[0][0]
    stand_ins = left_out_profiles().get(source, {}).values()
    return next((profile for profile in stand_ins if profile.name == name), None) or catalog_profile(name)


def pairs_of(runs: Sequence[PublishedRun], ask: Ask) -> list[Pair]:
    """Runs with their jobs."""
    return [pair for case in cases_of(runs, ask)[0] for pair in zip(case.runs, case.asked, strict=True)]


def as_user(pairs: Sequence[Pair]) -> UserRuns:
    """As if a user's file had them."""
    return UserRuns(
        pairs=tuple(pairs),
        rows=len(pairs),
        rows_used=len(pairs),
        skipped={},
        notes={},
        ignored=(),
        simulated=0,
        probed=False,
        differ=1.0,
    )


def errors(runs: Sequence[PublishedRun], ask: Ask) -> Floats:
    """Sizes of the errors of tokens/s."""
    cases, _ = cases_of(runs, ask)
    measured = np.array([run.tokens_per_s_per_gpu for case in cases for run in case.runs], dtype=np.float64)
    found = np.abs(predicted(cases).tokens_per_s_per_gpu / measured - 1.0)
    return found[np.isfinite(found)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    tasks = [(source, number) for source in given.sources or sources() for number in range(given.draws)]
    print(f"{'source':28}{'draw':>5}{'without':>9}{'8 runs':>9}{'stated':>8}{'within':>8}{'s':>6}  values")
    found: list[Draw] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for one in pool.map(draw, tasks):
            found.append(one)
            values = ", ".join(f"{name} {value:.3g}" for name, value in one.values.items()) if one.taken else "kept"
            cells = f"{one.before:9.1%}{one.after:9.1%}{one.stated:8.0%}{one.covered:8.0%}{one.seconds:6.1f}"
            print(f"{one.source:28}{one.number:5}{cells}  {values}", flush=True)
    print()
    for source in dict.fromkeys(one.source for one in found):
        mine = [one for one in found if one.source == source]
        print(f"{source:33}{np.median([o.before for o in mine]):9.1%}{np.median([o.after for o in mine]):9.1%}")
    print(f"{'median over all draws':33}{np.median([o.before for o in found]):9.1%}", end="")
    print(f"{np.median([o.after for o in found]):9.1%}")
    worse = [one for one in found if one.after > one.before + WORSE]
    print(f"worse than without: {len(worse)} of {len(found)} draws", end="")
    print(f", by at most {max(o.after - o.before for o in worse):.1%}" if worse else "")
    covered = [one.covered for one in found if np.isfinite(one.covered)]
    print(f"judged runs within the stated error: {np.mean(covered):.0%}" if covered else "")


if __name__ == "__main__":
    main()
