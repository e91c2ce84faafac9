"""Readings of probes: replayed, made into a cluster file, or fitted on."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutate
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text

DATA = Path(__file__).parents[3] / "data"
FILES = {
    "kernels": DATA / "h200" / "kernels.jsonl",
    "power": DATA / "h200" / "power.jsonl",
    "steps": DATA / "h200" / "steps.jsonl",
    "collectives": DATA / "gloo" / "collectives-2.jsonl",
}


@cache
def lines(probe: str) -> tuple[Any, ...]:
    """A file's first line, and a few of the others."""
    found = [json.loads(line) for line in FILES[probe].read_text(encoding="utf-8").splitlines()]
    rest = found[1:]
    return (found[0], *rest[:: max(1, len(rest) // 12)])


def readings(rng: Random) -> Case:
    """One probe's readings, by that probe or another."""
    probe = rng.choice(tuple(FILES))
    tree = mutate.copied(list(lines(probe)))
    if rng.random() < 0.93:
        mutate.change_tree(rng, tree, rng.choice((1, 1, 2, 4)))
    data = encoded(rng, "\n".join(map(json_text, tree)) + rng.choice(("\n", "", "\n\n")), damage=0.25)
    if probe == "steps" and rng.random() < 0.2:
        return Case(words=("validate", "r.jsonl", "--json"), files={"r.jsonl": data})
    asked = probe if rng.random() < 0.95 else rng.choice(tuple(FILES))
    words = ["probe", asked, "--replay", "r.jsonl", *(["--json"] if rng.random() < 0.7 else [])]
    words += ["--out", "c.toml"] if rng.random() < 0.3 else []
    words += ["--base", rng.choice(("dgx-h200", "cpu", "x"))] if rng.random() < 0.3 else []
    return Case(words=tuple(words), files={"r.jsonl": data})


KINDS = (Kind(name="readings", weight=0.5, make=readings),)
