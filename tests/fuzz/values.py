"""Values that programs trip over, for every place where a file or an argument has one."""

from __future__ import annotations

from random import Random
from typing import Any


class Raw(str):
    """A token that a writer puts into a document as it stands."""

    __slots__ = ()

    def __deepcopy__(self, _: object) -> Raw:
        return self


NUMBERS: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    7,
    8,
    -1,
    -8,
    16,
    100,
    4096,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**9,
    10**18,
    10**30,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    1.0,
    1.5,
    2.5,
    -0.5,
    0.1,
    1e-9,
    1e9,
    1e30,
    1e300,
    1.7e308,
    5e-324,
    1e-300,
    -1e300,
    True,
    False,
)
UNWRITABLE: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    10**400,
    10**5000,
    Raw("1e400"),
    Raw("-1e999"),
)
TOKENS = tuple(
    map(
        Raw,
        (
            "1979-05-27",
            "1979-05-27T07:32:00Z",
            "07:32:00",
            "0x1f",
            "0o17",
            "1_000",
            "+5",
            ".5",
            "5.",
            "01",
            "NaN",
            "nan",
            "Infinity",
            "-inf",
            "undefined",
            "True",
            "'x'",
            '"\\ud800"',
            '"\\u0000"',
            '"\\x"',
            '"""',
            "{",
            "[",
            "}",
            "]",
            ",",
            "#",
            "//",
            "1e5",
            "1E+2",
            "-",
            "1.2.3",
            "[[]]",
            "[{}]",
            "{ a = 1 }",
            '{"a": 1}',
            "0.1e-5000",
            "1e99999999",
        ),
    )
)
TEXTS: tuple[str, ...] = (
    "",
    " ",
    "x",
    "a" * 300,
    "é",
    "日本語",
    "\u202e",
    "\x1b[31m",
    "\n",
    "a\nb",
    "\r\n",
    "\t",
    "\0",
    "a\0b",
    "\ud800",
    "\udcff",
    "\U0010ffff",
    "０１２",
    "²",
    "١٢",
    "error: no",
    "{}",
    "{tp}",
    "{0}",
    "{tp.__class__}",
    "%s",
    "%(x)s",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1",
    "1e3",
    "1e400",
    "1_000",
    "0x10",
    " 5 ",
    "5 ",
    "+5",
    "1,000",
    "true",
    "none",
    "None",
    "null",
    "[]",
    "[1, 2]",
    "..",
    ".",
    "../x",
    "a/b",
    "/proc/nope/x",
    "C:\\x",
    "~",
    "*",
    "?",
    "[",
    "(",
    "((a+)+)$",
    "'",
    '"',
    "`",
    "$HOME",
    "--",
    "-",
    "=",
    "a=b",
    "=b",
    "a=",
    ",",
    ",,",
    "a,b",
    "8..",
    "..8",
    "8..4",
    "1..8",
    "2 GB",
    "2 GiB",
    "1e999 GB",
    "-5 GB",
    "nan GB",
    "0 s",
    "5 us",
    "200 Gbit/s",
    "GB",
    "1 GB/s",
    "1 TFLOP/s",
    "2T",
    "70B",
    "1e12",
    "llama2-7b",
    "dgx-h100",
    "eager",
    "cpu",
    "bf16",
    "fsdp",
    "1f1b",
    "ok",
    "oom",
    "1979-05-27",
    "rank0.json",
    "<b>",
    "&amp;",
    "]]>",
    ";",
    "|",
    "a b",
)
LONG = ("a" * 5000, "9" * 5000, "é" * 5000, "(" * 2000, "-1 " * 2000, "1," * 3000, "a." * 2000, " " * 5000)
DEPTHS = (3, 40, 300, 1200, 30_000)


def text(rng: Random) -> str:
    """Some text."""
    chance = rng.random()
    if chance < 0.02:
        return rng.choice(LONG)
    if chance < 0.15:
        return "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xD7FF)))) for _ in range(rng.randrange(6))
        )
    return rng.choice(TEXTS)


def number(rng: Random) -> Any:
    """Some number, rarely one that no document can hold."""
    chance = rng.random()
    if chance < 0.1:
        return rng.choice(UNWRITABLE)
    if chance < 0.2:
        return rng.randrange(-(10 ** rng.randrange(1, 25)), 10 ** rng.randrange(1, 25))
    if chance < 0.25:
        return rng.uniform(-1, 1) * 10 ** rng.randrange(-30, 30)
    return rng.choice(NUMBERS)


def deep(rng: Random) -> Raw:
    """Lists or tables in each other, closed or not."""
    times = rng.choice(DEPTHS)
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ("{a=", "}")))
    return Raw(opened * times + ("1" + closed * times if rng.random() < 0.8 else ""))


def value(rng: Random) -> Any:
    """Anything at all."""
    chance = rng.random()
    if chance < 0.35:
        return number(rng)
    if chance < 0.7:
        return text(rng)
    if chance < 0.78:
        return rng.choice(TOKENS)
    if chance < 0.8:
        return deep(rng)
    if chance < 0.86:
        return None
    if chance < 0.93:
        return [value(rng) for _ in range(rng.randrange(4))]
    return {text(rng): value(rng) for _ in range(rng.randrange(3))}


def said(value: Any) -> str:
    """As text; Python itself refuses to write very large numbers."""
    try:
        return str(value)
    except ValueError:
        return "9" * 5000
