"""Bars on stderr while a command works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Self, TypeVar

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

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


class Bars:
    """A bar on stderr for each thing that is counted, by its name; where that is no terminal, lines."""

    def __init__(self, *, least: int = 0, width: int = 0) -> None:
        self.least = least
        """What has no more items is not shown."""
        self.width = width
        """Of names, so that bars stand below each other."""
        self.terminal = sys.stderr.isatty()
        self.what: str | None = None
        self.last_s = 0.0
        self.bar: ProgressBar[int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """So many of it are done."""
        if total <= self.least:
            return
        if what != self.what:
            self._begin(what, total)
        if self.bar is not None:
            self.bar.update(done - self.bar.pos)
        elif done < total and done and time.monotonic() - self.last_s >= LINES_S:
            self.last_s = time.monotonic()
            click.echo(f"{what}: {done:,} of {total:,}", err=True)
        if done >= total:  # other lines may follow
            self._end()

    def _begin(self, what: str, total: int) -> None:
        self._end()
        label = f"{what:{self.width}}" if self.width else what
        self.what, self.last_s = what, time.monotonic()
        if self.terminal:
            self.bar = click.progressbar(length=total, label=label, file=sys.stderr)
            self.bar.__enter__()
        else:
            click.echo(label, err=True)

    def _end(self) -> None:
        if self.bar is not None:
            self.bar.__exit__(None, None, None)
        self.what = self.bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


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
