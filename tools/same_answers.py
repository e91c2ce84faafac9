"""``same_answers.py write FILE`` records answers to random jobs; ``check FILE`` asks again and compares every digit.

A change of structure must not change an answer. Record with the old source on ``PYTHONPATH``, check with the new one.
The jobs follow from ``--seed``: models, clusters, profiles and plans of the catalogue, and the refusals that some meet.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import knee

JOBS, SEARCHES = 200, 12
PROFILES = ("eager", "torchtitan", "megatron", "paper", "knee")
SKIPPED = {"assumptions", "source", "trust"}
"""Keys with sentences and paths: wording may change, numbers may not."""


def names(kind: str) -> list[str]:
    """Names of one kind of catalogue entry."""
    return sorted(knee.catalog_entries().to_dict()[f"{kind}s"])


def random_jobs(seed: int) -> Iterator[dict[str, Any]]:
    """Arguments of ``knee.simulate`` without end; about half of them are legal."""
    draw = random.Random(seed)
    models, clusters = names("model"), names("cluster")
    while True:
        gpus = 2 ** draw.randint(3, 13)
        job: dict[str, Any] = {"model": draw.choice(models), "cluster": draw.choice(clusters), "gpus": gpus}
        job |= {"tp": draw.choice([1, 1, 2, 4, 8]), "pp": draw.choice([1, 1, 1, 2, 4, 8])}
        job |= {"cp": draw.choice([1, 1, 1, 2]), "sharding": draw.choice(["fsdp", "fsdp_no_reshard", "zero1"])}
        job |= {"micro_batch": draw.choice([1, 1, 2]), "global_batch": gpus * draw.choice([1, 2, 4])}
        job |= {"recompute": draw.choice(["none", "attention", "ops", "full"]), "profile": draw.choice(PROFILES)}
        if job["pp"] > 1:
            job |= {"schedule": draw.choice(["1f1b", "gpipe", "zero_bubble", "dualpipe"])}
        if draw.random() < 0.3:
            job |= {"precision": "fp8"}
        if draw.random() < 0.3:
            job |= {"ep": draw.choice([2, 4, 8]), "dispatcher": draw.choice(["alltoall", "deepep"])}
        if draw.random() < 0.2:
            job |= {"collectives": "hierarchical"}
        yield job


def plain(value: Any) -> Any:
    """Data without sentences, with floats as their exact text."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in SKIPPED}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.hex() if isinstance(value, float) else value


def holds(new: Any, old: Any) -> bool:
    """Whether an answer has everything that the old one had, to the last digit; new keys may stand beside."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(new[key], part) for key, part in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


def ask(name: str, arguments: dict[str, Any]) -> Any:
    """The answer of a function of knee, or the code and field of its refusal, as it is read back from JSON."""
    try:
        return json.loads(json.dumps(plain(getattr(knee, name)(**arguments).to_dict())))
    except knee.KneeError as error:
        return {"refused": [error.code, error.field]}


def new_answers(seed: int) -> list[Any]:
    """Questions with their answers: ``JOBS`` steps, the refusals met on the way, searches, curves and a budget."""
    found, steps = [], []
    for job in random_jobs(seed):
        found.append(["simulate", job, ask("simulate", job)])
        if "refused" not in found[-1][2]:
            steps.append(job)
        if len(steps) == JOBS:
            break
    asked = []
    for job in steps[:SEARCHES]:
        place = {key: job[key] for key in ("model", "cluster", "profile")}
        asked.append(("plan", place | {key: job[key] for key in ("gpus", "global_batch")}))
        asked.append(("scale", place | {"gpus": "8..512", "local_batch": 1}))
    asked.append(("budget", {"cluster": "dgx-h100", "gpus": 512, "days": 30}))
    return found + [[name, arguments, ask(name, arguments)] for name, arguments in asked]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=36)
    given = parser.parse_args()
    if given.what == "write":
        found = new_answers(given.seed)
        given.file.write_text(json.dumps(found))
        print(f"{len(found)} answers, {sum('refused' in answer for _, _, answer in found)} of them refusals")
        return 0
    before, changed = json.loads(given.file.read_text()), 0
    for name, arguments, old in before:
        new = ask(name, arguments)
        if not holds(new, old):
            changed += 1
            print(f"{name} {arguments}: {[key for key in old if not holds(new.get(key), old[key])]}")
    print(f"{len(before) - changed} of {len(before)} answers are equal to the last digit")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
