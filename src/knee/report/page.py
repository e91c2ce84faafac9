"""One self-contained HTML page: what was found, what was claimed, every chart with its table, what was assumed.

Nothing is fetched: style and pictures are in the file, and its content policy forbids everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from knee.figures.palette import dark_of
from knee.report.html import Markup, join, tag, text
from knee.study.verdict import Tally, Verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"
OPEN_FOR_PRINT = """\
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
"""
MARKS = {"reproduced": "✓", "failed": "✗", "not testable": "–"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One number of the summary."""

    value: str
    says: str
    paper: str | None = None
    """What the paper says to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture and the table behind it."""

    id: str
    title: str
    caption: str
    svg: str
    tables: tuple[Markup, ...]
    """Behind a line that opens them; none where the section shows its table in the open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Charts that belong together, below one sentence of what they show."""

    id: str
    title: str
    says: str
    charts: tuple[Chart, ...]
    tables: tuple[Markup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that a page says, in its order."""

    title: str
    question: str
    command: str
    keys: tuple[Key, ...]
    found: tuple[str, ...]
    """Sentences of the summary."""
    tables: tuple[Markup, ...] = ()
    """Tables of the summary."""
    verdicts: tuple[Verdict, ...] = ()
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...]
    sources: tuple[tuple[str, str], ...] = ()
    """Words and address of each."""
    version: str


def render(page: Page) -> str:
    """The whole file."""
    links = [
        ("summary", "What knee found"),
        *([("claims", "Claims")] if page.verdicts else []),
        *((section.id, section.title) for section in page.sections),
        ("assumptions", "Assumptions"),
    ]
    body = join(
        [
            tag("a", "Skip to the summary", href="#summary", class_="skip"),
            tag("header", _header(page, links), raw=True),
            tag(
                "main",
                _summary(page),
                _claims(page.verdicts),
                *map(_section, page.sections),
                _assumptions(page),
                raw=True,
            ),
            tag("footer", tag("p", *_made(page), raw=True), raw=True),
            tag("script", OPEN_FOR_PRINT, raw=True),
        ]
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{_head(page.title)}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _made(page: Page) -> Sequence[Markup]:
    made = text(f"Made by knee {page.version}")
    return [made, text(" with "), tag("code", page.command)] if page.command else [made]


def _head(title: str) -> Markup:
    style = resources.files("knee.report").joinpath("page.css").read_text(encoding="utf-8")
    return Markup(
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n{tag("title", title)}\n<style>\n{style}{_dark_pictures()}</style>\n'
    )


def _dark_pictures() -> str:
    """In the dark each colour of a picture gives way to its counterpart."""
    rules = "".join(
        f'  svg [{part}="{light}"] {{ {part}: {dark}; }}\n'
        for light, dark in dark_of().items()
        for part in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}}}\n"


def _header(page: Page, links: Sequence[tuple[str, str]]) -> Markup:
    items = join(tag("li", tag("a", words, href=f"#{id}"), raw=True) for id, words in links)
    return join(
        [
            tag("h1", page.title),
            tag("p", page.question, class_="lead"),
            tag("p", text("Command: "), tag("code", page.command), raw=True, class_="command")
            if page.command
            else Markup(""),
            tag("nav", tag("ul", items, raw=True), raw=True, aria_label="On this page"),
        ]
    )


def _summary(page: Page) -> Markup:
    keys = join(
        tag(
            "li",
            tag("strong", key.value),
            tag("span", key.says),
            tag("span", f"paper: {key.paper}", class_="paper") if key.paper else Markup(""),
            raw=True,
        )
        for key in page.keys
    )
    found = join(tag("li", sentence) for sentence in page.found)
    return tag(
        "section",
        tag("h2", "What knee found", id="summary-title"),
        tag("ul", keys, raw=True, class_="keys"),
        tag("ul", found, raw=True, class_="found"),
        *page.tables,
        raw=True,
        id="summary",
        aria_labelledby="summary-title",
    )


def _claims(verdicts: Sequence[Verdict]) -> Markup:
    """The claims table; on a narrow screen each row becomes a card, so its roles are spelt out."""
    if not verdicts:
        return Markup("")
    columns = ("claim", "statement", "paper", "bar", "simulated", "verdict", "fitted")
    head = tag("tr", join(tag("th", name, scope="col", role="columnheader") for name in columns), raw=True, role="row")
    rows = join(_claim(v, columns) for v in verdicts)
    caption = "Each claim of the paper, held against the simulator; the bar is what counts as reproduced"
    body = tag(
        "table",
        tag("caption", caption),
        tag("thead", head, raw=True, role="rowgroup"),
        tag("tbody", rows, raw=True, role="rowgroup"),
        raw=True,
        role="table",
        class_="claims",
    )
    return tag(
        "section",
        tag("h2", "Claims", id="claims-title"),
        *_claims_lead(verdicts),
        body,
        raw=True,
        id="claims",
        aria_labelledby="claims-title",
    )


def _claims_lead(verdicts: Sequence[Verdict]) -> Iterable[Markup]:
    fitted = Tally.of([v for v in verdicts if v.fitted])
    free = Tally.of([v for v in verdicts if not v.fitted])
    yield tag("p", tag("strong", f"claims: {Tally.of(verdicts)}"), raw=True)
    yield tag(
        "p",
        f"Fitted on: {fitted}. Not fitted on: {free}. Nothing was tuned claim by claim; a claim that "
        "fails is shown as failing.",
    )
    failed = [v for v in verdicts if v.verdict == "failed"]
    if failed:
        yield tag("p", "Failed, and why:")
        yield tag("ul", join(_failure(v) for v in failed), raw=True)


def _failure(v: Verdict) -> Markup:
    return tag("li", tag("a", v.id, href=f"#{_anchor(v.id)}"), text(f": {v.note or v.simulated}"), raw=True)


def _claim(v: Verdict, columns: Sequence[str]) -> Markup:
    outcome = tag("span", f"{MARKS[v.verdict]} {v.verdict}", class_=f"verdict {v.verdict.replace(' ', '-')}")
    words = map(text, (v.statement, v.paper, v.bar, v.simulated))
    cells = [*words, outcome, text("yes" if v.fitted else "no")]
    rest = join(
        tag("td", cell, raw=True, role="cell", data_label=name) for name, cell in zip(columns[1:], cells, strict=True)
    )
    return tag("tr", tag("th", v.id, scope="row", role="rowheader"), rest, raw=True, role="row", id=_anchor(v.id))


def _anchor(claim: str) -> str:
    return "claim-" + re.sub(r"[^A-Za-z0-9]+", "-", claim).lower()


def _section(section: Section) -> Markup:
    return tag(
        "section",
        tag("h2", section.title, id=f"{section.id}-title"),
        tag("p", section.says, class_="lead"),
        *([tag("div", *map(_chart, section.charts), raw=True, class_="charts")] if section.charts else []),
        *section.tables,
        raw=True,
        id=section.id,
        aria_labelledby=f"{section.id}-title",
    )


def _chart(chart: Chart) -> Markup:
    label = f"{chart.title}. {chart.caption} Its values are in the table below."
    details = tag(
        "details",
        tag("summary", "Table", tag("span", f" of {chart.title}", class_="hidden"), raw=True),
        *chart.tables,
        raw=True,
    )
    if not chart.tables:  # it stands below, in the open
        details = Markup("")
    return tag(
        "figure",
        tag("h3", chart.title),
        inline_svg(chart.svg, label),
        tag("figcaption", chart.caption),
        details,
        raw=True,
        id=chart.id,
    )


def inline_svg(svg: str, label: str) -> Markup:
    """An SVG for the page: it scales with its place, and is one picture with one label to a screen reader."""
    start, end = svg.index("<svg"), svg.index(">", svg.index("<svg"))
    box = re.search(r'viewBox="([^"]*)"', svg[start:end])
    if box is None:
        raise ValueError("the SVG has no viewBox")
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" role="img" aria-label="{text(label)}">'
    return Markup(opening + svg[end + 1 :])


def _assumptions(page: Page) -> Markup:
    said = tag("ul", *(tag("li", sentence) for sentence in page.assumptions), raw=True)
    sources = tag(
        "ul",
        *(tag("li", tag("a", words, href=address, rel="noreferrer"), raw=True) for words, address in page.sources),
        raw=True,
    )
    return tag(
        "section",
        tag("h2", "Assumptions", id="assumptions-title"),
        said,
        *([tag("h3", "Sources"), sources] if page.sources else []),
        raw=True,
        id="assumptions",
        aria_labelledby="assumptions-title",
    )
