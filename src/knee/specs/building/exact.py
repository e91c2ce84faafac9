"""Specs from values that already have the types of their fields, as all of the catalogue do.

Importing pydantic and preparing it for the specs takes longer than reading the catalogue. It is needed only for a value
that has to be converted, such as the text of an option, and for mistakes, which it reports all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from knee.specs.fields import types_of


def build_exact(spec: type, values: Mapping[str, Any]) -> Any:
    """The spec that pydantic would build, or None if a value needs a conversion or is refused."""
    try:
        return _built(spec, values)
    except (KeyError, OverflowError, TypeError, ValueError):  # an unknown or missing key, or a rule of the spec
        return None


def _built(spec: type, values: Mapping[str, Any]) -> Any:
    types = types_of(spec)
    return spec(**{name: _exact(types[name], value) for name, value in values.items()})


def _exact(kind: Any, value: Any) -> Any:
    origin, given = get_origin(kind), type(value)
    if kind is float and given in (int, float):
        return float(value)
    if kind is str and given is str and value.isascii():  # half a letter is not, and is refused
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
        return _built(kind, value)
    raise TypeError(kind)
