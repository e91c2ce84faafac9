"""How options are declared, sections of ``--help``, and words that know their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from knee.base.errors import InputError
from knee.specs.catalog import nearest
from knee.specs.plan import RENAMED

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
PATH, FILE = click.Path(path_type=Path), click.Path(dir_okay=False, path_type=Path)


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


class RunsByDefault(click.Group):
    """A group whose first word may be what ``run`` takes: then that is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``knee sweep fig6 ...`` is ``knee sweep run fig6 ...``."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            self.check_first(args[0])
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def check_first(self, word: str) -> None:
        """Refuse a word that is more likely a misspelt subcommand."""


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


KEY_VALUE = object()
"""The type of ``--set``, whose texts become pairs."""


def _parse_pairs(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    texts: Sequence[str],
) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            hint = "for example --set fabric.nic_bytes_per_s=200Gbit/s"
            raise InputError(f"--set {text!r} is not key=value", hint=hint, code="not-key-value", field="overrides")
        pairs.append((key, value))
    keys = [key for key, _ in pairs]
    if twice := {key for key in keys if keys.count(key) > 1}:
        text = f"--set {min(twice)} is given twice"
        raise InputError(text, hint="give it once", code="contradiction", field="overrides")
    return pairs


def parameter_of(flags: str) -> str:
    """The parameter of an option: the word of ``flags`` that is neither a flag nor a placeholder, or the first flag."""
    own = [word for word in flags.split() if word.isidentifier() and word.islower()]
    return own[0] if own else flags.split()[0].removeprefix("--").replace("-", "_")


def option(flags: str, kind: Any, text: str, *, section: str = "Options", **settings: Any) -> Decorator:
    """An option with its type and its text under a heading of ``--help``.

    ``flags`` are its names, the parameter where that is another word, and what stands for its value: ``--timeout
    timeout_s SECONDS``. The type of a flag is ``bool``. A default is shown; other ``settings`` are those of click.
    """
    words = flags.split()
    names = [word for word in words if word.startswith("-") or (word.isidentifier() and word.islower())]
    settings |= {"is_flag": True} if kind is bool else {"type": str if kind is KEY_VALUE else kind}
    settings |= {"metavar": words[-1]} if words[-1] not in names else {}
    settings |= {"callback": _parse_pairs} if kind is KEY_VALUE else {}
    settings.setdefault("show_default", "default" in settings)
    return click.option(*names, cls=Option, section=section, help=text, **settings)


def options(section: str, table: dict[tuple[Any, ...], str]) -> Decorator:
    """A decorator that adds the options of a table in its order: ``flags`` and ``kind`` of ``option``, and a default
    where there is one -> the text. A type in a tuple may be repeated, and ``...`` as the default makes an
    option required."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for (flags, kind, *default), text in reversed(table.items()):
            settings: dict[str, Any] = {"multiple": True} if isinstance(kind, tuple) else {}
            if default:
                settings |= {"required": True} if default[0] is ... else {"default": default[0]}
            one = kind[0] if isinstance(kind, tuple) else kind
            function = option(flags, one, text, section=section, **settings)(function)
        return function

    return add


def as_json(text: str = "Print JSON; the name of each key ends in its unit.") -> Decorator:
    """``--json``, as ``as_json``."""
    return option("--json as_json", bool, text, section="Output")
