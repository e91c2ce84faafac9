"""Pages and tables of the documentation site that are made from knee's own declarations and data.

mkdocs loads this file as a hook (mkdocs.yml). Pages with nothing of their own to say are added whole; in other pages a
line ``<!-- made: NAME -->`` is replaced by the table of that name, so that no figure of the data is typed twice.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from band_coverage import coverage, jobs_of  # noqa: E402

import knee  # noqa: E402
from knee.commands.study.study_file import load_study, study_names  # noqa: E402
from knee.engine.measurement import CommLoad, Measurement, Memory  # noqa: E402
from knee.specs.catalog import KINDS, entry_names  # noqa: E402
from knee.specs.fields import descriptions  # noqa: E402
from knee.specs.load import describe, read_tree  # noqa: E402
from knee.specs.metrics import METRICS  # noqa: E402
from knee.trust.bands import CONSTANTS, MOE_CONSTANTS  # noqa: E402
from knee.trust.error_table import EXPERTS, OWN, read_errors  # noqa: E402
from knee.trust.trust import Trust  # noqa: E402
from knee.trust.validation.bundled_runs import references  # noqa: E402

sys.path.insert(0, str(ROOT / "tools"))
from files_page import field_rows  # noqa: E402
from site_json import json_keys  # noqa: E402
from site_words import WORDS  # noqa: E402

MARK = "<!-- made: {} -->"
QUESTIONS = (
    "simulate",
    "plan",
    "scale",
    "budget",
    "budget_check",
    "read_traces",
    "validate",
    "calibrate",
    "compare",
    "read_records",
    "study",
    "list_studies",
    "describe_study",
    "dryrun",
    "prepare_sweep",
    "run_sweep",
    "sweep_status",
    "cancel_sweep",
    "retry_sweep",
    "tune",
    "tune_status",
    "replay_tuning",
    "probe_kernels",
    "probe_collectives",
    "probe_power",
    "probe_steps",
    "catalog_entries",
    "catalog_entry",
    "catalog_schema",
    "doctor",
)
"""Functions in the order in which a newcomer needs them."""
PARTS = (
    "load_model",
    "load_cluster",
    "load_profile",
    "load_job",
    "make_job",
    "table_of",
    "simulate_table",
    "simulate_tables",
    "events_of",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made whole."""
    from mkdocs.structure.files import File

    made = {
        "reference/python.md": python_page(),
        "reference/claims.md": claims_page(),
        "design.md": (ROOT / "DESIGN.md").read_text(encoding="utf-8").replace("](docs/", "]("),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put tables where the page asks for them."""
    for name, make in TABLES.items():
        mark = MARK.format(name)
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def python_page() -> str:
    """Every public name, from its docstring."""
    public = [name for name in knee.__all__ if name != "__version__"]
    types = [name for name in public if name not in QUESTIONS + PARTS]
    assert set(QUESTIONS + PARTS) <= set(public)
    parts = [
        "# Python API",
        "`import knee` provides all names on this page. The functions take the options of the commands as keyword "
        "arguments. [Use knee in Python](../how-to/python.md) has examples. The site build makes this page from the "
        "docstrings.",
        "## Functions",
        *map(_documented, QUESTIONS),
        "## Lower-level functions",
        *map(_documented, PARTS),
        "## Results and other types",
        *map(_documented, types),
    ]
    return "\n\n".join(parts) + "\n"


def _documented(name: str) -> str:
    home = knee._HOMES[name]
    # griffe reads declarations, and these are imported there from the module that has them
    homes = {"Cluster": "specs.hardware", "Job": "specs.job", "Model": "specs.model", "Plan": "specs.plan"}
    home = homes.get(name, "specs.profile" if name == "Profile" else home)
    return f"::: knee.{home}.{name}\n    options:\n      heading: knee.{name}\n      toc_label: {name}"


def claims_page() -> str:
    """Every claim of every study, with its bar."""
    studies = [load_study(name) for name in study_names()]
    claims = [(study, claim) for study in studies for claim in study.claim]
    roles = {
        role: sum(claim.role == role for _, claim in claims) for role in ("independent", "implied", "input", "fitted")
    }
    text = [
        "# Claims of the paper",
        f"The study files hold {len(claims)} claims about [arXiv 2411.13055](https://arxiv.org/abs/2411.13055): "
        + ", ".join(f"{count} {role}" for role, count in roles.items())
        + ". Only independent claims count as evidence ([the rules](../studies.md#how-claims-are-counted)). "
        "`knee study` tests every claim, and its page shows each verdict with the simulated numbers. "
        "The site build makes this page from the study files. Each table has the claims of one study.",
    ]
    for study in studies:
        if study.claim:
            rows = [
                (claim.id, claim.says, claim.paper, claim.bar, claim.role + _because(claim), claim.why)
                for claim in study.claim
            ]
            head = ("id", "claim", "in the paper", "reproduced if", "role", "why it is known to fail")
            text += [f"## {study.name}: {study.title}", f"{study.place}. {study.question}", table(head, rows)]
    return "\n\n".join(text) + "\n"


def _because(claim: Any) -> str:
    return (f" ({', '.join(claim.by)})" if claim.by else "") + (f": {claim.because}" if claim.because else "")


def moe_coverage_table() -> str:
    """The same of mixtures of experts."""
    return coverage_table(EXPERTS, MOE_CONSTANTS)


def coverage_table(errors: Path = OWN, constants: Path = CONSTANTS) -> str:
    """How often bands hold on sources that are left out."""
    rows = [row for row in coverage(read_errors(errors), shipped=constants) if not row.source]
    head = (
        "quantity",
        "label",
        "runs",
        "promised share inside the band",
        "measured share",
        "half of the band's width (median)",
    )
    return table(
        head,
        (
            (
                r.quantity,
                r.label,
                f"{r.runs:,}",
                f"{r.covered_frac:.0%}",
                f"{r.held_frac:.0%}",
                f"{r.half_width_frac:.0%}",
            )
            for r in rows
        ),
    )


def source_table() -> str:
    """Errors of tokens/s per GPU, source by source."""
    errors, rows = read_errors(), []
    shipped, unseen = errors.numbers["error_frac"], errors.numbers["unseen_error_frac"]
    used = np.array([job is not None for job in jobs_of(errors)]) & np.isfinite(unseen)
    for source in dict.fromkeys(errors.words["source"]):
        mine = errors.is_("source", source) & used
        if mine.any():
            rows.append((source, f"{mine.sum():,}", *_spread(unseen[mine]), *_spread(shipped[mine])))
    last = [
        cell
        for i, error in ((2, unseen), (4, shipped))
        for cell in (
            f"**{np.median([float(row[i].rstrip('%')) for row in rows]):.1f}%**",
            f"**{np.quantile(abs(error[used]), 0.9):.0%}** (all runs)",
        )
    ]
    rows.append(("**median over sources**", f"{used.sum():,}", *last))
    head = (
        "source",
        "runs",
        "unseen: median",
        "unseen: 90th percentile",
        "as shipped: median",
        "as shipped: 90th percentile",
    )
    return table(head, rows)


def moe_source_table() -> str:
    """Errors of tokens/s per GPU of mixtures of experts, source by source."""
    errors, rows = read_errors(EXPERTS), []
    shipped, unseen = errors.numbers["error_frac"], errors.numbers["unseen_error_frac"]
    for source in dict.fromkeys(errors.words["source"]):
        mine = errors.is_("source", source) & np.isfinite(unseen)
        if mine.any():
            rows.append((source, f"{mine.sum():,}", *_spread(unseen[mine]), *_spread(shipped[mine])))
    head = ("source", "runs", "unseen: median", "unseen: 90th percentile", "as shipped: median")
    return table((*head, "as shipped: 90th percentile"), rows)


def moe_protocol_table() -> str:
    """Real routing, steps of tuning and memory."""
    path = Path(__file__).parent.parent / "data/moe/protocol.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            (r["part"], r["what"], r["measured"], r["predicted"], "yes" if r["holds"] == "True" else "no")
            for r in csv.DictReader(file)
        ]
    return table(("check", "of", "measured", "predicted", "holds"), rows)


def _spread(error: Any) -> tuple[str, str]:
    return f"{np.median(abs(error)):.1%}", f"{np.quantile(abs(error), 0.9):.1%}"


def origin_table() -> str:
    """Where published runs come from."""
    every = references() | references("moe_sources.toml")
    return table(("source", "where it was published"), ((name, one["reference"]) for name, one in every.items()))


def fitted_table() -> str:
    """Every fitted value of the catalogue, those of one fit together."""
    found: dict[tuple[str, str], list[str]] = {}
    seen: set[tuple[str, str, str]] = set()
    for kind in KINDS:
        for name in entry_names(kind):
            for field, value, how, source in describe(kind, read_tree(kind, name)):
                # an entry that another is laid over, or a cluster's GPU, would be listed again
                key = (field.removeprefix("gpu."), value, source)
                if how == "fitted" and key not in seen:
                    seen.add(key)
                    found.setdefault((f"{kind} {name}", source), []).append(f"`{field}` {value}")
    rows = ((entry, ", ".join(values), source) for (entry, source), values in found.items())
    return table(("entry", "values", "how they were fitted"), rows)


def field_table(*specs: type) -> str:
    """Keys of a JSON object, and what they mean."""
    parts = []
    for spec in specs:
        parts.append(f"**{spec.__name__}**: {' '.join((spec.__doc__ or '').split()).replace('``', '`')}")
        parts.append(
            table(("key", "meaning"), ((f"`{name}`", words or _meaning(name)) for name, _, words in field_rows(spec)))
        )
    return "\n\n".join(parts)


def _meaning(name: str) -> str:
    """What a key or column without a docstring means."""
    return METRICS[name].meaning if name in METRICS and METRICS[name].meaning else WORDS[name]


def column_table() -> str:
    """Columns of a study's rows."""
    from knee.commands.study.study_file import COLUMNS

    words = descriptions(Measurement) | descriptions(knee.Plan) | descriptions(Trust)
    return table(("column", "meaning"), ((f"`{name}`", words.get(name) or _meaning(name)) for name in COLUMNS))


def answer_tables() -> str:
    """What commands print with ``--json``: each object and its keys."""
    parts = []
    for command, rows in json_keys():
        parts += [
            f"### `knee {command} --json`",
            table(("object", "keys"), ((f"`{path}`", keys) for path, keys in rows)),
        ]
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(c).split()).replace("|", "\\|") for c in line) + " |" for line in lines
    )


TABLES: dict[str, Callable[[], str]] = {
    "coverage": coverage_table,
    "errors by source": source_table,
    "mixtures of experts by source": moe_source_table,
    "mixtures of experts, checks": moe_protocol_table,
    "mixtures of experts, coverage": moe_coverage_table,
    "sources": origin_table,
    "fitted values": fitted_table,
    "measurement": lambda: field_table(Measurement, Memory, CommLoad),
    "trust": lambda: field_table(Trust),
    "columns": column_table,
    "answers": answer_tables,
}
