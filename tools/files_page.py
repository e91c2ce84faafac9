"""``python tools/files_page.py [FILE]`` writes the tables of ``docs/files.md`` from the loaders' declarations."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from knee.base.units import dimension
from knee.commands.study.failure_rows import LongRun, ReplicaExchange, Wall
from knee.commands.study.study_file import Bandwidths, Budgets, Draw, Published, Study, StudyGrid
from knee.engine.reliability.goodput import DEFAULTS, NO_DEFAULT, RATE_ENDS, default_of
from knee.specs.catalog import catalog_file
from knee.specs.data_sheets import MEASURED
from knee.specs.fields import default_of as declared_default
from knee.specs.fields import descriptions, unit_words
from knee.specs.hardware import CAUSES, AttentionRate, Cluster, Fabric, GemmRate, Gpu, Node, NodeNics, Reliability, Tier
from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.profile import Profile
from knee.training.launch.site import Site

LONG_TIME = "5 min"
MARK = "<!-- The rest of this page is made by `python tools/files_page.py`. -->\n"
TABLES: tuple[tuple[str, type], ...] = (
    ("Cluster", Cluster),
    ("Cluster: `[node]`", Node),
    ("Cluster: `[fabric]`", Fabric),
    ("Cluster: `[fabric]`, instead of `nic_bytes_per_s`", NodeNics),
    ("Cluster: `[[fabric.tiers]]`", Tier),
    ("Cluster: `[reliability]`", Reliability),
    ("GPU", Gpu),
    ("GPU: `[gemm.TYPE]`", GemmRate),
    ("GPU: `[attention.KERNEL]`", AttentionRate),
    ("Model", Model),
    ("Model: `[experts]`", Experts),
    ("Model: `[latent_attention]`", LatentAttention),
    ("Profile", Profile),
    ("Site", Site),
    ("Study", Study),
    ("Study: `[[grid]]` and `[common]`", StudyGrid),
    ("Study: `[[bandwidths]]`", Bandwidths),
    ("Study: `[[budget]]`", Budgets),
    ("Study: `[[long_run]]`", LongRun),
    ("Study: `[[exchange]]`", ReplicaExchange),
    ("Study: `[[wall]]`", Wall),
    ("Study: `[[draw]]`", Draw),
    ("Study: `[[published]]`", Published),
)


def field_rows(spec: type) -> list[tuple[str, Any, str]]:
    """Name, default and description of each field."""
    words = descriptions(spec)
    return [(one.name, declared_default(one), words.get(one.name, "")) for one in fields(spec)]


def field_tables() -> str:
    """Every field of every kind of file."""
    return "\n".join(_table(title, spec) for title, spec in TABLES)


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    return page.split(MARK)[0] + MARK + "\n" + field_tables()


def _table(title: str, spec: type) -> str:
    rows = [
        f"| `{name}` | {_written(spec, name)} | {_default(spec, name, default)} | {words.replace('|', '/')} |"
        for name, default, words in field_rows(spec)
    ]
    head = [f"### {title}", "", "| field | written as | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", *(_reliability_sources() if spec is Reliability else ())])


def _reliability_sources() -> list[str]:
    """Where the defaults of a cluster's reliability come from."""
    rows = [f"| {name} | {value} | {span} | {kind}: {source} |" for name, value, span, kind, source in default_rows()]
    about = (
        "The defaults, the range of published or plausible values (none is known where it is empty), and their source:"
    )
    return [about, "", "| default | value | range | source |", "|---|---|---|---|", *rows, ""]


def _written(spec: type, name: str) -> str:
    """How a value is written; times of whole runs are minutes."""
    return LONG_TIME if spec is Reliability and dimension(name) == "s" else unit_words(name)


def _default(spec: type, name: str, value: Any) -> str:
    if spec is Reliability and name not in NO_DEFAULT:
        return f"`{default_of('defaults', name)[1].value}`"
    if name in MEASURED.get(spec, ()):
        return "nearest"
    if value is MISSING or is_dataclass(value):
        return "file's name" if name == "name" else "needed"
    if value is None or value == "" or (isinstance(value, tuple | dict) and not value):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/files.md")
    target.write_text(with_tables(target.read_text(encoding="utf-8")), encoding="utf-8")
    click.echo(f"wrote {target}", err=True)


def default_rows() -> list[tuple[str, str, str, str, str]]:
    """All defaults as (name, value as written, range, kind, source); the range is empty if none is known."""
    rows = [
        (name, str(entry["value"]), _range(name, entry), entry["kind"], entry["source"])
        for table in ("defaults", "run")
        for name, entry in catalog_file(DEFAULTS)[table].items()
    ]
    for name, points in catalog_file(DEFAULTS)["initialisation"].items():
        values = ", ".join(f"{time:g} s" for time in points["time_s"])
        gpus = f"{points['gpus'][0]:,} to {points['gpus'][-1]:,} GPUs"
        rows.append((f"initialisation of {name}", values, gpus, points["kind"], points["source"]))
    return rows


def _range(name: str, entry: dict[str, Any]) -> str:
    """From the lowest to the highest plausible value. Rates of causes differ between clusters as their sum does."""
    if name in CAUSES.values():
        return " to ".join(f"{entry['value'] * default_of('run', end)[0]:.2g}" for end in RATE_ENDS)
    return f"{entry['low']} to {entry['high']}" if "low" in entry else ""
