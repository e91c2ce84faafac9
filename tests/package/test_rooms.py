"""The layout of the package: what DESIGN.md says of the rooms, how large they are, and that a name has one meaning."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KNEE = ROOT / "src" / "knee"
ROOMS = sorted({path.parent for path in KNEE.rglob("*.py")} - {KNEE})
MOST_ROOM_LINES, MOST_FILE_LINES = 3000, 400


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_design_lists_the_rooms_in_the_order_of_the_linter() -> None:
    table = (ROOT / "DESIGN.md").read_text(encoding="utf-8").split("| room | question")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    drawn = [set(re.findall(r"`(\w+)/?`", row)) for row in rows]
    (contract,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert drawn == [set(re.findall(r"knee\.(\w+)", layer)) for layer in contract["layers"]]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_and_its_files_stay_small(room: Path) -> None:
    sizes = {path.name: lines(path) for path in room.glob("*.py")}
    assert sum(sizes.values()) <= MOST_ROOM_LINES
    assert {name: size for name, size in sizes.items() if size > MOST_FILE_LINES} == {}


def test_a_class_name_is_used_once() -> None:
    names = [name for path in KNEE.rglob("*.py") for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.M)]
    assert [name for name, count in Counter(names).items() if count > 1 and not name.startswith("_")] == []
