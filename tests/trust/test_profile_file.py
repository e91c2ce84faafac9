"""The file of a fitted profile: what it inherits, and what it carries over from a file that it started from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from knee.specs.load import load_profile
from knee.trust.profile_fit.calibration import OwnProfile, profile_text


def written_from(ref: str, fitted: dict[str, float]) -> dict[str, Any]:
    """The file that a fit of no runs with these values would write."""
    fit: Any = SimpleNamespace(
        values=fitted, throughput_before=None, throughput_after=None, memory_before=None, memory_after=None
    )
    found = OwnProfile(fit=fit, left={}, held_out=None, kept_base={}, warnings=())
    runs: Any = SimpleNamespace(pairs=())
    text = profile_text(ref, load_profile(ref), found, runs, files=[Path("runs.csv")], date="2026-01-01")
    return tomllib.loads(text)


def test_a_profile_of_the_catalogue_is_inherited() -> None:
    assert written_from("eager", {}) == {"base": "eager"}


@pytest.mark.parametrize(("fitted", "stream_scale"), [({}, 1.3), ({"profile.stream_scale": 1.1}, 1.1)])
def test_the_own_values_of_a_file_are_carried_over(
    tmp_path: Path, fitted: dict[str, float], stream_scale: float
) -> None:
    """A fitted value takes the place of the file's; others of the catalogue are inherited, not repeated."""
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "eager"\nstream_scale = 1.3\nhop_scale = 2.0\n', encoding="utf-8")
    found = written_from(str(mine), fitted)
    values = {name: value["value"] for name, value in found.items() if name != "base"}
    assert (found["base"], values) == ("eager", {"stream_scale": stream_scale, "hop_scale": 2.0})
