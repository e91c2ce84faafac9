"""What ``second_process`` runs beside a page with many charts: their files and their pictures, last ones first."""

from __future__ import annotations

from pathlib import Path

from knee.base.second_process import asked_of_this, while_wanted
from knee.show.page.svg_cache import SvgCache, write_picture

if __name__ == "__main__":
    asked = asked_of_this()
    pictures, folder = SvgCache(Path(asked["kept"])), Path(asked["folder"])
    for name, spec in while_wanted(reversed(asked["files"])):
        write_picture(folder / name, spec, pictures.svg(spec))
    for spec in while_wanted(reversed(asked["on_page"])):
        pictures.svg(spec)
