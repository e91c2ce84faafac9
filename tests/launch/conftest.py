"""What tests of sweeps start in place of the trainer, and a grid of four points: names that shells trip over."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from .sweeps import TINY

STUB = """#!/bin/bash
trap 'kill $!; exit 143' TERM
sleep "${STUB_S:-0}" & wait $!
echo "{\\"status\\": \\"done\\"}" > "$1/record.json"
"""


@pytest.fixture
def stub(tmp_path: Path) -> str:
    path = tmp_path / "it's a stub; $HOME.sh"
    path.write_text(STUB, encoding="utf-8")
    path.chmod(0o755)
    return shlex.quote(str(path))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / 'grid\'s "own".toml'
    path.write_text(TINY + "[[grid]]\ngpus = [1, 2]\nplan = { tp = [1, 2] }\n", encoding="utf-8")
    return path
