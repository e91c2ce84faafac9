"""Options of a plan, made from the declarations of ``specs.plan``: the same for every command that takes some."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import click

from knee.base.errors import argument, as_flags
from knee.commands.options.sections import Decorator, Word, option, options
from knee.specs.fields import descriptions
from knee.specs.plan import GIVEN, KNOBS, Knob, Plan


def add_all(added: Iterable[Decorator]) -> Decorator:
    """A decorator that adds options in this order."""
    return lambda function: reduce(lambda command, one: one(command), reversed(list(added)), function)


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
    named, help_text = f"{flag} {knob.name}", help_of(knob, default)
    if knob.kind is bool:
        named = f"{flag}/--no-{flag.removeprefix('--')} {knob.name}"
        return option(named, bool, help_text, section=section, default=None, show_default=False)
    if knob.many:
        return option(f"{named} {knob.metavar}", str, help_text, section=section, callback=_split)
    if knob.choices:
        return option(named, Word(knob.choices), help_text, section=section)
    # a share is read with its unit where the plan is made: 0.25 or 25%
    kind = str if knob.name.endswith("_frac") else knob.kind
    return option(f"{named} {knob.metavar}", kind, help_text, section=section)


def split_words(text: str) -> tuple[str, ...]:
    """Words that are joined by +, - or commas."""
    return tuple(re.split("[-+,]", text))


def _split(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, ...] | None:  # noqa: ARG001
    return None if text is None else split_words(text)


def _limits() -> Iterable[tuple[tuple[Any, ...], str]]:
    for name, knob in KNOBS.items():
        if knob.search == "limited":
            first = re.split("[.:]", help_of(knob))[0]
            yield (f"--max-{name} N", int), f"Maximum {first[0].lower()}{first[1:]}."
    for name, knob in KNOBS.items():
        if knob.search == "listed":
            flags = f"--{name.replace('_', '-')}"
            key = (flags, (Word(knob.choices),)) if knob.choices else (f"{flags} {knob.metavar}", (knob.kind,))
            yield key, f"Consider only this {knob.noun or name}. May be repeated."
    text = (
        'Consider only plans that satisfy this condition, for example "pp == 1 and tp <= 8" or "sharding != \'zero1\'".'
    )
    yield ("--only CONDITION", str), text


space_limits = options("Limits", dict(_limits()))
"""Which plans a search considers."""
plan_options = knob_options()
"""Every field of a plan."""
