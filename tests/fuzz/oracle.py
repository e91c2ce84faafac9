"""What must be true of every ending: a documented exit code, one error line at most, valid JSON, no traceback."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from fuzz.run import MEMORY_BYTES, STARTED, Outcome, TooLong

SIGNALS = (130, 143)
BUG = 1
"""Documented, and never right."""
FRAME = re.compile(r'File "[^"]*?/((?:knee|site-packages/\w+)/[^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that must not be."""

    verdict: str
    """crash, hang, memory, code, words, json, warning or outside."""
    place: str
    """Findings of one verdict and place are one."""
    detail: str


@cache
def documented_codes() -> frozenset[int]:
    """Exit codes that ``knee --help`` names."""
    from knee.commands.main import main

    paragraph = (main.help or "").partition("Exit codes:")[2]
    return (frozenset(int(code) for code in re.findall(r"\s(\d+)\s+(?=[a-z])", paragraph)) | set(SIGNALS)) - {BUG}


def judge(words: Sequence[str], outcome: Outcome) -> list[Finding]:
    """All that is wrong with it."""
    if outcome.error is not None:
        return [_exception(outcome)]
    found = [
        Finding(verdict="warning", place=re.sub(r"\d+(\.\d+)?", "N", c)[:120], detail=c) for c in outcome.complaints
    ]
    found += [Finding(verdict="outside", place=v.split(" of ")[0], detail=v) for v in outcome.violations]
    if outcome.peak_bytes > MEMORY_BYTES:
        detail = f"{outcome.peak_bytes / 2**20:,.0f} MiB more than before"
        found.append(Finding(verdict="memory", place=_command(words), detail=detail))
    if outcome.code == STARTED:
        return found
    if outcome.code == BUG and "Traceback (most recent" in outcome.err:
        return [*found, _crash(outcome.err)]
    if outcome.code not in documented_codes():
        found.append(Finding(verdict="code", place=f"{_command(words)} {outcome.code}", detail=outcome.err[-500:]))
    return found + _words(words, outcome) + _json(words, outcome)


def _exception(outcome: Outcome) -> Finding:
    error = outcome.error
    verdict = "hang" if isinstance(error, TooLong) else "memory" if isinstance(error, MemoryError) else "crash"
    return Finding(verdict=verdict, place=f"{type(error).__name__} at {_place(outcome.trace)}", detail=outcome.trace)


def _crash(err: str) -> Finding:
    """Of a program that says itself that it has a bug, after the traceback that it was asked for."""
    last = [line for line in err.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Panic\w*)?(:|$)", line)]
    name = next((line.partition(":")[0] for line in reversed(last) if not line.startswith(("error:", "hint:"))), "")
    return Finding(verdict="crash", place=f"{name} at {_place(err)}", detail=err[-4000:])


def _place(trace: str) -> str:
    frames = [frame for frame in FRAME.findall(trace) if frame[0].startswith("knee/")]
    return ":".join(frames[-1][::2]) if frames else "outside of knee"


def _words(words: Sequence[str], outcome: Outcome) -> list[Finding]:
    """One error line if it is refused, one hint at most, and nothing after them."""
    lines = outcome.err.removesuffix("\n").split("\n")
    errors = [number for number, line in enumerate(lines) if line.startswith("error:")]
    said = []
    if "Traceback (most recent" in outcome.err + outcome.out:
        said.append("a traceback is printed")
    if outcome.code and outcome.code not in SIGNALS and len(errors) != 1:
        said.append(f"{len(errors)} error lines")
    if not outcome.code and errors:
        said.append("an error line, and exit code 0")
    if outcome.code and len(errors) == 1:
        rest = [line for line in lines[errors[0] + 1 :] if not line.startswith("  ")]  # a list of several mistakes
        if len(rest) > 1 or any(not line.startswith("hint:") for line in rest):
            said.append("more than a hint after the error line")
        if lines[errors[0]].strip() == "error:":
            said.append("an error line without words")
    place = f"{_command(words)} {outcome.code}"
    return [Finding(verdict="words", place=f"{place}: {one}", detail=outcome.err[-1500:]) for one in said]


def _json(words: Sequence[str], outcome: Outcome) -> list[Finding]:
    """Under --json standard output is one JSON document, or nothing where the question was refused or nothing fits."""
    if (
        not _asks_json(words)
        or outcome.out.startswith(("Usage:", "knee "))
        or (outcome.code in (2, 3) and not outcome.out)
    ):
        return []
    try:
        json.loads(outcome.out, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        if outcome.code in (2, 4) and not outcome.out:
            return []
        name = f"{_command(words)} {outcome.code}: {re.sub(r'[0-9]+', 'N', str(error))[:60]}"
        return [Finding(verdict="json", place=name, detail=f"{error}\n{outcome.out[-1000:]}\n{outcome.err[-300:]}")]
    return []


def _asks_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` is an option there, and neither another option's value nor an argument."""
    from fuzz.kinds.arguments import taking_values

    for before, word in zip(("", *words), words, strict=False):
        if word == "--":
            return False
        if word == "--json" and before not in taking_values():
            return True
    return False


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")


def _command(words: Sequence[str]) -> str:
    known = {
        "sweep": ("run", "status", "cancel", "retry"),
        "study": ("run", "show", "list"),
        "data": ("prepare", "show"),
        "probe": ("kernels", "collectives", "power", "steps"),
        "trace": ("diff",),
    }
    first = words[0] if words else ""
    second = words[1] if len(words) > 1 and words[1] in known.get(first, ()) else ""
    return f"{first[:20]} {second}".strip()


def killed(how: str, place: str, stack: str) -> Finding:
    """A worker that had to be ended, or ended itself."""
    return Finding(verdict=how, place=place, detail=stack)


def where_of(stack: str) -> str:
    """The innermost place of knee in a stack that faulthandler wrote."""
    found = re.findall(r'File "[^"]*?/(knee/[^"]+)", line \d+ in (\S+)', stack)
    return ":".join(found[0]) if found else "outside of knee"


def trace_of(error: Any) -> str:
    """An exception's traceback as text."""
    return "".join(traceback.format_exception(error))
