"""Judge every claim of the paper under random profiles and under other assumptions; write what the page shows of it.

    python tools/claim_evidence.py --draws 300 --seed 1 [--jobs N]       three seconds a draw
    python tools/claim_evidence.py --draws 0                  only the assumptions anew, in a minute

Random profiles do not depend on what was fitted, so that draws need to be repeated when the engine or a test changes.
Verdicts under other assumptions do, and are repeated after each fit.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import repeat

from knee.base.files import write_text
from knee.commands.study.evidence import (
    CANNOT_FAIL_FRAC,
    FILE,
    LeanRuns,
    as_toml,
    baseline_of,
    carried_evidence,
    draw_claims,
    flips,
    held_in_draw,
)
from knee.commands.study.study_file import load_study, study_names


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
