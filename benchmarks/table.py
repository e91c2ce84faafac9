"""The table of ``make bench``: figures today, as last recorded, beside their aims, and beside a peer or a floor."""

from __future__ import annotations

from typing import Any

import recorded
from figures import Figure

HEAD = ("figure", "today", "recorded", "change", "", "aim", "", "compared with", "its value", "ratio")
RIGHT = {"today", "recorded", "change", "aim", "its value", "ratio"}


def show(parts: dict[str, list[Figure]]) -> None:
    """Print all figures, and what was recorded but not measured."""
    lines: list[tuple[str, ...]] = [HEAD]
    for part, figures in parts.items():
        before = recorded.rows(part)
        lines += [_line(figure, before.pop(figure.name, None)) for figure in figures]
        lines += [_not_measured(row) for row in before.values()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    for line in lines:
        cells = zip(HEAD, line, widths, strict=True)
        print("  ".join(f"{cell:>{width}}" if name in RIGHT else f"{cell:<{width}}" for name, cell, width in cells))
    print()
    print(f"Today: {_told(recorded.header())}.")
    records = recorded.load()
    told = {part: _told(records[part]) for part in parts if part in records}
    for header in dict.fromkeys(told.values()):
        print(f"Recorded ({', '.join(part for part in told if told[part] == header)}): {header}.")


def _line(figure: Figure, before: dict[str, Any] | None) -> tuple[str, ...]:
    change = f"{figure.value / before['value'] - 1:+.0%}" if before else ""
    mark = "WORSE" if before and figure.is_worse_than(before["value"]) else ""
    return (
        figure.name,
        f"{number(figure.value)} {figure.unit}",
        number(before["value"]) if before else "",
        change,
        mark,
        *_aim(figure),
        *_compared(figure, before),
    )


def _aim(figure: Figure) -> tuple[str, str]:
    if figure.aim is None:
        return "", ""
    sign = "x" if figure.aim_of == "ratio" else ""
    return f"{number(figure.aim)}{sign}", {True: "met", False: "missed", None: ""}[figure.meets_aim]


def _compared(figure: Figure, before: dict[str, Any] | None) -> tuple[str, str, str]:
    if figure.compared is None:
        return "", "", ""
    name = f"floor: {figure.compared.name}" if figure.compared.kind == "floor" else figure.compared.name
    if figure.compared.value is None:
        old = (before or {}).get("compared_value")
        return f"{name}: not installed", f"{number(old)} recorded" if old else "", ""
    assert figure.ratio is not None
    if not figure.compared_is_peer:
        ratio = f"{number(figure.ratio)}x floor"
    elif figure.ratio >= 1:
        ratio = f"{number(figure.ratio)}x better"
    else:
        ratio = f"{number(1 / figure.ratio)}x worse"
    return name, number(figure.compared.value), ratio


def _not_measured(before: dict[str, Any]) -> tuple[str, ...]:
    compared = before.get("compared_with", ""), number(before.get("compared_value"))
    return before["name"], "not measured", number(before["value"]), "", "", "", "", *compared, ""


def number(value: float | None) -> str:
    """Three significant digits, and all digits of larger whole parts."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _told(header: dict[str, Any]) -> str:
    said = (
        f"{header['date']}, {header['machine']}, Python {header['python']}, NumPy {header['numpy']}, "
        f"knee {header['knee']}"
    )
    return f"{said}; {header['note']}" if "note" in header else said
