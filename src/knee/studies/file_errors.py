"""What is wrong with a study file, in words: where, what, and the nearest key that there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from knee.errors import SpecError
from knee.specs.building.check import MISSING_FIELD, OUT_OF_RANGE, UNKNOWN_CHOICE, UNKNOWN_FIELD, WRONG_TYPE, Mistake
from knee.specs.catalog import did_you_mean

CODES = {
    "literal_error": UNKNOWN_CHOICE,
    "greater_than": OUT_OF_RANGE,
    "less_than_equal": OUT_OF_RANGE,
    "too_short": OUT_OF_RANGE,
    "finite_number": OUT_OF_RANGE,
}
"""pydantic's kinds of mistakes that are not about a type."""
LONG = 60
"""Characters of a value that are quoted."""


def mistakes_of(
    errors: Iterable[Mapping[str, Any]], raw: Mapping[str, Any], form: type
) -> tuple[list[Mistake], str | None]:
    """One mistake a place, its text a whole sentence, and the nearest key of ``form`` to the first that is not
    known."""
    found: dict[str, list[Mistake]] = {}
    there: dict[str, Any] = {}
    hint = None
    for error in errors:
        place, given = _walk(error["loc"], raw, error["type"])
        at = ".".join(map(str, place))
        there[at] = given
        found.setdefault(at, []).append(_mistake(error, at, given))
        if error["type"] == "unexpected_keyword_argument" and hint is None:
            close = did_you_mean(str(place[-1]), known_keys(form))
            hint = f"did you mean {close}?" if close else None
    # several of one place: none of the forms that a value may have is this one
    return [
        some[0]
        if len(set(some)) == 1
        else Mistake(code=WRONG_TYPE, place=at, text=f"{at} cannot be {_quoted(there[at])}")
        for at, some in found.items()
    ], hint


def _walk(loc: Sequence[str | int], raw: Any, kind: str) -> tuple[list[str | int], Any]:
    """The place in the file and what is there; names of types and of tests on the way are pydantic's own."""
    place: list[str | int] = []
    for number, part in enumerate(loc, start=1):
        inside = part in raw if isinstance(raw, dict) else isinstance(raw, list) and part in range(len(raw))
        if inside:
            raw = raw[part]
        if inside or (kind == "missing" and number == len(loc)):
            place.append(part)
    return place, raw


def _mistake(error: Mapping[str, Any], at: str, given: Any) -> Mistake:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "unexpected_keyword_argument":
        return Mistake(code=UNKNOWN_FIELD, place=at, text=f"{at} is not a known key")
    if kind == "missing":
        return Mistake(code=MISSING_FIELD, place=at, text=f"{at} is missing")
    if kind == "union_tag_not_found":
        return Mistake(code=MISSING_FIELD, place=f"{at}.test", text=f"{at}.test is missing")
    if kind == "union_tag_invalid":
        text = f"{at}.test is {context['tag']!r}, which is none of {context['expected_tags']}"
        return Mistake(code=UNKNOWN_CHOICE, place=f"{at}.test", text=text)
    if kind == "value_error":
        return _own_mistake(context["error"], at)
    if kind == "tuple_type" and isinstance(given, dict):
        return Mistake(code=WRONG_TYPE, place=at, text=f"{at} should be a list: [[{at}]]")
    message = error["msg"]
    text = f"{at}: {message[:1].lower()}{message[1:]}, not {_quoted(given)}"
    return Mistake(code=CODES.get(kind, WRONG_TYPE), place=at, text=text)


def _own_mistake(error: ValueError, at: str) -> Mistake:
    """What a form says of itself, or ``units`` of a quantity."""
    code, field = (error.code, error.field) if isinstance(error, SpecError) else ("not-an-amount", None)
    place = ".".join(part for part in (at, field) if part)
    return Mistake(code=code, place=place, text=f"{at}: {error}" if at else str(error))


def _quoted(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= LONG else f"{text[:LONG]}..."


@cache
def known_keys(form: type) -> tuple[str, ...]:
    """Every key that a file of this form may have, in any of its tables."""
    found: dict[str, None] = {"common": None}
    seen: set[type] = set()

    def visit(hint: Any) -> None:
        if isinstance(hint, type) and is_dataclass(hint):
            if hint in seen:
                return
            seen.add(hint)
            hints = get_type_hints(hint, include_extras=True)
            for one in fields(hint):
                found.setdefault(one.name)
                visit(hints[one.name])
        for part in get_args(hint):
            visit(part)

    visit(form)
    return tuple(found)
