"""A site file over another."""

from __future__ import annotations

from pathlib import Path

from knee.training.launch.site import load_site


def test_a_site_over_another_has_its_files(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "setup.sh").touch()
    (tmp_path / "ours" / "site.toml").write_text(
        'partition = "gpu"\nsetup = "setup.sh"\nenv = { A = "1", B = "2" }\n', encoding="utf-8"
    )
    (tmp_path / "mine.toml").write_text('base = "ours/site.toml"\ntime = "30"\nenv = { B = "3" }\n', encoding="utf-8")
    site = load_site(tmp_path / "mine.toml", {})
    assert (site.partition, site.time, site.env) == ("gpu", "30", {"A": "1", "B": "3"})
    assert site.setup == str(tmp_path / "ours" / "setup.sh")
