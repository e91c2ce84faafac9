"""The last recorded figures, ``recorded.toml``: for each script its date, its machine, its versions and its figures."""

from __future__ import annotations

import datetime
import os
import platform
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from figures import Figure

import knee

PATH = Path(__file__).with_name("recorded.toml")
DIGITS = 4
"""Significant ones; the rest is noise."""


def load() -> dict[str, Any]:
    """By script; empty before the first record."""
    return tomllib.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def rows(part: str) -> dict[str, dict[str, Any]]:
    """A script's recorded figures by name."""
    return {row["name"]: row for row in load().get(part, {}).get("figures", [])}


def save(parts: dict[str, list[Figure]], note: str) -> None:
    """Replace the records of these scripts; a script that measured nothing keeps its record."""
    whole = load()
    for part, figures in parts.items():
        if figures:
            whole[part] = header(note) | {"figures": [_row(figure) for figure in figures]}
    PATH.write_text(tomli_w.dumps(whole), encoding="utf-8")


def header(note: str = "") -> dict[str, Any]:
    """When, where and with which versions."""
    versions = {"numpy": np.__version__, "knee": knee.__version__}
    machine = f"{os.cpu_count()} {platform.machine()} cores"
    told = {"date": datetime.date.today(), "machine": machine, "python": platform.python_version(), **versions}
    return told | ({"note": note} if note else {})


def _row(figure: Figure) -> dict[str, Any]:
    row: dict[str, Any] = {"name": figure.name, "value": _rounded(figure.value), "unit": figure.unit}
    if figure.compared is not None:
        row["compared_with"] = figure.compared.name
        if figure.compared.value is not None:
            row["compared_value"] = _rounded(figure.compared.value)
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
