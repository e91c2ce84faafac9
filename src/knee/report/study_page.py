"""The page of studies: what was found, then figure by figure the paper beside knee, with every value behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import knee
from knee.figures.study_charts import Figure, figure_files, figures
from knee.figures.svg import squeezed
from knee.files import make_folder, write_text
from knee.report.claims_section import claims_section, study_claims
from knee.report.fidelity_section import fidelity_section
from knee.report.html import Markup, bullets, folded, join, table, tag, text
from knee.report.lanes import HELP, draw_lanes, script
from knee.report.page import Chart, chart_of, document, made_by
from knee.report.pictures import Pictures, write_picture
from knee.report.step_section import StepTimeline, step_timelines
from knee.report.summary import summary
from knee.single import ASSUMPTIONS
from knee.studies.run_study import Ran
from knee.studies.study_file import uncounted
from knee.validation.carried_set import CarriedFidelity

PAPER = (
    "Hardware Scaling Trends and Diminishing Returns in Large-Scale Distributed Training, arXiv 2411.13055",
    "https://arxiv.org/abs/2411.13055",
)
TRUST = {
    "validated": "published runs like every one of these exist, and knee was held against them",
    "near": "published runs of the same kind exist, but some of these lie beyond their sizes",
    "extrapolated": "no published run was like some of these, so that errors may be larger than any that was seen",
}
TRUST_NONE = "Data sheets or a model of idle links, not training steps: no label applies."
KINDS = (
    ("line", "simulated by knee"),
    ("dot", "measured, by a real run"),
    ("diamond", "published, by the paper or its figure"),
)
FIGURES = "Each figure or table: what the paper says of it, what knee finds, the claims that follow, and every value."
QUESTIONS = "Questions that the paper does not answer. Nothing here was held against a measurement of its own."
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
DRAWN = ".kept"
"""Folder of pictures that a second run need not draw again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A study and its pictures."""

    ran: Ran
    charts: tuple[tuple[Figure, str], ...]
    """Each with its SVG; empty where there is nothing to draw."""
    steps: tuple[StepTimeline, ...] = ()


def drawn_of(ran: Ran, *, steps: bool = True, pictures: Pictures | None = None) -> Drawn:
    """Draw all of a study."""
    draw = (pictures or Pictures()).svg
    charts = tuple((figure, squeezed(draw(figure.spec)) if figure.spec else "") for figure in figures(ran))
    return Drawn(ran=ran, charts=charts, steps=tuple(step_timelines(ran)) if steps else ())


def write_page(ran: Sequence[Ran], fidelity: CarriedFidelity, out: Path, *, command: str) -> Path:
    """The page and every figure as files of its own; the page's path."""
    folder, pictures = make_folder(out / "figures"), Pictures(out / DRAWN)
    for one in ran:
        for name, spec in figure_files(one):
            write_picture(folder / name, spec, pictures.svg(spec))
    beside = [name for name in FILES if (out / name).exists()]
    drawn = [drawn_of(one, pictures=pictures) for one in ran]
    write_text(out / "index.html", study_page(ran, fidelity, command=command, beside=beside, drawn=drawn))
    pictures.forget_others()
    return out / "index.html"


def study_page(
    ran: Sequence[Ran],
    fidelity: CarriedFidelity,
    *,
    command: str,
    beside: Sequence[str] = (),
    drawn: Sequence[Drawn] | None = None,
) -> str:
    """Studies as one HTML file; ``beside`` names what lies next to it."""
    drawn = [drawn_of(one) for one in ran] if drawn is None else drawn
    verdicts = [v for one in ran for v in one.verdicts]
    paper = [one for one in drawn if one.ran.study.kind == "paper"]
    beyond = [one for one in drawn if one.ran.study.kind == "beyond"]
    titles = {one.study.name: one.study.place.partition(",")[0] or one.study.title for one in ran}
    main = [summary(ran, fidelity), _navigation(paper, beyond, bool(verdicts))]
    main += [_part("paper", "The paper's figures", FIGURES, paper)] if paper else []
    main += [_part("beyond", "Beyond the paper", QUESTIONS, beyond)] if beyond else []
    main += [claims_section(verdicts, titles, uncounted() if len(paper) > 1 else {})] if verdicts else []
    main += [fidelity_section(fidelity), _about(beside)]
    page = [
        tag("header", _header(ran, command), raw=True),
        tag("main", *main, raw=True),
        made_by(knee.__version__, command),
        *([script()] if any(one.steps for one in drawn) else []),
    ]
    return document(title_of(ran), *page, style="study", skips=("summary", "contents"))


def title_of(ran: Sequence[Ran]) -> str:
    """Of the page: of the one study, or of all."""
    return ran[0].study.title if len(ran) == 1 else "How far does training scale?"


def _header(ran: Sequence[Ran], command: str) -> Markup:
    kinds = Counter(str(one.study.kind) for one in ran)
    what = [
        _counted(kinds["paper"], "figure or table", "figures and tables") + " of arXiv 2411.13055, reproduced",
        _counted(kinds["beyond"], "question", "questions") + " beyond it",
    ]
    some = [words for kind, words in zip(("paper", "beyond"), what, strict=True) if kinds[kind]]
    lead = " and ".join(some) if len(ran) > 1 else ran[0].study.question
    return join(
        [
            tag("p", "knee study", class_="kicker"),
            tag("h1", title_of(ran)),
            tag(
                "p",
                lead if len(ran) == 1 else f"{lead}: on knee's simulator, and held against what the paper says.",
                class_="lead",
            ),
            tag(
                "ul",
                *(
                    tag("li", tag("span", class_=f"sign {name}", aria_hidden="true"), text(words), raw=True)
                    for name, words in KINDS
                ),
                raw=True,
                class_="signs",
                aria_label="Signs in the charts",
            ),
            *([tag("p", text("Made by "), tag("code", command), raw=True, class_="command")] if command else []),
        ]
    )


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _navigation(paper: Sequence[Drawn], beyond: Sequence[Drawn], claims: bool) -> Markup:
    def items(some: Sequence[Drawn]) -> Markup:
        return tag("ul", *(_entry(one.ran) for one in some), raw=True)

    ends = [("fidelity", "How far it can be trusted"), ("about", "Assumptions, files")]
    ends = [("claims", "All claims"), *ends] if claims else ends
    lists = [tag("p", tag("a", "What knee found", href="#summary"), raw=True)]
    lists += [tag("p", tag("a", "The paper's figures", href="#paper"), raw=True), items(paper)] if paper else []
    lists += [tag("p", tag("a", "Beyond the paper", href="#beyond"), raw=True), items(beyond)] if beyond else []
    lists += [tag("p", tag("a", words, href=f"#{id}"), raw=True) for id, words in ends]
    return tag("nav", *lists, raw=True, aria_label="On this page", class_="contents", id="contents")


def _entry(ran: Ran) -> Markup:
    """A study in the contents, with how its claims came out."""
    place = ran.study.place.partition(",")[0]
    failed = sum(v.failed for v in ran.verdicts)
    tested = sum(v.verdict != "not testable" for v in ran.verdicts)
    held = f"{tested - failed} of {tested}" if tested else ""
    title = join([tag("span", f"{place} ", class_="where")] if place else []) + text(ran.study.title)
    told = tag("span", " claims reproduced", class_="hidden")
    score = tag("span", text(held), told, raw=True, class_="score some" if failed else "score") if held else ""
    return tag("li", tag("a", title, raw=True, href=f"#{ran.study.name}"), score, raw=True)


def _part(id: str, title: str, lead: str, some: Sequence[Drawn]) -> Markup:
    return tag(
        "section",
        tag("h2", title, id=f"{id}-title"),
        tag("p", lead, class_="lead"),
        *map(study_article, some),
        raw=True,
        id=id,
        aria_labelledby=f"{id}-title",
    )


# ---- one study -------------------------------------------------------------------------------------------------------


def study_article(drawn: Drawn) -> Markup:
    """One figure of the paper, or one question beyond it."""
    ran = drawn.ran
    study, id = ran.study, ran.study.name
    charts = tag("div", *(_chart(figure, svg) for figure, svg in drawn.charts), raw=True, class_="charts")
    parts = [
        *([tag("p", study.place, class_="place")] if study.place else []),
        tag("h3", study.title, id=f"{id}-title"),
        tag("p", study.question, class_="lead"),
        tag("div", _sides(ran), charts, raw=True, class_="single" if len(drawn.charts) == 1 else None),
        *(_step(step, help_=i == 0) for i, step in enumerate(drawn.steps)),
        *([study_claims(ran.verdicts, study.place or study.title)] if ran.verdicts else []),
        _behind(ran),
    ]
    return tag("article", *parts, raw=True, id=id, aria_labelledby=f"{id}-title", class_="study")


def _sides(ran: Ran) -> Markup:
    """The paper and knee beside each other."""
    trust = tag("p", TRUST_NONE, class_="small")
    if ran.trust is not None:
        trust = tag("p", tag("strong", ran.trust), text(f": {TRUST[ran.trust]}."), raw=True, class_="small trust")
    says = [tag("div", tag("h4", "The paper says"), tag("p", ran.study.paper), raw=True)] if ran.study.paper else []
    finds = tag("div", tag("h4", "knee finds"), tag("p", ran.finding), trust, raw=True)
    return tag("div", *says, finds, raw=True, class_="sides")


def _chart(figure: Figure, svg: str) -> Markup:
    kinds = {str(row["kind"]) for row in figure.rows} - {"impossible"}
    made = " and ".join(sorted(kinds)) or "no runs"
    tables = [table(f"{figure.title}: {made}", figure.columns, figure.rows)] if figure.rows else []
    if figure.published:
        columns = tuple(name for name in figure.published[0] if name != "kind")
        tables.append(table(f"{figure.title}: published", columns, figure.published))
    chart = Chart(id=figure.id, title=figure.title, caption=figure.caption, svg=svg, tables=tuple(tables))
    return chart_of(chart, "h4")


def _step(step: StepTimeline, *, help_: bool) -> Markup:
    return tag(
        "div",
        tag("h4", f"Inside a step: {step.title}"),
        tag("p", step.says, class_="small"),
        draw_lanes(step.lanes, HELP if help_ else ""),
        raw=True,
        id=step.id,
        class_="step-timeline",
    )


def _behind(ran: Ran) -> Markup:
    """The command, what was run, and what was assumed."""
    study = ran.study
    kinds = Counter(str(row["kind"]) for row in ran.rows)
    runs = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
    runs += f", {len(ran.impossible):,} that cannot be" if ran.impossible else ""
    run = tag("p", text("Run it again: "), tag("code", ran.again), text(f" ({runs})"), raw=True, class_="again")
    parts = [run]
    if study.assumptions:
        silent = "Where the paper is silent, knee assumes" if study.kind == "paper" else "What is assumed"
        said = [tag("p", f"{silent}:"), bullets(study.assumptions)]
        parts.append(folded("Assumptions", *said, about=f"of {study.title}"))
    specs = _specs(ran)
    if specs:
        parts.append(
            folded(
                "What was run",
                table("Models, clusters and profiles", tuple(specs[0]), specs),
                about=f"in {study.title}",
            )
        )
    return tag("div", *parts, raw=True, class_="behind")


def _specs(ran: Ran) -> list[Mapping[str, object]]:
    """What the runs had, how often, and the command that says where its values come from."""
    names = Counter((row.get("model"), row.get("cluster"), row.get("profile")) for row in ran.rows if "plan" in row)
    return [
        {
            "model": model,
            "cluster": cluster,
            "profile": profile,
            "runs": runs,
            "values and sources": f"knee catalog {cluster}",
        }
        for (model, cluster, profile), runs in names.items()
    ]


def _about(beside: Sequence[str]) -> Markup:
    words, address = PAPER
    files = [tag("li", tag("a", name, href=name), text(f": {FILES[name]}"), raw=True) for name in beside]
    parts = [
        tag("h2", "Assumptions, files", id="about-title"),
        tag("h3", "Of the simulator"),
        bullets(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in ASSUMPTIONS),
        tag("h3", "Of the words"),
        bullets(
            (
                "Exposed communication is time in which a GPU communicates and computes nothing; overlapped "
                "communication hides behind compute. Compute, exposed communication, bubble and idle add up to "
                "the step.",
                "Trust labels are of the weakest run of a study. "
                + " ".join(f"{name.capitalize()}: {said}." for name, said in TRUST.items()),
                "Unknown means that a record does not say.",
            )
        ),
        *([tag("h3", "Files beside this page"), tag("ul", *files, raw=True)] if files else []),
        tag("h3", "The paper"),
        tag("p", tag("a", words, href=address, rel="noreferrer"), raw=True),
    ]
    return tag("section", *parts, raw=True, id="about", aria_labelledby="about-title")
