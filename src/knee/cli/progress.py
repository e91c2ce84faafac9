"""Bars on stderr while a command works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar

import click

T = TypeVar("T")
PATIENCE_S = 1.0
"""Searches that take longer say how far they are."""
LINES_S = 10.0
"""Between two lines where there is no terminal to draw a bar on."""
REDRAWN_S = 0.2


def progress(items: Iterable[T], label: str, length: int) -> Iterator[T]:
    """The items, with a bar on stderr; where that is no terminal, lines."""
    if not sys.stderr.isatty():
        yield from _told(items, label, length)
        return
    with click.progressbar(items, label=label, length=length, file=sys.stderr) as bar:
        yield from bar


def _told(items: Iterable[T], label: str, length: int) -> Iterator[T]:
    """A line at the beginning, and one whenever a while has passed: logs of a long run say how far it is."""
    click.echo(label, err=True)
    last_s = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last_s >= LINES_S:
            last_s = time.monotonic()
            click.echo(f"{label.rstrip()}: {done:,} of {length:,}", err=True)
        yield item


class Patience:
    """Lines on stderr, on a terminal or not, once a search takes longer."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()

    def of(self, prefix: str = "") -> Callable[[str, float], None]:
        """What hears of a search's progress; its lines begin with the prefix."""

        def say(what: str, done_frac: float) -> None:
            if time.monotonic() - self.began_s > PATIENCE_S:
                click.echo(f"{prefix}{what}" + (f": {done_frac:.0%}" if done_frac else ""), err=True)

        return say


class Meter:
    """How far something is: on one line of a terminal; where there is none, in a line whenever a while has passed."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.last_s = time.monotonic()
        self.shown = ""

    def say(self, words: str) -> None:
        """Show it, if the last time is a while ago."""
        if time.monotonic() - self.last_s >= (REDRAWN_S if self.terminal else LINES_S):
            self.last_s = time.monotonic()
            click.echo(f"\r{words:<{len(self.shown)}}" if self.terminal else words, nl=not self.terminal, err=True)
            self.shown = words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.terminal and self.shown:
            click.echo(f"\r{'':<{len(self.shown)}}\r", nl=False, err=True)
