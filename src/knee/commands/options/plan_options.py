"""Options of a plan, made from the declarations of ``specs.plan``: the same for every command that takes some."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from knee.base.errors import argument, as_flags
from knee.commands.options.sections import Option, Word
from knee.specs.fields import descriptions
from knee.specs.knobs import Knob
from knee.specs.plan import GIVEN, KNOBS, Plan

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(*names: str, section: str, **settings: Any) -> Decorator:
    """An option under a heading of ``--help``."""
    return click.option(*names, cls=Option, section=section, **settings)


def add_all(options: Iterable[Decorator]) -> Decorator:
    """A decorator that adds options in this order."""
    added = list(options)

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(added):
            function = one(function)
        return function

    return add


def knob_options(
    names: Iterable[str] = tuple(KNOBS),
    *,
    section: str = "Plan",
    defaults: Mapping[str, str] | None = None,
    job_file: bool = False,
) -> Decorator:
    """Options for these fields of a plan.

    ``defaults`` replaces what the help says of a default. With ``job_file``, the default is the value of a job file.
    """
    found = []
    for name in names:
        default = (defaults or {}).get(name) or default_words(KNOBS[name])
        if job_file and (name in GIVEN or name == "sync_every") and name not in (defaults or {}):
            default = f"the job file's value, or {default}"
        found.append(_knob_option(KNOBS[name], section, default))
    return add_all(found)


def default_words(knob: Knob) -> str:
    """The default of a field as the help says it."""
    if knob.kind is bool:
        return "on" if knob.default else "off"
    value = knob.joint.join(knob.default) or "none" if knob.many else str(knob.default)
    return knob.default_words or value


def help_of(knob: Knob, default: str = "") -> str:
    """The text below a field, with options in place of fields, and the default after its first sentence."""
    first, end, rest = descriptions(Plan)[knob.name].partition(". ")
    if knob.many:
        first = f"{first.removesuffix('.')}, joined by {knob.joint} or commas: {', '.join(knob.choices)}"
    said = f"{first.removesuffix('.')}; default: {default}." if default else first.removesuffix(".") + "."
    with as_flags():
        return re.sub(r"`{1,2}(\w+)`{1,2}", lambda found: argument(found[1]), said + (f" {rest}" if end else ""))


def _knob_option(knob: Knob, section: str, default: str) -> Decorator:
    with as_flags():
        flag = argument(knob.name)
    settings: dict[str, Any] = {"section": section, "help": help_of(knob, default), "default": None}
    if knob.kind is bool:
        return option(f"{flag}/--no-{flag.removeprefix('--')}", knob.name, **settings)
    if knob.many:
        return option(flag, knob.name, metavar=knob.metavar, callback=_split, **settings)
    if knob.choices:
        return option(flag, knob.name, type=Word(knob.choices), **settings)
    # a share is read with its unit where the plan is made: 0.25 or 25%
    kind = str if knob.name.endswith("_frac") else knob.kind
    return option(flag, knob.name, type=kind, metavar=knob.metavar, **settings)


def split_words(text: str) -> tuple[str, ...]:
    """Words that are joined by +, - or commas."""
    return tuple(re.split("[-+,]", text))


def _split(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:  # noqa: ARG001
    return None if text is None else split_words(text)


def plan_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's part of a command's options."""
    return {name: options[name] for name in KNOBS}


def _limits() -> Iterable[Decorator]:
    for name, knob in KNOBS.items():
        if knob.search == "limited":
            first = re.split("[.:]", help_of(knob))[0]
            text = f"Maximum {first[0].lower()}{first[1:]}."
            yield option(f"--max-{name}", section="Limits", type=int, metavar="N", help=text)
    for name, knob in KNOBS.items():
        if knob.search == "listed":
            text = f"Consider only this {knob.noun or name}. May be repeated."
            kind = {"type": Word(knob.choices)} if knob.choices else {"type": knob.kind, "metavar": knob.metavar}
            yield option(f"--{name.replace('_', '-')}", section="Limits", multiple=True, help=text, **kind)
    yield option(
        "--only",
        section="Limits",
        metavar="CONDITION",
        help='Consider only plans that satisfy this condition, for example "pp == 1 and tp <= 8" '
        "or \"sharding != 'zero1'\".",
    )


space_limits = add_all(_limits())
"""Which plans a search considers."""
plan_options = knob_options()
"""Every field of a plan."""
