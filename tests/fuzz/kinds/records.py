"""Records of simulated and measured runs, as `knee compare`, `report`, `validate` and `calibrate` take them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz import mutate
from fuzz.case import Case, Kind
from fuzz.documents import encoded, json_text

DATA = Path(__file__).parents[3] / "data" / "h200"
"""What was measured on a GPU, and lies in the repository."""
LONG = ("losses", "grad_norms", "step_times_s")


@cache
def measured() -> tuple[dict[str, Any], ...]:
    """A record that was measured, one that ended out of memory; lists shortened."""
    paths = (DATA / "train" / "llama-1b-batch1-compiled.json", *sorted(DATA.glob("sweep/runs/0004*/record.json")))
    return tuple(_short(json.loads(path.read_text(encoding="utf-8"))) for path in paths)


@cache
def simulated() -> tuple[dict[str, Any], ...]:
    """What ``knee simulate --json`` prints."""
    from click.testing import CliRunner

    from knee.commands.main import main

    words = [
        "simulate",
        "llama-tiny",
        "--cluster",
        "dgx-h100",
        "--gpus",
        "8",
        "--seq-len",
        "64",
        "--json",
        "--local-batch",
    ]
    return tuple(json.loads(CliRunner().invoke(main, [*words, batch]).stdout) for batch in ("1", "2"))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value[:3]] if isinstance(value, list) else value


def record(rng: Random) -> Any:
    """One, changed or not."""
    tree = mutate.copied(rng.choice(measured() if rng.random() < 0.4 else simulated()))
    return mutate.change_tree(rng, tree) if rng.random() < 0.7 else tree


def content(rng: Random) -> bytes:
    """A file of records: one, a list, or one after another."""
    chance = rng.random()
    if chance < 0.8:
        return encoded(rng, json_text(record(rng), indent=rng.choice((None, 1))))
    if chance < 0.9:
        return encoded(rng, json_text([record(rng) for _ in range(rng.randrange(3))]))
    return encoded(rng, "\n".join(json_text(record(rng)) for _ in range(2)))


def compare(rng: Random) -> Case:
    """Side by side."""
    files = {"a.json": content(rng), "b/record.json": content(rng)}
    words = ("compare", *rng.choice((("a.json", "b"), ("b", "a.json"), ("a.json", "a.json", "b/record.json"))))
    return Case(words=(*words, *(("--json",) if rng.random() < 0.6 else ())), files=files)


def report(rng: Random) -> Case:
    """On a page: seldom drawn, because that takes long."""
    files = {"r/a.json": content(rng), "r/b/record.json": content(rng)}
    drawn = rng.random() < 0.01
    words = ["report", "r", *(["-o", "page.html"] if drawn else ["--json"])]
    words += ["--by", rng.choice(("profile", "model", "gpus", "x", ""))] if rng.random() < 0.2 else []
    words += ["--simulate"] if rng.random() < 0.05 else []
    return Case(words=tuple(words), files=files)


def fitted(rng: Random) -> Case:
    """As runs to be predicted, or fitted on."""
    files = {"r/a/record.json": content(rng)}
    chance = rng.random()
    if chance < 0.75:
        words: tuple[str, ...] = ("validate", rng.choice(("r", "r/a", "r/a/record.json")), "--json")
    elif chance < 0.78:
        words = ("calibrate", "r", "--json")
    else:
        words = ("study", "run", "fig4", "--no-page", "--json", "--out", "o", "--records", "r", "--set", "gpus=x")
    return Case(words=words, files=files)


KINDS = (
    Kind(name="records-compare", weight=9, make=compare),
    Kind(name="records-report", weight=5, make=report),
    Kind(name="records-fitted", weight=0.3, make=fitted),
)
