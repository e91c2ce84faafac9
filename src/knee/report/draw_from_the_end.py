"""What ``second_process`` runs beside a page with many charts: their pictures, last ones first."""

from __future__ import annotations

from pathlib import Path

from knee.report.svg_cache import SvgCache
from knee.second_process import asked_of_this, while_wanted

if __name__ == "__main__":
    asked = asked_of_this()
    pictures = SvgCache(Path(asked["folder"]))
    for spec in while_wanted(reversed(asked["specs"])):
        pictures.svg(spec)
