"""Options that know their section of ``--help``, and words that know their neighbours."""

from __future__ import annotations

from typing import Any

import click

from knee.base.errors import InputError
from knee.commands.main import nearest
from knee.specs.plan import RENAMED


class Option(click.Option):
    """An option listed under a heading."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Sectioned(click.Command):
    """A command whose ``--help`` lists its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list per heading, in order of appearance."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Output"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Word(click.Choice[str]):
    """One of a few words; a misspelt one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, or an error that lists the choices."""
        words = [str(choice) for choice in self.choices]
        if value in words:
            return str(value)
        name = param.opts[0] if param is not None else "the value"
        command = ctx.command_path if ctx is not None else "knee"
        raise InputError(
            f"{name}: {value!r} is not one of {', '.join(words)}",
            hint=RENAMED.get(str(value))
            or nearest(str(value), words)
            or f"use one of {', '.join(words)}; `{command} --help` explains them",
            code="unknown-choice",
            field=None if param is None else param.name,
        )
