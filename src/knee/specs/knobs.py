"""What a field of a plan declares besides its type, default and docstring.

Options of the command line, arguments of functions, columns, words, filters and the explorer's controls are made from
these declarations. A new field of ``Plan`` also needs its typed column in ``PlanTable``; a test names what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

Search = Literal["varied", "limited", "listed", "kept", "fixed"]
"""What a search for a plan does with a field. varied: it tries every value. limited: every value up to ``max_<name>``.
listed: every value, or those that are listed. kept: it takes the value as given. fixed: all plans have the default;
``knee scale --best`` takes it as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One field of a plan. Its name, type, choices and default are read from the field itself by ``read_knobs``."""

    search: Search = "varied"
    needs: str | None = None
    """Degree without which the field means nothing: ``ep`` for the dispatcher of tokens."""
    words: str | None = None
    """How a value is written in a plan's words, as a format; by default its name and value. What begins with a space is
    joined to the words before it."""
    always: bool = False
    """Whether the words of a plan have it even where it is the default."""
    default_words: str = ""
    """The default as the help says it, where that is not one value."""
    filled: bool = False
    """Whether knee chooses the value from the job where it is not given."""
    simulated_only: bool = False
    """Whether neither knee's trainer nor an export has any value but the default."""
    metavar: str = "N"
    label: str = ""
    noun: str = ""
    """What a value is called in the limits of a search."""
    least: float = 1
    most: float | None = None
    slider: int | None = None
    """How far a slider goes; a question may go up to ``most``."""
    doubles: bool = False
    """Whether a slider moves by doublings."""
    choices: tuple[str, ...] = ()
    name: str = ""
    kind: type = int
    """int, float, bool or str."""
    hint: Any = None
    """The whole type, for checks of arguments."""
    optional: bool = False
    """Whether None is a value."""
    many: bool = False
    """Whether the value is a tuple of words."""
    joint: str = "+"
    """What joins the words of a tuple."""
    default: Any = None

    def describe(self, value: Any) -> str:
        """A value in words: ``tp 8``, ``no sequence_parallel``, ``hierarchical collectives``."""
        if self.kind is bool and self.words is None:
            return self.name if value else f"no {self.name}"
        shown = self.joint.join(value) if self.many else value
        if self.words is None:
            return f"{self.name} {shown:,}" if self.kind is int else f"{self.name} {shown}"
        return self.words.format(shown)


def read_knobs(spec: type) -> dict[str, Knob]:
    """Field -> its declaration, completed with its name, type, choices and default."""
    hints = get_type_hints(spec, include_extras=True)
    return {one.name: _read(one.name, hints[one.name], one.default) for one in fields(spec)}


def _read(name: str, hint: Any, default: Any) -> Knob:
    said = Knob()
    if get_origin(hint) is Annotated:
        hint, said = get_args(hint)[0], next(one for one in get_args(hint) if isinstance(one, Knob))
    options = [one for one in get_args(hint) if one is not type(None)] if type(None) in get_args(hint) else [hint]
    many = get_origin(options[0]) is tuple
    inner = get_args(options[0])[0] if many else options[0]
    words = get_args(inner) if get_origin(inner) is Literal else ()
    return replace(
        said,
        name=name,
        kind=str if words else inner,
        hint=hint,
        choices=said.choices or words,
        optional=type(None) in get_args(hint),
        many=many,
        default=default,
    )


def names_of(knobs: Mapping[str, Knob], *searches: Search) -> tuple[str, ...]:
    """Names of the fields with which a search does this."""
    return tuple(name for name, knob in knobs.items() if knob.search in searches)
