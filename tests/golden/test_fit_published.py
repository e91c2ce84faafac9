"""The catalogue's fitted stacks and the carried errors are what ``tools/fit_published.py`` makes today."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from knee.profile_fit.stack_fit import calibrate
from knee.specs.load import load_profile
from knee.trust.error_table import read_errors
from knee.validation.carried_set import carried_runs
from knee.validation.published_runs import Setting, read_runs
from knee.validation.run_errors import predict
from knee.validation.run_to_job import RunJob, job_of
from knee.validation.simulated_runs import cases_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "published_runs.csv"
ALONE = ("hf_ultrascale", "internevo", "korthikanti2022", "mosaicml_llm_foundry")
"""Sources that are the only one of their stack: left out, nothing is fitted, so that their errors need no fit."""

pytest.importorskip("scipy")


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_published", ROOT / "tools" / "fit_published.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unfitted() -> Callable[[Setting], RunJob]:
    """A run's job under its stack's profile as it is before a fit."""
    made, stacks = tool(), tomllib.loads((ROOT / "src/knee/catalog/profiles/stacks.toml").read_text())
    prior = cache(lambda profile: made.prior(profile, stacks, {}))

    def ask(setting: Setting) -> RunJob:
        asked = job_of(setting)
        return replace(asked, job=replace(asked.job, profile=prior(asked.job.profile)))

    return ask


def test_a_stack_is_fitted_to_what_the_catalogue_says() -> None:
    made = tool()
    runs = [run for run in carried_runs().runs if run.setting.source == "internevo" and run.status == "ok"]
    fit = calibrate(cases_of(runs, unfitted())[0], made.FITTED)
    known = load_profile("internevo").spec
    assert fit.values
    for path, value in made.rounded(fit.values).items():
        assert getattr(known, path.partition(".")[2]) == pytest.approx(value, rel=1e-2), path


def test_the_carried_errors_are_todays() -> None:
    found, _ = predict([run for run in read_runs(RUNS).runs if run.setting.source in ALONE], unfitted())
    today = sorted(p.error_frac for p in found if p.error_frac is not None)
    errors = read_errors()
    then = sorted(errors.numbers["unseen_error_frac"][errors.is_("source", *ALONE)].tolist())
    assert len(today) == len(then)
    assert today == pytest.approx(then, abs=2e-3, rel=2e-3)
