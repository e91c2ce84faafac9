"""One self-contained HTML page: what was found, what was claimed, every chart with its table, what was assumed.

Nothing is fetched: style and pictures are in the file, and its content policy forbids everything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from knee.figures.palette import dark_of
from knee.report.html import Markup, bullets, folded, join, tag, text

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"
OPEN_FOR_PRINT = """\
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
"""


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
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...]
    sources: tuple[tuple[str, str], ...] = ()
    """Words and address of each."""
    version: str


def render(page: Page) -> str:
    """The whole file."""
    links = [
        ("summary", "What knee found"),
        *((section.id, section.title) for section in page.sections),
        ("assumptions", "Assumptions"),
    ]
    return document(
        page.title,
        tag("header", _header(page, links), raw=True),
        tag("main", _summary(page), *map(section_of, page.sections), _assumptions(page), raw=True),
        made_by(page.version, page.command),
    )


def document(title: str, *body: Markup, style: str = "", skips: Sequence[str] = ("summary",)) -> str:
    """A whole file around its landmarks: policy, style, links past everything to what is named."""
    links = [tag("a", f"Skip to the {id}", href=f"#{id}", class_="skip") for id in skips]
    inner = join([*links, *body, tag("script", OPEN_FOR_PRINT, raw=True)])
    attribute = f' class="{style}"' if style else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{_head(title)}</head>\n<body{attribute}>\n{inner}\n</body>\n'
        "</html>\n"
    )


def made_by(version: str, command: str) -> Markup:
    """The last line."""
    made = text(f"Made by knee {version}")
    how = [text(" with "), tag("code", command)] if command else []
    return tag("footer", tag("p", made, *how, raw=True), raw=True)


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


def section_of(section: Section) -> Markup:
    """Its heading, its sentence, its charts, its tables."""
    return tag(
        "section",
        tag("h2", section.title, id=f"{section.id}-title"),
        tag("p", section.says, class_="lead"),
        *([tag("div", *map(chart_of, section.charts), raw=True, class_="charts")] if section.charts else []),
        *section.tables,
        raw=True,
        id=section.id,
        aria_labelledby=f"{section.id}-title",
    )


def chart_of(chart: Chart, level: str = "h3") -> Markup:
    """A figure with its table behind a line; none where the section shows its table in the open."""
    caption = [tag("figcaption", chart.caption)] if chart.caption else []
    label = f"{chart.title}.{' ' * bool(chart.caption)}{chart.caption} Its values are in the table below."
    picture = inline_svg(chart.svg, label) if chart.svg else tag("p", "Nothing to draw.", class_="unknown")
    tables = [folded("Table", *chart.tables, about=f"of {chart.title}")] if chart.tables else []
    return tag(
        "figure",
        tag(level, chart.title),
        picture,
        *caption,
        *tables,
        raw=True,
        id=chart.id,
        class_="tall" if _is_tall(chart.svg) else None,
    )


def _is_tall(svg: str) -> bool:
    """Whether a picture takes the height of two."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return box is not None and float(box[2]) > 1.15 * float(box[1])


def inline_svg(svg: str, label: str) -> Markup:
    """An SVG for the page: it scales with its place, and is one picture with one label to a screen reader."""
    start, end = svg.index("<svg"), svg.index(">", svg.index("<svg"))
    box = re.search(r'viewBox="([^"]*)"', svg[start:end])
    if box is None:
        raise ValueError("the SVG has no viewBox")
    rest = " ".join(found[0] for found in re.finditer(r'(?:font-family|font-size|fill|stroke)="[^"]*"', svg[start:end]))
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" role="img" aria-label="{text(label)}"'
        f"{' ' if rest else ''}{rest}>"
    )
    return Markup(opening + svg[end + 1 :])


def _assumptions(page: Page) -> Markup:
    said = bullets(page.assumptions)
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
