"""Charts drawn once: a picture lies under a digest of its spec and of what draws it, and is used while both hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import Executor, Future, wait
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from knee.base.digest import digest
from knee.base.files import make_folder, write_bytes, write_text
from knee.show.figures.vega import Spec, svg_to_png, to_svg

DRAWER = "vl-convert-python"


class SvgCache:
    """SVGs of specs, kept in a folder; without one each is drawn anew."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = None if folder is None else make_folder(folder)
        self.used: set[str] = set()
        self._ahead: dict[str, Future[str]] = {}
        """Pictures that a pool of processes draws into the folder."""

    def draw_ahead(self, pool: Executor, specs: Iterable[Spec]) -> None:
        """Have a pool of processes draw the pictures that are missing."""
        for name, spec in {f"{_digest(spec)}.svg": spec for spec in specs if not self.has(spec)}.items():
            self._ahead[name] = pool.submit(SvgCache(self.folder).svg, spec)

    def has(self, spec: Spec) -> bool:
        """Whether the picture lies here."""
        return self.folder is not None and (self.folder / f"{_digest(spec)}.svg").exists()

    def svg(self, spec: Spec) -> str:
        """The picture of a spec."""
        if self.folder is None:
            return to_svg(spec)
        name = f"{_digest(spec)}.svg"
        self.used.add(name)
        path = self.folder / name
        if name in self._ahead:
            wait([self._ahead.pop(name)])  # where it has failed, the picture is drawn here
        try:
            kept = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            kept = ""
        if kept.endswith("</svg>"):  # whole, as it was written
            return kept
        write_text(path, drawn := to_svg(spec))
        return drawn

    def remove_unused(self) -> None:
        """Remove pictures that nothing asked for."""
        for path in self.folder.glob("*.svg") if self.folder is not None else ():
            if path.name not in self.used:
                path.unlink(missing_ok=True)


def draw_and_write(kept: Path, stem: Path, spec: Spec) -> None:
    """Draw a chart, or take its picture from a folder of kept ones, and write its files."""
    write_picture(stem, spec, SvgCache(kept).svg(spec))


def write_picture(stem: Path, spec: Spec, svg: str) -> None:
    """SVG, PNG and Vega-Lite of a chart beside each other; a PNG that shows this very SVG stays."""
    path, png = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    same = path.exists() and png.exists() and path.read_bytes() == svg.encode()
    if not same:
        write_bytes(png, svg_to_png(svg))
        write_text(path, svg)
    write_text(stem.with_name(f"{stem.name}.vl.json"), json.dumps(spec, indent=1) + "\n")


def _digest(spec: Spec) -> str:
    try:
        drawer = version(DRAWER)
    except PackageNotFoundError:
        drawer = ""
    return digest([spec, drawer])[:24]
