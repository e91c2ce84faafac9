"""Predicting a published source as if it had never been seen: by a profile that nothing of it was fitted to.

``catalog/validation/left_out.toml`` holds, for each source and each profile of its rows, the profile that stands for it
and the values that were fitted without the source (``tools/fit_published.py``). The profile is that of the source's own
stack where other sources have that stack, and a generic one else, so that facts learned from the source are gone too.
``moe_left_out.toml`` holds the same for rows with experts (``tools/fit_moe_runs.py``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from knee.specs.profile import Profile
from knee.trust.validation.published_runs import Setting
from knee.trust.validation.run_to_job import RunJob, job_of
from knee.trust.validation.stacks import catalog_profile, profile_name

FOLDER = files("knee") / "catalog" / "validation"
LEFT_OUT, MOE_LEFT_OUT = "left_out.toml", "moe_left_out.toml"


@cache
def left_out_profiles(name: str = LEFT_OUT) -> Mapping[str, Mapping[str, Profile]]:
    """Source -> name of a profile that its rows have -> the one that stands for it."""
    tables = tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
    return {source: {name: _profile(table) for name, table in profiles.items()} for source, profiles in tables.items()}


def _profile(table: Mapping[str, Any]) -> Profile:
    values: dict[str, Any] = {name: value for name, value in table.items() if name != "profile"}
    return replace(catalog_profile(table["profile"]), **values)


def unseen_job_of(setting: Setting) -> RunJob:
    """The run as knee would be asked for it if nothing of its source were known."""
    table = left_out_profiles(MOE_LEFT_OUT if setting.experts else LEFT_OUT)
    return job_of(setting, profile=table.get(setting.source, {}).get(profile_name(setting)))
