"""The page's files: light, small enough to read, with the colours of knee's figures, and nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import knee
from knee.show.figures.palette import BAR, GRID, IDEAL, INK, MORE, MUTED, PARTS, SERIES, MarkStyle

PAGE = Path(knee.__file__).parent / "commands" / "serve" / "page"
MOST_BYTES, MOST_LINES = 1_500_000, 400
NAMED: dict[str, MarkStyle] = {
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "ideal": IDEAL,
    "bar": BAR,
    **PARTS,
    **{f"series-{i}": style for i, style in enumerate(SERIES)},
    **{f"more-{i}": style for i, style in enumerate(MORE)},
}


def test_the_page_is_light_and_its_modules_can_be_read() -> None:
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < MOST_BYTES
    own = [*PAGE.glob("*.js"), *PAGE.glob("*.css"), PAGE / "index.html"]
    assert {path.name: n for path in own if (n := path.read_text("utf-8").count("\n")) > MOST_LINES} == {}
    assert all(path.read_text("utf-8").startswith(("// ", "/* ", "<!doctype")) for path in own)  # says what it is for


@pytest.mark.slow
def test_the_types_of_its_scripts_agree() -> None:
    tsc = shutil.which("tsc", path=str(Path(sys.prefix, "tsc", "node_modules", ".bin"))) or shutil.which("tsc")
    if tsc is None:
        pytest.skip("TypeScript is not installed: `make lint` installs it where npm can be had")
    found = subprocess.run([tsc, "-p", PAGE / "jsconfig.json"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_nothing_is_inline_or_from_another_host() -> None:
    html = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", html)
    assert all((PAGE / address).is_file() for address in addresses if not address.startswith("#"))
    for path in [*PAGE.glob("*.js"), *PAGE.glob("*.css")]:
        assert set(re.findall(r"https?://[^\s\"'`)]+", path.read_text("utf-8"))) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("file", ["d3.min.js", "plot.umd.min.js"])
def test_libraries_have_their_version_and_licence(file: str) -> None:
    version = re.search(r"v(\d+\.\d+\.\d+)", (PAGE / "vendor" / file).read_text("utf-8")[:200])
    assert version is not None
    row = next(line for line in (PAGE / "vendor" / "README.md").read_text("utf-8").splitlines() if f"| {file} " in line)
    assert f"| {version[1]} |" in row
    assert "Permission to use" in (PAGE / "vendor" / f"{file.split('.')[0]}.LICENSE").read_text("utf-8")


def test_colours_are_those_of_the_figures() -> None:
    light, dark = (PAGE / "page.css").read_text("utf-8").split("prefers-color-scheme: dark", 1)
    for name, style in NAMED.items():
        for css, colour in ((light, style.light), (dark, style.dark)):
            found = re.search(rf"--{name}: (#\w+);", css)
            assert found is not None
            assert found[1] == colour, name
