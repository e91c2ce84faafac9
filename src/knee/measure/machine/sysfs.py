"""Small files that the kernel writes; what cannot be read is None."""

from __future__ import annotations

import re
from pathlib import Path


def entries(folder: Path) -> list[Path]:
    """What a folder holds, ``mlx5_2`` before ``mlx5_10``; nothing where it cannot be read."""
    try:
        return sorted(
            folder.iterdir(), key=lambda path: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", path.name)]
        )
    except OSError:
        return []


def text_of(file: Path) -> str | None:
    """What a file says, without the ends."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def number_of(file: Path) -> int | None:
    """A count; the kernel writes -1 for what it does not know."""
    text = text_of(file)
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None
