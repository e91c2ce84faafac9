"""What `knee budget` reads from its options, and what it refuses of them."""

from __future__ import annotations

import click
from click.core import ParameterSource

from knee.base.errors import InputError


def refuse_beside_check(ctx: click.Context) -> None:
    """It asks about published runs, and nothing of a budget of one's own."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name not in ("check", "as_json")
        and param.name is not None
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise InputError(
            f"--check cannot be combined with {', '.join(given)}",
            hint="leave out --check, or combine it only with --json",
            code="contradiction",
            field="check",
        )


def check_files(plot: str | None, html: str | None) -> None:
    """Refuse what cannot be written, before the search."""
    for name, file in (("plot", plot), ("html", html)):
        if file is not None and not file.strip():
            hint = f"for example --{name} budget.html"
            raise InputError(f"--{name} is empty", hint=hint, code="missing-argument", field=name)
    if plot is not None:
        from knee.show.figures.vega import check_picture

        check_picture(plot, hint="for example --plot budget.svg")
    if html is not None:
        from knee.base.files import check_writable

        check_writable(html, "html")
