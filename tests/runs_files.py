"""Files of runs that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROW: dict[str, Any] = {
    "layers": 16,
    "hidden": 2048,
    "heads": 32,
    "gpu": "h100-80gb",
    "n_gpus": 16,
    "seq_len": 4096,
    "global_batch": 64,
}


def runs_file(path: Path, *rows: dict[str, Any]) -> Path:
    """A CSV whose columns are all that any row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)] + [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
