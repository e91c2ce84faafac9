"""SI units in and out: ``parse("3.35 TB/s", "bytes_per_s")`` and ``show(0.00125, "s")``.

Everything inside knee is a plain number in base SI units. Words with units exist only at the edges:
catalogue files and the command line on the way in, tables on the way out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
US, MS = 1e-6, 1e-3

_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6}
_PREFIX |= {"G": 1e9, "T": 1e12, "P": 1e15, "p": 1e-12}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2.0**40}

HOUR_S, DAY_S = 3600.0, 86_400.0
HUGE = 0.9995e15
"""From here on a number is written with an exponent."""
# dimension -> {unit as written: factor to base SI}
_UNITS: dict[str, dict[str, float]] = {
    "s": {
        "s": 1.0,
        "ms": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "ns": 1e-9,
        "min": 60.0,
        "h": HOUR_S,
        "d": DAY_S,
        "days": DAY_S,
    },
    "bytes": {p + "B": f for p, f in _PREFIX.items() if f >= 1} | {p + "B": f for p, f in _BINARY.items()},
    "bytes_per_s": {p + "B/s": f for p, f in _PREFIX.items() if f >= 1}
    | {p + u: f / 8 for p, f in _PREFIX.items() if f >= 1 for u in ("bit/s", "b/s", "bps")},
    "flop_per_s": {p + u: f for p, f in _PREFIX.items() if f >= 1 for u in ("FLOP/s", "flop/s", "FLOPS")},
    "w": {"W": 1.0, "kW": 1e3, "mW": 1e-3},
    "j_per_flop": {"J/FLOP": 1.0, "pJ/FLOP": 1e-12},
    "j_per_byte": {"J/B": 1.0, "pJ/B": 1e-12, "nJ/B": 1e-9},
    "usd_per_h": {"USD/h": 1.0, "$/h": 1.0},
    "frac": {"": 1.0, "%": 0.01},
}
_NUMBER = re.compile(r"^\s*+([+-]?(?:\d[\d_]*+(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+)\s*+(\S*+)\s*+$")


def dimension(field: str) -> str | None:
    """The dimension that a field's name carries in its suffix: ``hbm_bytes_per_s`` -> ``bytes_per_s``.

    ``None`` for counts and words, which carry no unit.
    """
    for name in sorted(_UNITS, key=len, reverse=True):
        if field == name or field.endswith("_" + name):
            return name
    return None


def parse(text: str | float, unit: str) -> float:
    """A number with a unit, in base SI. A bare number is taken to be in base SI already."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    match = _NUMBER.match(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit (for example {example(unit)!r})")
    number, written = float(match[1].replace("_", "")), match[2]
    if written == "":
        return number
    factor = _UNITS[unit].get(written)
    if factor is None:
        raise ValueError(f"{text!r}: {written!r} is not a unit of {unit} (for example {example(unit)!r})")
    return number * factor


def is_bare(text: object) -> bool:
    """Whether a quantity is written as a number alone."""
    match = _NUMBER.match(str(text))
    return match is not None and match[2] == ""


def with_unit(number: str, unit: str) -> str:
    """What a bare number may have meant: ``'200 GB/s' or '200 Gbit/s'``."""
    names = {
        "bytes": ("GB", "GiB"),
        "bytes_per_s": ("GB/s", "Gbit/s"),
        "flop_per_s": ("TFLOP/s",),
        "s": ("us", "ms", "s"),
        "j_per_flop": ("pJ/FLOP",),
        "j_per_byte": ("pJ/B",),
    }
    return " or ".join(f"'{number} {name}'" for name in names[unit])


def example(unit: str) -> str:
    """How a value of this dimension is written."""
    return {
        "s": "14 us",
        "bytes": "80 GB",
        "bytes_per_s": "3.35 TB/s or 400 Gbit/s",
        "flop_per_s": "989 TFLOP/s",
        "w": "700 W",
        "j_per_flop": "1.2 pJ/FLOP",
        "j_per_byte": "70 pJ/B",
        "usd_per_h": "2.95 USD/h",
        "frac": "0.85 or 85%",
    }[unit]


_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")),
    "bytes_per_s": ((TB, "TB/s"), (GB, "GB/s"), (MB, "MB/s"), (1.0, "B/s")),
    "flop_per_s": ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s")),
    "w": ((1.0, "W"),),
    "j_per_flop": ((1e-12, "pJ/FLOP"),),
    "j_per_byte": ((1e-12, "pJ/B"),),
    "usd_per_h": ((1.0, "USD/h"),),
    "frac": ((0.01, "%"),),
}


def show(value: float, unit: str, digits: int = 3) -> str:
    """A value as people read it: ``show(0.00125, "s")`` is ``1.25 ms``."""
    number, name = scaled_to_unit(value, unit, digits)
    return f"{number}%" if name == "%" else f"{number} {name}"


def scaled_to_unit(value: float, unit: str, digits: int = 3) -> tuple[str, str]:
    """The number and the unit that ``show`` writes: ``("1.25", "ms")``."""
    scales = _SCALES[unit]
    if value == 0:
        return "0", next((n for f, n in scales if f == 1.0), scales[0][1])
    factor, name = next(((f, n) for f, n in scales if abs(value) >= f), scales[-1])
    scaled = value / factor
    decimals = max(0, digits - len(str(int(abs(scaled)))))
    return f"{scaled:,.{decimals}f}", name


def short(count: float) -> str:
    """``7.12B``: as people write parameters and tokens; larger numbers, such as FLOP, as ``2.09e24``."""
    if count >= HUGE:
        return f"{count:.3g}".replace("e+", "e")
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= factor * 0.9995:
            return f"{count / factor:.3g}{letter}"
    return f"{count:.0f}"


def amount(value: float) -> str:
    """``1,152``, ``55.2``, ``0.0314``: three digits that count, so that what is small is not shown as zero."""
    return all_digits(value) if abs(value) >= 99.95 else f"{value:.3g}"


def precise(value: float) -> str:
    """``12,345``, ``0.01234``: four digits that count, or all of a large number's."""
    return all_digits(value) if value >= 1000 else f"{value:.4g}"


def all_digits(value: float) -> str:
    """``12,345``; a number with so many digits that nobody counts them, such as FLOP, as ``1.23e25``."""
    return f"{value:.4g}".replace("e+", "e") if abs(value) >= HUGE else f"{value:,.0f}"


def counted(value: float, noun: str) -> str:
    """``1 GPU``, ``2,048 GPUs``, ``0.5 days``."""
    text = amount(value)
    return f"{text} {noun}{'' if text == '1' else 's'}"


def list_words(words: Sequence[str], *, most: int | None = None) -> str:
    """``a, b and c``; with ``most``, the first of them and how many there are beside: ``a, b, c and 2 more``."""
    if most is not None and len(words) > most:
        words = [", ".join(words[:most]), f"{len(words) - most} more"]
    elif most is not None:
        return ", ".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0] if words else "none"


def duration(time_s: float) -> str:
    """``45 s``, ``4.2 min``, ``3.1 h``: how long something takes that takes longer than a step."""
    if time_s < 120.0:
        return f"{amount(time_s)} s"
    return f"{amount(time_s / 60.0)} min" if time_s < 7200.0 else f"{amount(time_s / 3600.0)} h"
