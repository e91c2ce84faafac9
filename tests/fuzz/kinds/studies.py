"""TOML files of studies, of a sweep's grids, and of sites."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from fuzz import mutate
from fuzz.case import Case, Kind
from fuzz.documents import encoded, toml_text
from knee.specs.catalog import ROOT

COMMON = {"model": "llama-tiny", "cluster": "dgx-h100", "profile": "eager", "seq_len": 64}
STUDY: dict[str, Any] = {
    "title": "t",
    "kind": "beyond",
    "question": "q?",
    "finding": "It is {speed} with {n}.",
    "assumptions": ["a"],
    "common": COMMON,
    "grid": [
        {"series": "tp {tp}", "gpus": [8, 16], "local_batch": 1, "plan": {"tp": [1, 2]}},
        {"series": "b", "gpus": 8, "global_batch": [8], "set": {"fabric.nic_bytes_per_s": ["200 Gbit/s"]}},
    ],
    "value": {
        "speed": {"metric": "tokens_per_s", "at": {"series": "tp 1", "gpus": 8}, "form": ".0f"},
        "n": {"metric": "mfu_frac", "how": "ratio", "at": {"series": "tp 1", "gpus": 16}, "base": {"series": "b"}},
    },
    "draw": [{"title": "d", "mark": "line", "x": "gpus", "y": "tokens_per_s"}],
    "claim": [],
}
GRIDS: tuple[dict[str, Any], ...] = (
    {
        "model": "llama-tiny",
        "cluster": "cpu",
        "profile": "eager",
        "gpus": [1, 2],
        "local_batch": 2,
        "seq_len": 32,
        "plan": {"tp": [1, 2]},
    },
    {"common": COMMON | {"cluster": "cpu"}, "grid": [{"series": "a", "gpus": 2, "global_batch": 4}]},
    {
        "model": ["llama-tiny"],
        "cluster": "dgx-h100",
        "profile": "knee",
        "gpus": 8,
        "global_batch": 16,
        "seq_len": 64,
        "plan": {"pp": 2, "schedule": ["1f1b", "gpipe"]},
    },
)
SITE: dict[str, Any] = {
    "partition": "gpu",
    "account": "me",
    "qos": "high",
    "time": "1:30:00",
    "exclusive": True,
    "exclude": "n1",
    "cpus_per_node": 4,
    "gpus_per_node": 2,
    "sbatch": ["--reservation=weekend"],
    "gres": False,
    "max_queued": 5,
    "max_running": 2,
    "hosts": ["a", "b@10.0.0.1"],
    "via": "ssh {host}",
    "env": {"A": "1"},
    "container": "image.sif",
    "container_runtime": "apptainer",
    "python": "python3",
}
ONE = {"model": "llama-tiny", "cluster": "cpu", "profile": "eager", "gpus": 2, "global_batch": 4, "seq_len": 32}


@cache
def catalogue() -> tuple[dict[str, Any], ...]:
    """Studies that knee carries: their claims and charts are the richest there are."""
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "studies").glob("*.toml")))


@cache
def kept() -> bytes:
    """How knee does on the published runs, which every study would work out anew."""
    from knee.commands.study.record_store import cached_fidelity

    with TemporaryDirectory() as folder:
        cached_fidelity(Path(folder))
        return (Path(folder) / "fidelity.json").read_bytes()


def study(rng: Random) -> Case:
    """A study to be shown, or run on a few points."""
    if rng.random() < 0.6:
        tree = mutate.copied(rng.choice(catalogue()))
        words: tuple[str, ...] = ("study", "show", "./s.toml")
    else:
        tree = mutate.copied(STUDY)
        tree["claim"] = [mutate.copied(rng.choice(_claims())) for _ in range(rng.randrange(3))]
        words = (
            ("study", "show", "./s.toml")
            if rng.random() < 0.8
            else ("study", "run", "./s.toml", "--no-page", "--out", "o")
        )
    if rng.random() < 0.95:
        mutate.change_tree(rng, tree, rng.choice((1, 1, 2, 4)))
    words += ("--json",) if rng.random() < 0.7 else ()
    files = {"s.toml": encoded(rng, toml_text(tree))}
    return Case(words=words, files=files | ({"o/.kept/fidelity.json": kept()} if "run" in words else {}))


@cache
def _claims() -> tuple[dict[str, Any], ...]:
    return tuple(claim for study in catalogue() for claim in study.get("claim", ()))


def grid(rng: Random) -> Case:
    """A sweep's grid, checked and estimated and not started."""
    tree = mutate.copied(rng.choice(GRIDS))
    if rng.random() < 0.95:
        mutate.change_tree(rng, tree)
    words = ("sweep", "run", "./g.toml", "--out", "o", "--dry-run", *(("--json",) if rng.random() < 0.6 else ()))
    return Case(words=words, files={"g.toml": encoded(rng, toml_text(tree))})


def site(rng: Random) -> Case:
    """A site's file, with a grid of one run."""
    names = rng.sample(list(SITE), rng.randrange(1, len(SITE) + 1))
    tree = mutate.change_tree(rng, {name: mutate.copied(SITE[name]) for name in names})
    launcher = rng.choice(("local", "torchrun", "slurm", "slurm"))
    words = ("sweep", "g.toml", "--out", "o", "--dry-run", "--site", "site.toml", "--launcher", launcher)
    files = {"g.toml": toml_text(ONE).encode(), "site.toml": encoded(rng, toml_text(tree))}
    return Case(words=(*words, *(("--json",) if rng.random() < 0.6 else ())), files=files)


KINDS = (
    Kind(name="study", weight=3, make=study),
    Kind(name="grid", weight=1, make=grid),
    Kind(name="site", weight=1, make=site),
)
