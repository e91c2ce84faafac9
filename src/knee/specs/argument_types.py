"""Arguments of the API held against the types that its signatures state: the door through which all of them come.

A value of another type is refused in one sentence with its field, before any work. Numbers of NumPy and whole floats
become Python's, an array or an iterator a tuple, and one name where several may be given a tuple of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from knee.base.errors import InputError, argument, either
from knee.specs import Plan
from knee.specs.catalog import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")
MANY: tuple[object, ...] = (Sequence, Iterable)
LONGEST_SHOWN = 60
"""Characters of a refused value in its error."""
KINDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    Path: "a path",
    Callable: "a function",
    Mapping: "a mapping",
    tuple: "a pair of key and value",
}


class _Mismatch(Exception):
    """The value is not of the type."""


def checked_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Check and convert what the function is called with, by its signature."""
    signature = inspect.signature(function)

    @functools.cache
    def types_of_parameters() -> dict[str, Any]:
        return {name: _evaluated(one, function) for name, one in signature.parameters.items()}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: _field(key, one) for key, one in value.items()}
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(_checked(name, one, types_of_parameters()[name]) for one in value)
            else:
                bound.arguments[name] = _checked(name, value, types_of_parameters()[name])
        return function(*bound.args, **bound.kwargs)

    return checked


def _evaluated(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """The type that an annotation names; Any where it is imported for type checkers only, or there is none."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    names = getattr(inspect.unwrap(function), "__globals__", {})
    with suppress(NameError, TypeError):
        return eval(parameter.annotation, dict(names))  # the text of knee's own signatures
    return Any


def _field(name: str, value: object) -> Any:
    """A field of a plan, whose own rules say more; only what is no number at all is refused here."""
    value = _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _refused(name, value, float)
    return value


def _checked(name: str, value: object, kind: Any) -> Any:
    try:
        return _converted(value, kind)
    except _Mismatch:
        raise _refused(name, value, kind) from None


def _converted(value: object, kind: Any) -> Any:
    if kind is Any or isinstance(kind, TypeVar):
        return value
    value = _plain(value)
    options = _options(kind)
    if Path in options and isinstance(value, (str, os.PathLike)):
        return _path(value)
    if len(options) == 1:
        return _one(value, options[0])
    # a text is itself before it is a sequence of one text
    for option in sorted(options, key=lambda one: get_origin(one) in MANY):
        with suppress(_Mismatch):
            return _one(value, option)
    raise _Mismatch


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _one(value: object, kind: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType) or kind is Any:
        return _converted(value, kind)
    if kind in _BUILT_IN:
        return _BUILT_IN[kind](value)
    if origin is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _mismatch()
    if origin in MANY or kind in MANY:
        return _several(value, get_args(kind)[0] if get_args(kind) else Any)
    if origin is tuple:
        return tuple(value) if isinstance(value, (tuple, list)) and len(value) == len(get_args(kind)) else _mismatch()
    if kind is None or kind is type(None):
        return None if value is None else _mismatch()
    if origin is Mapping and isinstance(value, Mapping) and get_args(kind)[0] is str:
        return value if all(isinstance(key, str) for key in value) else _mismatch()
    known = origin or kind
    return value if not isinstance(known, type) or isinstance(value, known) else _mismatch()


def _several(value: object, kind: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, os.PathLike, Mapping)):
        return (_converted(value, kind),)
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, Iterable):
        return (_converted(items, kind),)
    return tuple(_converted(item, kind) for item in items)


def _plain(value: object) -> object:
    """A number of NumPy or torch as Python's."""
    if type(value).__module__ in ("numpy", "torch") and getattr(value, "ndim", None) == 0:
        return value.item()  # type: ignore[attr-defined]
    return value


def _whole(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool):
        raise _Mismatch
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _Mismatch from None


def _number(value: object) -> float:
    """Whether it is in range, or a number at all (nan), is the question's own rule."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Mismatch
    return value


def _path(value: object) -> Path | str:
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
        raise _Mismatch
    return value  # type: ignore[return-value]


def _is(kind: type) -> Callable[[object], Any]:
    return lambda value: value if isinstance(value, kind) else _mismatch()


def _mismatch() -> Any:
    raise _Mismatch


_BUILT_IN: dict[Any, Callable[[object], Any]] = {
    int: _whole,
    float: _number,
    str: _is(str),
    bool: _is(bool),
    Path: _path,
}


def _refused(name: str, value: object, kind: Any) -> InputError:
    options = [one for one in _options(kind) if one is not type(None)]
    inner = [part for one in options for part in (_options(get_args(one)[0]) if get_origin(one) in MANY else (one,))]
    choices = [choice for one in inner if get_origin(one) is Literal for choice in get_args(one)]
    shown = repr(value)
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
    if choices:
        given = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        wrong = [one for one in given if one not in choices]
        close = did_you_mean(str(wrong[0]), choices) if wrong else None
        text = f"{argument(name)} is {shown}; it should be {' or '.join(choices)}"
        hint = f"did you mean {close}?" if close else f"use one of {', '.join(choices)}"
        return InputError(text, hint=hint, code="unknown-choice", field=name)
    expected = " or ".join(dict.fromkeys(_kind_words(one) for one in options))
    if value is None:
        hint = f"give {expected} as {argument(name)}, or leave it out if it has a default"
        return InputError(f"{argument(name)} is None", hint=hint, code="wrong-type", field=name)
    hint = either("call help() on the function to see its arguments", "the command's --help lists its options")
    return InputError(f"{argument(name)} is {shown}; it should be {expected}", hint=hint, code="wrong-type", field=name)


def _kind_words(kind: Any) -> str:
    if get_origin(kind) in MANY and get_args(kind):
        return "a list of " + " or ".join(dict.fromkeys(_several_words(one) for one in _options(get_args(kind)[0])))
    known = get_origin(kind) or kind
    return KINDS.get(known) or f"a {getattr(known, '__name__', str(known))}"


def _several_words(kind: Any) -> str:
    word = _kind_words(kind).removeprefix("a ")
    return "pairs of key and value" if get_origin(kind) is tuple else f"{word}s"


SIZES = ("gpus", "global_batch", "local_batch", "seq_len")
BATCHES = ("local_batch", "global_batch")


def require(given: Mapping[str, Any], needed: Sequence[str], hint: str) -> None:
    """Refuse a question that lacks an argument. ``local_batch`` stands for exactly one of both batches."""
    batches = [name for name in BATCHES if given.get(name) is not None]
    missing = [name for name in needed if given.get(name) is None and not (name in BATCHES and batches)]
    if missing:
        either_batch = f"{argument('local_batch')} (or {argument('global_batch')})"
        words = [either_batch if name == "local_batch" else argument(name) for name in missing]
        raise InputError(f"missing: {', '.join(words)}", hint=hint, code="missing-argument", field=missing[0])
    if len(batches) == 2:
        raise both_given(
            *BATCHES, hint="give only one of them; the global batch is the local batch times the number of GPUs"
        )


def both_given(first: str, second: str, *, hint: str) -> InputError:
    """The error for two arguments of which one is enough."""
    return InputError(
        f"{argument(first)} and {argument(second)} are both given", hint=hint, code="contradiction", field=first
    )


def not_in_range(name: str, value: str, rule: str, *, hint: str | None = None) -> InputError:
    """The error of an argument whose value breaks a rule."""
    return InputError(f"{argument(name)} is {value}; {rule}", hint=hint, code="out-of-range", field=name)


def checked_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that are fields of a plan; others are refused with the nearest."""
    known = [field.name for field in fields(Plan)]
    for name in plan:
        if name not in known:
            # Python's overrides are the command line's --set
            close = "overrides" if name == "set" else did_you_mean(name, [*known, *SIZES, "profile", "cluster"])
            text = f"{name} is neither an argument of this function nor a field of a plan"
            hint = f"did you mean {close}?" if close else f"a plan has {', '.join(known)}"
            raise InputError(text, hint=hint, code="unknown-argument", field=name)
    return dict(plan)
