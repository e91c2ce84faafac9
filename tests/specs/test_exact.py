"""Specs that are built without pydantic are those that pydantic builds."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from knee.specs.catalog import KINDS, Kind, Leaf, Source, Tree, entry_names, read_entry
from knee.specs.check import SPECS, _adapter, _plain, build, build_exact
from knee.specs.data_sheets import complete

USER = Source(value=None, kind="user", text="a test")
PLANS: list[dict[str, Any]] = [
    {},
    {"dp_shard": 8, "tp": 2, "sharding": "fsdp", "sequence_parallel": False},
    {"recompute": "blocks", "recompute_frac": 1, "tp_overlap_frac": None},
    {"placement": ["cp", "tp", "dp_shard", "dp_replicate", "pp"], "recompute_frac": 1.0},
]


def _tree(kind: Kind, name: str) -> Tree:
    tree = read_entry(kind, name)
    complete(kind, tree, [])
    return tree


def _plan_tree(options: dict[str, Any]) -> Tree:
    return {name: Leaf(value, USER) for name, value in options.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_the_catalogue_is_what_pydantic_builds(kind: Kind) -> None:
    for name in entry_names(kind):
        plain = _plain(_tree(kind, name), "", {})
        # The text distinguishes 1 from 1.0, which are equal.
        assert repr(build_exact(SPECS[kind], plain)) == repr(_adapter(SPECS[kind]).validate_python(plain)), name


@pytest.mark.parametrize("options", PLANS)
def test_plans_are_what_pydantic_builds(options: dict[str, Any]) -> None:
    plain = _plain(_plan_tree(options), "", {})
    assert repr(build_exact(SPECS["plan"], plain)) == repr(_adapter(SPECS["plan"]).validate_python(plain))


@pytest.mark.parametrize(
    "options",
    [
        {"tp": "2"},
        {"tp": 2.0},
        {"tp": True},
        {"tp": 0},
        {"sequence_parallel": 1},
        {"sharding": "zero3"},
        {"sharding": ["fsdp"]},
        {"recompute_frac": "0.5"},
        {"recompute_frac": 10**400},
        {"placement": "tp"},
        {"placement": ["\udcff"]},
        {"tpp": 2},
    ],
)
def test_a_value_that_needs_a_conversion_or_is_wrong_is_left_to_pydantic(options: dict[str, Any]) -> None:
    assert build_exact(SPECS["plan"], options) is None


def test_a_text_that_pydantic_converts_still_is() -> None:
    mistakes: list[Any] = []
    assert build("plan", _plan_tree({"tp": "2"}), mistakes).tp == 2
    assert not mistakes


def test_names_of_the_catalogue_do_not_import_pydantic() -> None:
    code = (
        "import sys, knee\n"
        "knee.simulate('llama2-7b', cluster='dgx-h100', gpus=16, local_batch=2, tp=2)\n"
        "print([name for name in ('pydantic', 'rich', 'numpy.ma', 'importlib.metadata') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
