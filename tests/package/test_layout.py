"""The layout of the package: DESIGN.md and the linter agree, there are few entries, and no circle of imports."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNEE = ROOT / "src" / "knee"
BESIDE = {"__init__.py", "__main__.py", "py.typed", "catalog", "__pycache__"}
MOST_PACKAGES = 9


def contract() -> list[str]:
    """The packages in the order of the linter, from top to bottom."""
    (layers,) = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return [layer.removeprefix("knee.") for layer in layers["layers"]]


def test_design_lists_the_packages_in_the_order_of_the_linter() -> None:
    table = (ROOT / "DESIGN.md").read_text(encoding="utf-8").split("| package | what is in it")[1].split("\n\n")[0]
    assert [re.findall(r"`(\w+)/`", row.split("|")[1])[0] for row in table.splitlines()[2:]] == contract()


def test_the_package_has_few_entries_and_each_says_what_it_is() -> None:
    entries = {path.name for path in KNEE.iterdir()} - BESIDE
    assert entries == set(contract())
    assert len(entries) <= MOST_PACKAGES
    for name in entries:
        assert ast.get_docstring(ast.parse((KNEE / name / "__init__.py").read_text("utf-8"))), name


def imports() -> dict[str, set[str]]:
    """Module -> modules of knee that it imports, also inside functions; imports for type checkers do not count."""
    paths = {".".join(path.relative_to(KNEE.parent).with_suffix("").parts): path for path in KNEE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "knee.__init__"}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        written = [node for node in statements(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        asked = {(node.module or "", alias.name) for node in written for alias in node.names}
        found[name] = {f"{module}.{leaf}" if f"{module}.{leaf}" in modules else module for module, leaf in asked}
        found[name] &= modules.keys() - {name}
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements inside, apart from those for type checkers; expressions have none and are many."""
    for part in (part for name in ("body", "orelse", "finalbody", "handlers") for part in getattr(node, name, ())):
        if not (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"):
            yield part
            if isinstance(getattr(part, "body", None), list):
                yield from statements(part)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"a"}})
    found = imports()
    assert len(found) > 300
    assert circle(found) == []


def test_a_class_name_is_used_once() -> None:
    names = [name for path in KNEE.rglob("*.py") for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.M)]
    assert [name for name, count in Counter(names).items() if count > 1 and not name.startswith("_")] == []
