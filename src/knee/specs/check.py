"""From an unchecked tree of values to a spec, with every mistake reported at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_origin

from knee import units
from knee.errors import SpecError
from knee.specs.catalog import SOURCE_KINDS, Leaf, Source, Tree, did_you_mean, walk
from knee.specs.fields import SPECS, Field, field_at, fields_of, known_keys, unit_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SET = "--set"
SMALLEST, LARGEST = 1e-30, 1e30
"""Of a quantity with a unit, in base SI: products of what lies between are finite."""
_MAY_BE_ZERO = ("head_size", "prefetch", "reduces_in_flight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing wrong with a file, and where."""

    place: str
    text: str
    hint: str | None = None


def raise_mistakes(label: str, mistakes: list[Mistake]) -> None:
    """One error that names them all, if there are any."""
    if not mistakes:
        return
    if len(mistakes) == 1:
        only = mistakes[0]
        label = "" if only.place.startswith((SET, label)) else label
        raise SpecError(f"{label}: {_sentence(only)}".removeprefix(": "), hint=only.hint)
    lines = [f"{m.place}: {m.text}".removeprefix(": ") + (f" ({m.hint})" if m.hint else "") for m in mistakes]
    raise SpecError("\n  ".join([f"{label} has {len(mistakes)} mistakes:", *lines]))


def _sentence(mistake: Mistake) -> str:
    """ "plan.tp is 0; ...": the place is the subject, unless the text names it or has another."""
    place, text = mistake.place, mistake.text
    if not place or text.startswith(f"{place}."):
        return text
    return f"{place} {text}" if text.startswith("is ") else f"{place}: {text}"


def build(kind: str, tree: Tree, mistakes: list[Mistake], prefix: str = "") -> Any:
    """The spec that a tree describes, or None with its mistakes added to the list."""
    from pydantic import ValidationError

    before = len(mistakes)
    bad: dict[str, Mistake] = {}
    plain = _plain(tree, "", bad)
    bad |= _flags_as_numbers(kind, tree)
    mistakes += [_moved(mistake, tree, prefix) for mistake in bad.values()]
    try:
        spec = _adapter(kind).validate_python(plain)
    except UnicodeEncodeError:  # bytes of an argument or of a file that are half of a letter
        mistakes.append(Mistake(place=prefix.rstrip("."), text="contains text that is not valid UTF-8"))
        return None
    except ValidationError as error:
        for mistake in (*(_worded(kind, item) for item in error.errors(include_url=False)), *_negatives(kind, tree)):
            if mistake.place not in bad:
                bad[mistake.place] = mistake
                mistakes.append(_moved(mistake, tree, prefix))
        return None
    return spec if len(mistakes) == before else None


def sources_of(kind: str, tree: Tree) -> dict[str, Source]:
    """Dotted path -> source of every value of an entry; what the entry leaves out has the field's default."""
    sources = {path: leaf.source for path, leaf in walk(tree) if path.rpartition(".")[2] != "name"}
    written = {known[:end] for known in sources for end in (*_dots(known), len(known))}
    for path, field in fields_of(kind).items():
        if path not in written and path.rpartition(".")[2] != "name" and ".attention." not in f".{path}":
            sources[path] = Source(value=field.default, kind="assumed", text="not given: the field's default")
    return sources


def _dots(path: str) -> list[int]:
    return [i for i, letter in enumerate(path) if letter == "."]


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    # Imported here: reading a spec is the only thing that needs it, and `knee --help` should not wait for it.
    from pydantic import TypeAdapter

    return TypeAdapter(SPECS[kind])


def _plain(tree: Tree, prefix: str, bad: dict[str, Mistake]) -> dict[str, Any]:
    """Values without their sources, in base SI; a value whose unit is wrong stays as written."""
    plain: dict[str, Any] = {}
    for key, node in tree.items():
        path = prefix + key
        if isinstance(node, Leaf):
            plain[key] = _number(node.value, path, bad)
        elif isinstance(node, list):
            plain[key] = [_plain(item, f"{path}.{number}.", bad) for number, item in enumerate(node)]
        else:
            plain[key] = _plain(node, path + ".", bad)
    return plain


def _number(value: Any, path: str, bad: dict[str, Mistake]) -> Any:
    unit = unit_of(path)
    word = str(value).lower()
    if unit is not None and word == "none":
        # only a quantity can be left unset this way: among words, "none" is a choice (recompute)
        return None
    if word.lstrip("+-") in ("inf", "nan", "infinity"):
        bad[path] = Mistake(place=path, text=f"{word} is not a finite number")
        return value
    if unit is None:
        return value
    try:
        number = units.parse(value, unit) if isinstance(value, str) else value
    except ValueError as error:
        bad[path] = Mistake(place=path, text=str(error))
        return value
    if unit != "frac" and isinstance(number, (int, float)) and number and not SMALLEST < abs(number) < LARGEST:
        bad[path] = Mistake(place=path, text=f"{word} is out of range: 0, or {SMALLEST:g} to {LARGEST:g}")
        return value
    return number


def _flags_as_numbers(kind: str, tree: Tree) -> dict[str, Mistake]:
    """true and false where a number belongs: Python would take them for 1 and 0."""
    return {
        path: Mistake(place=path, text=f"should not be {str(leaf.value).lower()}")
        for path, leaf in walk(tree)
        if isinstance(leaf.value, bool) and (field := field_at(kind, path)) and not _takes_flags(field)
    }


def _takes_flags(field: Field) -> bool:
    """Flags; and words, whose own complaint names those that there are."""
    return field.type is bool or get_origin(field.type) is Literal


def _negatives(kind: str, tree: Tree) -> list[Mistake]:
    """Numbers below any that a spec takes: a spec whose shape is wrong does not get to check them itself."""
    found = []
    for path, leaf in walk(tree):
        field = field_at(kind, path)
        value = _number(leaf.value, path, {})
        if field is None or field.type not in (int, float, float | None) or isinstance(value, bool):
            continue
        with suppress(TypeError, ValueError, OverflowError):
            if field.type is int and path not in _MAY_BE_ZERO and float(value) < 1:
                found.append(Mistake(place=path, text=f"is {value}; it must be at least 1"))
            elif float(value) < 0:
                found.append(Mistake(place=path, text=f"is {value}; it cannot be negative"))
    return found


def _moved(mistake: Mistake, tree: Tree, prefix: str) -> Mistake:
    """The mistake at its place in the file, or at the option that caused it."""
    leaf = dict(walk(tree)).get(mistake.place)
    place = prefix + mistake.place
    if leaf is not None and leaf.source.text == SET:
        place = f"{SET} {place}"
    return Mistake(place=place.rstrip("."), text=mistake.text, hint=mistake.hint)


def _worded(kind: str, item: Any) -> Mistake:
    """A pydantic error in our words."""
    place = ".".join(str(part) for part in item["loc"])
    table, _, key = place.rpartition(".")
    error = item.get("ctx", {}).get("error")
    if isinstance(error, SpecError):
        return _in_place(place, error)
    if item["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return Mistake(place=place, text="is missing")
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return Mistake(place=place, text=_unknown_key(kind, table, key))
    if item["type"] == "literal_error":
        words = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        place = place.removesuffix(".[key]")
        return Mistake(place=place, text=f"{item['input']!r} is not one of {words}")
    if item["type"].startswith(("dataclass", "dict", "tuple")):
        return Mistake(place=place, text=f"should be a table or a list, not {item['input']!r}")
    expected = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "a word"}
    wanted = expected.get(item["type"].partition("_")[0], item["msg"])
    return Mistake(place=place, text=f"should be {wanted}, not {item['input']!r}")


def _in_place(table: str, error: SpecError) -> Mistake:
    """A spec's own complaint; one about a single field ("gpu.sms is 0; ...") moves to that field's place."""
    if error.field is None:
        return Mistake(place=table, text=error.message, hint=error.hint)
    name = error.field.rpartition(".")[2]
    text = error.message.removeprefix(f"{error.field} ")
    return Mistake(place=f"{table}.{name}".lstrip("."), text=text, hint=error.hint)


def _unknown_key(kind: str, table: str, key: str) -> str:
    if key == "kind":
        return f"is not a field, nor one of the kinds of source: {', '.join(SOURCE_KINDS)}"
    known = known_keys(kind, table)
    close = did_you_mean(key, known)
    return "is not a field; " + (f"did you mean {close}?" if close else f"known are {', '.join(known)}")
