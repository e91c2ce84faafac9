"""Bars on stderr while a command works."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar

PATIENCE_S = 1.0
"""Searches that take longer say how far they are."""
EVERY_S = 2.0
"""Between two lines about a search that looks at one thing after another."""
LINES_S = 10.0
"""Between two lines where there is no terminal to draw a bar on."""
REDRAWN_S = 0.2


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

    def __call__(self, what: str, done: int, total: int) -> None:
        """One line for what is being done, and for how much of it is."""
        if time.monotonic() - self.began_s > PATIENCE_S:
            click.echo(what + (f": {done / total:.0%}" if done and total else ""), err=True)


class Steady:
    """A line on stderr about what is being looked at, whenever a while has passed."""

    def __init__(self) -> None:
        self.last_s = time.monotonic()

    def __call__(self, what: str, *_: int) -> None:
        """It is looked at now."""
        if time.monotonic() - self.last_s > EVERY_S:
            self.last_s = time.monotonic()
            click.echo(f"looking at {what}", err=True)


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


class TenthsBar:
    """A live bar on a terminal; elsewhere a line on stderr for every tenth that is done."""

    def __init__(self, label: str) -> None:
        self.tenths = 0
        self.bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(label, total=None)

    def show(self, done: int, total: int, *, label: str, line: str) -> None:
        """So much is done: ``label`` stands beside the bar, and ``line`` is printed where there is none."""
        if self.bar is not None:
            self.bar.update(self.task, total=total, completed=done, description=label)
        elif (tenths := done * 10 // total) > self.tenths:
            self.tenths = tenths
            click.echo(line, err=True)

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
