"""The catalogue's fitted stacks and the carried errors are what ``tools/fit_published.py`` makes today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from knee.specs.load import load_profile
from lanes import with_nightly

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

pytest.importorskip("scipy")


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_published", ROOT / "tools" / "fit_published.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stack", with_nightly(["internevo"], ["megatron-lm-2022"]))
def test_a_stack_is_fitted_to_what_the_catalogue_says(stack: str) -> None:
    made = tool()
    fit = made.fitted_stack(stack, None)
    known = load_profile(stack).spec
    assert fit.values
    for path, value in made.rounded(fit.values).items():
        assert getattr(known, path.partition(".")[2]) == pytest.approx(value, rel=1e-2), path


def test_a_generic_profile_is_the_median_of_its_stacks() -> None:
    made = tool()
    stacks = [load_profile(name).spec for name in ("nanotron", "llm-foundry", "fms-fsdp", "internevo", "aa-scaling")]
    for name in ("gemm_scale", "stream_scale", "launch_s"):
        middle = sorted(getattr(stack, name) for stack in stacks)[2]
        assert getattr(load_profile("eager").spec, name) == pytest.approx(middle, rel=1e-2), name
    assert made.stand_in("internevo", "internevo") == "eager"
    assert made.stand_in("nemo", "mlperf_training_v3.1") == "nemo"
