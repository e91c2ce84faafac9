"""Users' patterns in time linear in the names that they are tried on.

``re`` tries one way after the other through a text, and there may be more ways than anybody has time for: a name that
says ``nccl`` a thousand times is enough for ``nccl.*reduce.*f32``. Here all ways are gone at once, letter by letter
(Thompson, 1968), and steps that were taken before are remembered. ``re`` parses the pattern, and tells what a single
letter fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

MOST_STATES = 1000
"""Of a pattern; a repeat has those of what it repeats as often as it is counted."""
MOST_STEPS = 20_000
"""That are remembered."""
LONGEST_NAME = 10_000
"""Letters of a name that are looked at; kernels of templates have some thousand."""
ONE_LETTER = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
ALL, LETTER, EDGE, END = range(4)
"""States: go on in several ways, with a letter, at an edge; found."""
State = tuple[int, Any, tuple[int, ...]]
"""What it is, its test, and the states after it."""


class NotLinear(ValueError):
    """The pattern has what can only be tried one way after the other, or is too large."""


class LinearPattern:
    """A regular expression, case ignored, that is looked for anywhere in a name."""

    def __init__(self, pattern: str) -> None:
        """Raises ``re.error`` where it is no expression, ``NotLinear`` where it is none for us."""
        tree = _parser.parse(pattern, re.IGNORECASE)
        self.states: list[State] = [(END, None, ())]
        self.size = 0
        self.has_edges = False
        self.start = self._part(tree, 0, tree.state.flags)
        self.steps: dict[tuple[frozenset[int], str, str], frozenset[int] | None] = {}

    def search(self, name: str) -> bool:
        """Whether it is found in a name."""
        now, before = frozenset((self.start,)), ""
        for letter in (*name, "") if len(name) <= LONGEST_NAME else name[:LONGEST_NAME]:
            key = now, before, letter
            if key not in self.steps:
                self._remember(key)
            following = self.steps[key]
            if following is None:
                return True
            now = following
            if self.has_edges:
                before = letter
        return False

    def _remember(self, key: tuple[frozenset[int], str, str]) -> None:
        if len(self.steps) >= MOST_STEPS:
            self.steps.clear()
        self.steps[key] = self._step(*key)

    def _step(self, now: Iterable[int], before: str, letter: str) -> frozenset[int] | None:
        """The states after a letter, the first one always among them; None where all was found."""
        reached, open_, after = set(now), list(now), {self.start}
        while open_:
            kind, test, following = self.states[open_.pop()]
            if kind == END:
                return None
            if kind == LETTER:
                if letter and test(letter):
                    after.update(following)
            elif kind == ALL or test(before, letter):
                fresh = [state for state in following if state not in reached]
                reached.update(fresh)
                open_ += fresh
        return frozenset(after)

    def _part(self, tree: Iterable[tuple[Any, Any]], then: int, flags: int) -> int:
        """The state from which a part of the pattern leads to ``then``."""
        self._grow()  # also what is empty counts, as often as it is repeated
        for op, value in reversed(list(tree)):
            then = self._one(str(op), op, value, then, flags)
        return then

    def _one(self, name: str, op: Any, value: Any, then: int, flags: int) -> int:
        if name in ONE_LETTER:
            return self._state(LETTER, _test(op, value, flags), then)
        if name == "AT":
            self.has_edges = True
            return self._state(EDGE, _edge(str(value), flags), then)
        if name == "SUBPATTERN":
            _, added, taken, inside = value
            return self._part(inside, then, (flags | added) & ~taken)
        if name == "BRANCH":
            return self._state(ALL, None, *(self._part(way, then, flags) for way in value[1]))
        if name in ("MAX_REPEAT", "MIN_REPEAT"):  # whether a match is long does not matter
            return self._repeat(value, then, flags)
        raise NotLinear(
            "it has a look-ahead, a look-behind, a back-reference or an atomic part, which may never end"
        )

    def _repeat(self, value: Any, then: int, flags: int) -> int:
        (least, most, inside), first = value, then
        if most is _parser.MAXREPEAT:
            first = self._state(ALL, None)
            self.states[first] = (ALL, None, (self._part(inside, first, flags), then))
        else:
            for _ in range(most - least):
                first = self._state(ALL, None, self._part(inside, first, flags), then)
        for _ in range(least):
            first = self._part(inside, first, flags)
        return first

    def _state(self, kind: int, test: Callable[..., bool] | None, *following: int) -> int:
        self._grow()
        self.states.append((kind, test, following))
        return len(self.states) - 1

    def _grow(self) -> None:
        self.size += 1
        if self.size > MOST_STATES:
            raise NotLinear(f"it is too large: written out it has more than {MOST_STATES:,} letters and choices")


def _test(op: Any, value: Any, flags: int) -> Callable[[str], bool]:
    """Whether a letter fits, remembered."""
    state = _parser.State()
    state.flags = flags
    fits = _compiler.compile(_parser.SubPattern(state, [(op, value)]), flags).fullmatch
    known: dict[str, bool] = {}

    def test(letter: str) -> bool:
        if letter not in known:
            known[letter] = fits(letter) is not None
        return known[letter]

    return test


def _edge(which: str, flags: int) -> Callable[[str, str], bool]:
    """Whether a place between two letters is one; before the first and after the last is an empty one."""
    ends = ("", "\n") if flags & re.MULTILINE else ("",)
    tests: dict[str, Callable[[str, str], bool]] = {
        "AT_BEGINNING": lambda before, _: before in ends,
        "AT_BEGINNING_STRING": lambda before, _: not before,
        "AT_END": lambda _, after: after in ends,
        "AT_END_STRING": lambda _, after: not after,
        "AT_BOUNDARY": lambda before, after: _is_word(before) != _is_word(after),
        "AT_NON_BOUNDARY": lambda before, after: _is_word(before) == _is_word(after),
    }
    return tests[which]


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"
