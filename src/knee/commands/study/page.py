"""The page of studies: what was found, then figure by figure the paper beside knee, with every value behind it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from knee.base.files import digest, make_folder, write_bytes, write_text
from knee.base.processes import core_count, process_pool
from knee.commands.study import summary_section as summary
from knee.commands.study.charts import figure_files, figures
from knee.commands.study.claims import Tally, Verdict
from knee.commands.study.ladder_section import ladder_section
from knee.commands.study.paper_conflict import STUDY as CONFLICT
from knee.commands.study.paper_conflict import conflict_of
from knee.commands.study.run_study import Ran
from knee.commands.study.step_timeline import StepTimeline, step_timelines
from knee.commands.study.study_file import uncounted
from knee.engine.one_job import ASSUMPTIONS
from knee.show.figures.vega import Figure, Spec, svg_to_png, to_svg
from knee.show.page.page import Chart, chart_of, render
from knee.show.page.tables import Table, kind_table, record_table
from knee.trust.validation.bundled_runs import CarriedFidelity, recorded_moe_fidelity

# Charts drawn once: a picture lies under a digest of its spec and of what draws it, and is used while both hold.

DRAWER = "vl-convert-python"


class SvgCache:
    """SVGs of specs, kept in a folder; without one each is drawn anew."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = None if folder is None else make_folder(folder)
        self.used: set[str] = set()
        self._ahead: dict[str, Future[str]] = {}
        """Pictures that a pool of processes draws into the folder."""

    def draw_ahead(self, pool: Executor, specs: Iterable[Spec]) -> None:
        """Have a pool of processes draw the pictures that are missing."""
        for name, spec in {f"{_digest(spec)}.svg": spec for spec in specs if not self.has(spec)}.items():
            self._ahead[name] = pool.submit(SvgCache(self.folder).svg, spec)

    def has(self, spec: Spec) -> bool:
        """Whether the picture lies here."""
        return self.folder is not None and (self.folder / f"{_digest(spec)}.svg").exists()

    def svg(self, spec: Spec) -> str:
        """The picture of a spec."""
        if self.folder is None:
            return to_svg(spec)
        name = f"{_digest(spec)}.svg"
        self.used.add(name)
        path = self.folder / name
        if name in self._ahead:
            wait([self._ahead.pop(name)])  # where it has failed, the picture is drawn here
        try:
            kept = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            kept = ""
        if kept.endswith("</svg>"):  # whole, as it was written
            return kept
        write_text(path, drawn := to_svg(spec))
        return drawn

    def remove_unused(self) -> None:
        """Remove pictures that nothing asked for."""
        for path in self.folder.glob("*.svg") if self.folder is not None else ():
            if path.name not in self.used:
                path.unlink(missing_ok=True)


def draw_and_write(kept: Path, stem: Path, spec: Spec) -> None:
    """Draw a chart, or take its picture from a folder of kept ones, and write its files."""
    write_picture(stem, spec, SvgCache(kept).svg(spec))


def write_picture(stem: Path, spec: Spec, svg: str) -> None:
    """SVG, PNG and Vega-Lite of a chart beside each other; a PNG that shows this very SVG stays."""
    path, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    same = path.exists() and png.exists() and path.read_bytes() == svg.encode()
    if not same:
        write_bytes(png, svg_to_png(svg))
        write_text(path, svg)
    write_text(stem.with_name(f"{stem.name}.vl.json"), json.dumps(spec, indent=1) + "\n")


def _digest(spec: Spec) -> str:
    try:
        drawer = version(DRAWER)
    except PackageNotFoundError:
        drawer = ""
    return digest([spec, drawer])[:24]


TRUST = {
    "validated": "published runs like every one of these exist, and knee was held against them",
    "near": "published runs of the same kind exist, but some of these lie beyond their sizes",
    "extrapolated": "no published run was like some of these, so that errors may be larger than any that was seen",
}
FILES = {
    "runs.csv": "every run",
    "bandwidths.csv": "every bandwidth",
    "budgets.csv": "every budget",
    "hardware.csv": "the data sheets",
    "claims.csv": "every claim",
    "fidelity.csv": "published runs against predictions",
    "figures": "every figure as SVG, PNG and Vega-Lite",
    "records": "the record of each run, with all it depends on",
}
"""What may lie beside the page."""
MANY = 40
"""Charts that are not drawn yet, from which a second process pays."""
DRAWN = ".kept"
"""Folder of pictures that a second run need not draw again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStudy:
    """A study and its pictures."""

    ran: Ran
    charts: tuple[Chart, ...]
    steps: tuple[StepTimeline, ...] = ()
    conflict: Mapping[str, Any] | None = None

    @property
    def place(self) -> str:
        """Where in the paper, in short: ``Figure 3``."""
        return self.ran.study.place.partition(",")[0]

    @property
    def score(self) -> str:
        """How many of its independent claims are reproduced."""
        some = summary.of_role(self.ran.verdicts, "independent")
        return f"{sum(not v.failed for v in some)} of {len(some)}" if some else ""

    @property
    def lost(self) -> bool:
        """Whether an independent claim of it is not reproduced."""
        return any(v.failed for v in summary.of_role(self.ran.verdicts, "independent"))

    @property
    def flips(self) -> Table | None:
        """What hangs on its assumptions."""
        return summary.flip_table(self.ran.study.name)

    @property
    def runs(self) -> str:
        """How many points of each kind there are."""
        kinds = Counter(str(row["kind"]) for row in self.ran.rows)
        some = [f"{number:,} {kind}" for kind, number in kinds.items()]
        return ", ".join([*some, *([f"{len(self.ran.impossible):,} that cannot be"] if self.ran.impossible else [])])

    @property
    def specs(self) -> Table | None:
        """What the runs had, how often, and the command that says where its values come from."""
        names = ("model", "cluster", "profile")
        counts = Counter(tuple(row.get(name) for name in names) for row in self.ran.rows if "plan" in row)
        rows = [
            dict(zip(names, spec, strict=True)) | {"runs": runs, "values and sources": f"knee catalog {spec[1]}"}
            for spec, runs in counts.items()
        ]
        return record_table("Models, clusters and profiles", rows) if rows else None


def drawn_of(ran: Ran, *, steps: bool = True, pictures: SvgCache | None = None) -> DrawnStudy:
    """Draw all of a study."""
    draw = (pictures or SvgCache()).svg
    lanes = [
        replace(s, lanes=replace(s.lanes, help=i == 0)) for i, s in enumerate(step_timelines(ran) if steps else ())
    ]
    charts = tuple(chart_of(figure, _tables(figure), draw) for figure in figures(ran))
    return DrawnStudy(ran=ran, charts=charts, steps=tuple(lanes))


def _tables(figure: Figure) -> list[Table]:
    made = " and ".join(sorted({str(row["kind"]) for row in figure.rows} - {"impossible"})) or "no runs"
    tables = [record_table(f"{figure.title}: {made}", figure.rows, figure.columns)] if figure.rows else []
    if figure.published:
        columns = [name for name in figure.published[0] if name != "kind"]
        tables.append(record_table(f"{figure.title}: published", figure.published, columns))
    return tables


def write_page(ran: Sequence[Ran], fidelity: CarriedFidelity, out: Path, *, command: str) -> Path:
    """The page and every figure as files of its own; the page's path."""
    folder, pictures = make_folder(out / "figures"), SvgCache(out / DRAWN)
    files = [named for one in ran for named in figure_files(one)]
    on_page = [f.spec for one in ran for f in figures(one) if f.spec is not None]
    with contextlib.ExitStack() as around:
        written: list[Future[None]] = []
        missing = sum(not pictures.has(spec) for spec in (*on_page, *(spec for _, spec in files)))
        if missing >= MANY and core_count() > 1:
            pool = around.enter_context(process_pool(core_count()))
            with contextlib.suppress(OSError):  # no more processes, say: this one does all
                pictures.draw_ahead(pool, on_page)
                written = [pool.submit(draw_and_write, out / DRAWN, folder / name, spec) for name, spec in files]
        drawn = [drawn_of(one, pictures=pictures) for one in ran]
        tables = [name for name in FILES if (out / name).exists()]
        page = study_page(ran, fidelity, command=command, beside=tables, drawn=drawn, draw=pictures.svg)
        write_text(out / "index.html", page)
        wait(written)
        for name, spec in files:  # nothing is left to do where a process has written it
            write_picture(folder / name, spec, pictures.svg(spec))
    pictures.remove_unused()
    return out / "index.html"


def study_page(
    ran: Sequence[Ran],
    fidelity: CarriedFidelity,
    *,
    command: str,
    beside: Sequence[str] = (),
    drawn: Sequence[DrawnStudy] | None = None,
    draw: Callable[[Spec], str] = to_svg,
) -> str:
    """Studies as one HTML file; ``beside`` names what lies next to it."""
    drawn = [drawn_of(one) for one in ran] if drawn is None else drawn
    drawn = [replace(one, conflict=conflict_of(ran, draw)) if one.ran.study.name == CONFLICT else one for one in drawn]
    verdicts = [v for one in ran for v in one.verdicts]
    parts = {kind: [one for one in drawn if one.ran.study.kind == kind] for kind in ("paper", "beyond")}
    alone = ran[0].study if len(ran) == 1 else None
    experts = recorded_moe_fidelity()
    return render(
        "study.html",
        title=alone.title if alone else "How far does training scale?",
        lead=alone.question if alone else _lead(len(parts["paper"]), len(parts["beyond"])),
        command=command,
        has_timeline=any(one.steps for one in drawn),
        knee=summary.knee_summary(ran),
        findings=summary.findings(ran),
        paper=parts["paper"],
        beyond=parts["beyond"],
        since=ladder_section(ran, draw),
        verdicts=verdicts,
        claims=_claims(verdicts, drawn, with_uncounted=len(parts["paper"]) > 1),
        fidelity={
            "sentence": summary.fidelity_sentence(fidelity),
            "summary": summary.fidelity_table(fidelity, summary.IN_SUMMARY),
            "experts": {
                "sentence": summary.fidelity_sentence(experts),
                "summary": summary.fidelity_table(experts, summary.IN_SUMMARY, summary.OF_EXPERTS),
            },
            "tables": summary.fidelity_tables(fidelity, experts),
            "chart": summary.scale_chart(draw),
        },
        trust=TRUST,
        assumptions=ASSUMPTIONS,
        files={name: FILES[name] for name in beside},
    )


def _claims(verdicts: Sequence[Verdict], drawn: Sequence[DrawnStudy], *, with_uncounted: bool) -> dict[str, object]:
    kinds = {"statement": "words", "why no claim is made of it": "words"}
    silent = uncounted() if with_uncounted else {}
    caption = "Statements of the paper that no claim is made of"
    return {
        "headlines": summary.headlines(verdicts),
        "sentence": summary.claims_sentence(verdicts),
        "baseline": summary.baseline_sentence(verdicts),
        "chance_words": summary.chance_words(),
        "chance": {v.id: summary.chance(v.id) for v in verdicts},
        "tally": Tally.by_role(verdicts)["independent"],
        "table": summary.tally_table(verdicts),
        "studies": {one.ran.study.name: one.place or one.ran.study.title for one in drawn},
        "uncounted": kind_table(caption, kinds, silent.items()) if silent else None,
        "marks": summary.MARKS,
        "anchors": {v.id: summary.anchor(v.id) for v in verdicts},
    }


def _lead(paper: int, beyond: int) -> str:
    some = (
        [f"{paper} figure{'s and tables' if paper > 1 else ' or table'} of arXiv 2411.13055, reproduced"]
        if paper
        else []
    )
    some += [f"{beyond} question{'s' if beyond > 1 else ''} beyond it"] if beyond else []
    return f"{' and '.join(some)}: on knee's simulator, and held against what the paper says."
