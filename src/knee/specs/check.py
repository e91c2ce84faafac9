"""From unchecked values of a file to a spec or another dataclass, with every mistake reported at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from knee.base import units
from knee.base.errors import FieldError, SpecError
from knee.specs.catalog import SOURCE_KINDS, Leaf, Source, Tree, did_you_mean, walk
from knee.specs.fields import SPECS, field_at, fields_of, known_keys, optional_table, types_of, unit_of
from knee.specs.plan import RENAMED

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

# Specs from values that already have the types of their fields, as all of the catalogue do. Importing pydantic and
# preparing it for the specs takes longer than reading the catalogue. It is needed only for a value that has to be
# converted, such as the text of an option, and for mistakes, which it reports all at once.


def build_exact(spec: type, values: Mapping[str, Any]) -> Any:
    """The spec that pydantic would build, or None if a value needs a conversion or is refused."""
    try:
        return build_spec(spec, values)
    except (KeyError, OverflowError, TypeError, ValueError):  # an unknown or missing key, or a rule of the spec
        return None


def build_spec(spec: type, values: Mapping[str, Any]) -> Any:
    """The spec of values that have its fields' types; KeyError, OverflowError, TypeError or ValueError otherwise."""
    types = types_of(spec)
    return spec(**{name: _exact(types[name], value) for name, value in values.items()})


def _exact(kind: Any, value: Any) -> Any:
    origin, given = get_origin(kind), type(value)
    if kind is float and given in (int, float):
        return float(value)
    if kind is Any:
        return value
    if kind is str and given is str and (value.isascii() or value.encode()):  # half a letter of UTF-16 is refused
        return value
    if kind in (bool, int) and given is kind:
        return value
    if origin is Literal and given is str and value in get_args(kind):
        return value
    if origin in (Union, UnionType):
        return None if value is None else _exact(get_args(kind)[0], value)
    if origin is tuple and given in (list, tuple):
        return tuple(_exact(get_args(kind)[0], item) for item in value)
    if origin is dict and given is dict:
        of_key, of_value = get_args(kind)
        return {_exact(of_key, key): _exact(of_value, item) for key, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind) and given is dict:
        return build_spec(kind, value)
    raise TypeError(kind)


SET = "--set"
SMALLEST, LARGEST = 1e-30, 1e30
"""Of a quantity with a unit, in base SI: products of what lies between are finite."""
UNKNOWN_FIELD, MISSING_FIELD, UNKNOWN_CHOICE = "unknown-field", "missing-field", "unknown-choice"
NO_NUMBER, OUT_OF_RANGE, WRONG_TYPE = "not-a-number", "out-of-range", "wrong-type"
"""Codes of mistakes in files."""
PLAUSIBLE = {
    "bytes": (1e6, LARGEST),
    "bytes_per_s": (1e6, LARGEST),
    "flop_per_s": (1e9, LARGEST),
    "s": (0.0, 1.0),
    "j_per_flop": (0.0, 1e-6),
    "j_per_byte": (0.0, 1e-6),
}
"""Bare numbers that can be in base SI only, so that they need no unit. Watts, dollars and fractions never need one."""
PER_ELEMENT = ("rmsnorm_bytes", "logit_bytes")
"""Bytes that are counted one by one."""
_KERNELS = frozenset(("attention", "gemm"))  # tables of kernels: an entry need not have all of them
_MAY_BE_ZERO = (
    *("head_size", "window", "mtp_layers", "experts.shared_ffn", "experts.dense_layers", "latent_attention.q_rank"),
    *("prefetch", "reduces_in_flight"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing wrong with a file, and where."""

    code: str
    place: str
    text: str
    hint: str | None = None
    predicate: bool = False
    """Whether the place is the subject of the text, as in ``is 0; it must be at least 1``."""
    field: str | None = None
    """Field that the text names, where it is not the place."""


class SeveralMistakes(SpecError):
    """More than one thing wrong with a file; ``mistakes`` are all of them."""

    code = "several-mistakes"

    def __init__(self, message: str, mistakes: Sequence[Mistake], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.mistakes = tuple(mistakes)


def missing_field(place: str) -> Mistake:
    """What a file should say, and does not."""
    return Mistake(code=MISSING_FIELD, place=place, text="is missing", predicate=True)


def below(place: str, value: object, rule: str) -> Mistake:
    """A number below any that its field takes."""
    return Mistake(code=OUT_OF_RANGE, place=place, text=f"is {value}; {rule}", predicate=True)


def raise_mistakes(label: str, mistakes: Sequence[Mistake], hint: str | None = None) -> None:
    """Raise one error that names all mistakes, if there are any; ``hint`` is for those that have none of their own."""
    if not mistakes:
        return
    if len(mistakes) == 1:
        only = mistakes[0]
        label = "" if only.place.startswith((SET, label)) else label
        text, place = only.text, only.place
        # "plan.tp is 0; ...": the place is the subject, unless the text names it or has another
        if place and f".{place}." not in f".{only.field}":
            text = f"{place} {text}" if only.predicate else f"{place}: {text}"
        text, field = f"{label}: {text}".removeprefix(": "), only.field or place.removeprefix(f"{SET} ") or None
        raise SpecError(text, hint=only.hint or hint, code=only.code, field=field)
    lines = [f"{m.place}: {m.text}".removeprefix(": ") + (f" ({m.hint})" if m.hint else "") for m in mistakes]
    hint = next((mistake.hint for mistake in mistakes if mistake.hint), hint)
    if hint is None and label.endswith(".toml") and any(mistake.code == MISSING_FIELD for mistake in mistakes):
        hint = 'base = "NAME" in the file takes what it lacks from that entry of `knee catalog`'
    raise SeveralMistakes("\n  ".join([f"{label} has {len(mistakes)} mistakes:", *lines]), mistakes, hint=hint)


def build(kind: str, tree: Tree, mistakes: list[Mistake], prefix: str = "") -> Any:
    """The spec that a tree describes, or None with its mistakes added to the list."""
    before = len(mistakes)
    bad: dict[str, Mistake] = {}
    plain = _plain(tree, "", bad)
    if not bad and (spec := build_exact(SPECS[kind], plain)) is not None:
        return spec
    # Imported here: it takes 0.15 s to import and to prepare, and few questions need it.
    from pydantic import ValidationError

    bad |= _flags_as_numbers(kind, tree)
    mistakes += [_moved(mistake, tree, prefix) for mistake in bad.values()]
    try:
        spec = _adapter(SPECS[kind]).validate_python(plain)
    except UnicodeEncodeError:
        mistakes.append(_not_utf8(prefix.rstrip(".")))
        return None
    except ValidationError as error:
        for mistake in (*mistakes_of(error, plain, partial(known_keys, kind)), *_negatives(kind, tree)):
            if mistake.place not in bad:
                bad[mistake.place] = mistake
                mistakes.append(_moved(mistake, tree, prefix))
        return None
    return spec if len(mistakes) == before else None


def sources_of(kind: str, tree: Tree) -> dict[str, Source]:
    """Dotted path -> source of every value of an entry; what the entry leaves out has the field's default."""
    sources = {path: leaf.source for path, leaf in walk(tree) if path.rpartition(".")[2] != "name"}
    written = {known[:end] for known in sources for end, letter in enumerate(f"{known}.") if letter == "."}
    absent = {f"{path}." for path, field in fields_of(kind).items() if optional_table(field.type) and path not in tree}
    for path, field in fields_of(kind).items():
        if path.startswith(tuple(absent)):
            continue
        if path not in written and path.rpartition(".")[2] != "name" and _KERNELS.isdisjoint(path.split(".")):
            sources[path] = Source(value=field.default, kind="assumed", text="default value of the field")
    return sources


@cache
def _adapter(form: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(form)


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

    def refuse(code: str, text: str) -> Any:
        bad[path] = Mistake(code=code, place=path, text=text)
        return value

    if unit is not None and word == "none":
        # only a quantity can be left unset this way: among words, "none" is a choice (recompute)
        return None
    if word.lstrip("+-") in ("inf", "nan", "infinity"):
        return refuse("not-finite", f"{word} is not a finite number")
    if unit is None:
        return value
    try:
        number = units.parse(value, unit) if isinstance(value, str) else value
    except ValueError as error:
        return refuse("not-an-amount", str(error))
    if not isinstance(number, (int, float)):
        return number
    if isinstance(number, float) and not math.isfinite(number):  # 1e400
        return refuse("not-finite", f"{word} is not a finite number")
    if unit != "frac" and number and not SMALLEST < abs(number) < LARGEST:
        return refuse(OUT_OF_RANGE, f"{word} is out of range: it must be 0, or from {SMALLEST:g} to {LARGEST:g}")
    low, high = PLAUSIBLE.get(unit, (0.0, math.inf))
    # a bare number that base SI would not give: 48 may be GB, and 80e9 is bytes
    if units.is_bare(value) and number > 0 and not low <= number <= high and not path.endswith(PER_ELEMENT):
        return refuse("missing-unit", f"{word} has no unit; write {units.with_unit(word, unit)}")
    return number


def _flags_as_numbers(kind: str, tree: Tree) -> dict[str, Mistake]:
    """true and false where a number belongs: Python would take them for 1 and 0. Words have a complaint of their own,
    which names those that there are."""
    return {
        path: Mistake(code=WRONG_TYPE, place=path, text=f"should not be {str(leaf.value).lower()}")
        for path, leaf in walk(tree)
        if isinstance(leaf.value, bool)
        and (field := field_at(kind, path))
        and not (field.type is bool or get_origin(field.type) is Literal)
    }


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
                found.append(below(path, value, "it must be at least 1"))
            elif float(value) < 0:
                found.append(below(path, value, "it cannot be negative"))
    return found


def _moved(mistake: Mistake, tree: Tree, prefix: str) -> Mistake:
    """The mistake at its place in the file, or at the option that caused it."""
    leaf = dict(walk(tree)).get(mistake.place)
    place = prefix + mistake.place
    if leaf is not None and leaf.source.text == SET:
        place = f"{SET} {place}"
    return replace(mistake, place=place.rstrip("."))


# One translator of pydantic's errors, for every file that is read: specs, studies, sites and jobs of the trainer.

EXPECTED = {
    "bool": "true or false",
    "dataclass": "a table",
    "dict": "a table",
    "float": "a number",
    "int": "a whole number",
    "string": "text",
    "tuple": "a list",
}
"""First word of pydantic's type of an error -> what belongs there."""
CODES = {
    "finite_number": OUT_OF_RANGE,
    "float_parsing": NO_NUMBER,
    "greater_than": OUT_OF_RANGE,
    "int_from_float": NO_NUMBER,
    "int_parsing": NO_NUMBER,
    "int_parsing_size": NO_NUMBER,
    "less_than_equal": OUT_OF_RANGE,
    "too_short": OUT_OF_RANGE,
}
"""pydantic's type of an error -> code of the mistake; the rest is of a wrong type."""
LONG = 60
"""Characters of a value that an error quotes."""
MOST_LISTED = 60
"""Keys that an error lists."""


def validate(
    form: Callable[..., T],
    raw: Mapping[str, Any],
    label: str,
    *,
    hint: str | None = None,
    strict: bool = False,
    relative: bool = False,
    also: Sequence[str] = (),
) -> T:
    """The dataclass ``form`` of plain data, or SpecError with all mistakes.

    ``label`` is what errors call the data. ``strict`` converts no text to numbers. ``relative``: errors that tables of
    the form raise name fields of that table. ``also`` are keys that a file may have beside those of the form.
    """
    from pydantic import ValidationError

    try:
        adapter = _adapter(form)
        # only in JSON does strict validation take a list for a tuple
        made: T = (
            adapter.validate_json(json.dumps(raw, default=str), strict=True) if strict else adapter.validate_python(raw)
        )
        return made
    except UnicodeEncodeError:
        found = [_not_utf8("")]
    except ValidationError as error:
        found = mistakes_of(error, raw, lambda _: (*also, *all_keys(form)), relative=relative)
    raise_mistakes(label, found, hint)
    raise AssertionError(label)


def mistakes_of(
    error: ValidationError, raw: Any, known: Callable[[str], Sequence[str]], *, relative: bool = False
) -> list[Mistake]:
    """pydantic's errors about ``raw``, one for each place; ``known`` gives the keys of the table at a place."""
    found: dict[str, list[Mistake]] = {}
    there: dict[str, Any] = {}
    for item in error.errors(include_url=False):
        place, there_now = _locate(item["loc"], raw, missing=item["type"].startswith("missing"))
        mistake = _translate(item, place, there_now, known)
        if relative and mistake.field:
            mistake = replace(mistake, place=f"{place}.{mistake.field}".lstrip("."), field=None)
        found.setdefault(place, []).append(mistake)
        there[place] = there_now
    # several at one place: the value has none of the forms that it may have
    return [
        some[0]
        if len(set(some)) == 1
        else Mistake(code=WRONG_TYPE, place=place, text=f"cannot be {_quote(there[place])}", predicate=True)
        for place, some in found.items()
    ]


def _locate(loc: Sequence[str | int], raw: Any, *, missing: bool) -> tuple[str, Any]:
    """The dotted place in the file and what is there; pydantic's location also has names of types and of unions."""
    place: list[str] = []
    for number, part in enumerate(loc, start=1):
        inside = part in raw if isinstance(raw, dict) else isinstance(raw, list) and part in range(len(raw))
        if inside:
            raw = raw[part]
        if inside or (missing and number == len(loc)):
            place.append(str(part))
    return ".".join(place), raw


def _translate(item: Any, place: str, given: Any, known: Callable[[str], Sequence[str]]) -> Mistake:
    type_, context = item["type"], item.get("ctx", {})
    if type_ == "value_error":
        return _in_place(place, context["error"])
    if type_.startswith("missing"):
        return missing_field(place)
    if type_ in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(place, known)
    if type_ == "literal_error":
        words = context["expected"].replace("'", "").replace(" or ", ", ")
        text = f"{_quote(given)} is not one of {words}"
        return Mistake(code=UNKNOWN_CHOICE, place=place, text=text, hint=RENAMED.get(str(given)))
    if type_.startswith("union_tag"):
        place = f"{place}.{context['discriminator'].strip(chr(39))}".lstrip(".")
        if type_ == "union_tag_not_found":
            return missing_field(place)
        text = f"is {_quote(context['tag'])}, which is none of {context['expected_tags']}"
        return Mistake(code=UNKNOWN_CHOICE, place=place, text=text, predicate=True)
    if type_ == "tuple_type" and isinstance(given, dict):
        return Mistake(code=WRONG_TYPE, place=place, text=f"should be a list: [[{place}]]", predicate=True)
    expected = EXPECTED.get(type_.partition("_")[0])
    message = f"should be {expected}" if expected else item["msg"][:1].lower() + item["msg"][1:]
    return Mistake(code=CODES.get(type_, WRONG_TYPE), place=place, text=f"{message}, not {_quote(given)}")


def _in_place(table: str, error: ValueError) -> Mistake:
    """A spec's own complaint; one about a single field ("gpu.sms is 0; ...") moves to that field's place."""
    if isinstance(error, FieldError):
        name = str(error.field).rpartition(".")[2]
        return Mistake(code=error.code, place=f"{table}.{name}".lstrip("."), text=error.predicate, predicate=True)
    if isinstance(error, SpecError):
        return Mistake(code=error.code, place=table, text=error.message, hint=error.hint, field=error.field)
    return Mistake(code="not-an-amount", place=table, text=str(error))


def _unknown_key(place: str, known: Callable[[str], Sequence[str]]) -> Mistake:
    table, _, key = place.rpartition(".")
    keys = known(table)
    close, listed = did_you_mean(key, keys), f"; known fields: {', '.join(keys)}"
    text = "is not a field" + (listed if close is None and len(keys) <= MOST_LISTED else "")
    if key == "kind" and key not in keys:
        close, text = None, f"is neither a field nor a kind of source: {', '.join(SOURCE_KINDS)}"
    hint = None if close is None else f"did you mean {close}?"
    return Mistake(code=UNKNOWN_FIELD, place=place, text=text, hint=hint, predicate=True)


def _not_utf8(place: str) -> Mistake:
    return Mistake(code="not-utf8", place=place, text="contains text that is not valid UTF-8", predicate=True)


def _quote(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= LONG else f"{text[:LONG]}..."


@cache
def all_keys(form: type) -> tuple[str, ...]:
    """Every key that a file of this form may have, in any of its tables."""
    return tuple(dict.fromkeys(_keys_below(form, set())))


def _keys_below(hint: Any, seen: set[type]) -> Iterator[str]:
    if isinstance(hint, type) and is_dataclass(hint) and hint not in seen:
        seen.add(hint)
        for field in fields(hint):
            yield field.name
            yield from _keys_below(types_of(hint)[field.name], seen)
    for part in get_args(hint):
        yield from _keys_below(part, seen)
