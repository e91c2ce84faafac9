"""One self-contained HTML page: what was found, every chart with its table, what was assumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import knee
from knee.base.files import write_bytes, write_text
from knee.show.figures.palette import dark_of
from knee.show.figures.svg import is_tall, svg_for_page
from knee.show.figures.vega import Figure, Spec, load, to_png, to_svg
from knee.show.page.lanes import Lanes
from knee.show.page.tables import Table, record_table

if TYPE_CHECKING:
    from jinja2 import Environment


# Jinja2, of the extra ``report``: Python prepares what a page says, templates make HTML of it and escape all text.


def render(template: str, **data: object) -> str:
    """A template of this package with its data; text that is not ``Markup`` is escaped."""
    return environment().get_template(template).render(data)


@cache
def environment() -> Environment:
    """Templates in which a missing value is an error, and JSON is as short as it can be."""
    jinja2 = load("jinja2", "pages")
    found: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("knee.show.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    found.globals |= {"version": knee.__version__, "dark_of": dark_of}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One number of the summary."""

    value: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """What is behind a line that opens it."""

    block: ClassVar[str] = "fold"
    summary: str
    about: str = ""
    """For those who hear the line alone."""
    blocks: tuple[Table, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """Sentences in a list."""

    block: ClassVar[str] = "bullets"
    title: str = ""
    sentences: tuple[str, ...]


Block = Table | Fold | Bullets | Lanes
"""What a section may hold below its charts; a macro of the templates has the name of its ``block``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture and the table behind it."""

    id: str
    title: str
    caption: str
    svg: str
    """As Vega draws it; empty where there is nothing to draw."""
    tables: tuple[Table, ...]
    """Behind a line that opens them; none where the section shows its table in the open."""

    @property
    def picture(self) -> str:
        """The SVG for the page, with a label for those who do not see it."""
        words = [f"{self.title}.", self.caption, "Its values are in the table below."]
        return svg_for_page(self.svg, " ".join(filter(None, words)))

    @property
    def is_tall(self) -> bool:
        """Whether the picture takes the height of two."""
        return is_tall(self.svg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Charts that belong together, below one sentence of what they show."""

    id: str
    title: str
    says: str
    charts: tuple[Chart, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that a page says, in its order."""

    title: str
    question: str
    command: str
    keys: tuple[Key, ...]
    found: tuple[str, ...]
    """Sentences of the summary."""
    tables: tuple[Table, ...] = ()
    """Tables of the summary."""
    sections: tuple[Section, ...]
    assumptions: tuple[str, ...]
    sources: tuple[tuple[str, str], ...] = ()
    """Words and address of each."""


def render_page(page: Page) -> str:
    """The whole file."""
    has_timeline = any(isinstance(block, Lanes) for section in page.sections for block in section.blocks)
    return render("page.html", page=page, title=page.title, command=page.command, has_timeline=has_timeline)


def chart_of(figure: Figure, tables: Sequence[Table] | None = None, draw: Callable[[Spec], str] = to_svg) -> Chart:
    """A figure as Vega draws it, with its own table behind it where no others are given."""
    if tables is None:
        tables = [record_table(figure.title, figure.rows, figure.columns)]
    svg = draw(figure.spec) if figure.spec is not None else ""
    return Chart(id=figure.id, title=figure.title, caption=figure.caption, svg=svg, tables=tuple(tables))


def write_plot(path: Path, spec: Spec, **page: Any) -> None:
    """Write a picture as a file of its own, whose ending says how; ``page`` is what an HTML file has beside it."""
    if path.suffix == ".json":
        write_text(path, json.dumps(spec, indent=2) + "\n")
    elif path.suffix == ".png":
        write_bytes(path, to_png(spec))
    else:
        write_text(path, render("plot.html", svg=to_svg(spec), **page) if path.suffix == ".html" else to_svg(spec))
