"""The notebook runs as it stands, and uses nothing but ``import knee``; tests/docs runs the pages."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def cells(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(cells: list[str]) -> dict[str, Any]:
    """One namespace, as a kernel has; a cell's last expression shows itself. What the cells have named."""
    names: dict[str, Any] = {}
    for source in cells:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert ast.unparse(node) == "import knee"
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            html = getattr(shown, "_repr_html_", None)
            assert html is None or "<table>" in html()
    return names


def test_the_notebook_runs() -> None:
    pytest.importorskip("altair")
    made = run(cells(ROOT / "examples" / "quickstart.ipynb"))
    assert made["step"].fits
    assert made["found"].best.plan.pp <= 2
    assert 8 < made["curve"].knee.gpus < 2048
    assert made["budget"].best.gpus <= 64
