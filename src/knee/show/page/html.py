"""Jinja2, of the extra ``report``: Python prepares what a page says, templates make HTML of it and escape all text."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import knee
from knee.show.figures.palette import dark_of
from knee.show.figures.vega import load

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **data: object) -> str:
    """A template of this room with its data; text that is not ``Markup`` is escaped."""
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
