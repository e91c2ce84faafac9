"""Bars on stderr while a command works."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

import click

T = TypeVar("T")


def progress(items: Iterable[T], label: str, length: int) -> Iterator[T]:
    """The items, with a bar on stderr; where that is no terminal, one line."""
    with click.progressbar(items, label=label, length=length, file=sys.stderr) as bar:
        yield from bar
