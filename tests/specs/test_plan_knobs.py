"""A plan's knobs are declared once: what is made from the declarations has all of them."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
from click.testing import CliRunner

import knee
from knee.commands.main import main
from knee.specs.fields import descriptions
from knee.specs.plan import KNOBS, Knob, Plan, plan_words
from knee.specs.plan_table import COLUMNS, SIZES, PlanTable, column_of, table_of

VALID: dict[str, dict[str, Any]] = {
    "recompute_frac": {"recompute": "blocks"},
    "recompute_modules": {"recompute": "modules"},
    "recompute": {"recompute_modules": ("mlp",)},
    "fp8_recipe": {"precision": "fp8"},
    "virtual_stages": {"schedule": "interleaved", "pp": 2},
    "schedule": {"pp": 2, "virtual_stages": 2},
    "sync_every": {"dp_replicate": 2},
    "sharding": {"dp_replicate": 2},
}
"""What a plan needs beside another value of a field."""


def other_value(knob: Knob) -> Any:
    """A value that is not the default."""
    if knob.many:
        return tuple(reversed(knob.default)) or knob.choices[:1]
    if knob.name in ("recompute", "schedule", "sharding"):
        return {"recompute": "modules", "schedule": "interleaved", "sharding": "ddp"}[knob.name]
    if knob.choices:
        return next(word for word in reversed(knob.choices) if word != knob.default)
    if knob.kind is bool:
        return not knob.default
    return {int: 2, float: 0.5 if knob.most == 1 else 1.5}[knob.kind]


def changed(knob: Knob) -> Plan:
    needs = {} if knob.needs is None else {knob.needs: 2}
    return Plan(**needs | VALID.get(knob.name, {}) | {knob.name: other_value(knob)})


def test_every_field_has_a_help_and_a_column() -> None:
    assert set(descriptions(Plan)) == {one.name for one in fields(Plan)} == set(KNOBS)
    assert {*COLUMNS, "placement"} == {*SIZES, *KNOBS}


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_a_value_survives_the_table_and_changes_the_words(knob: Knob) -> None:
    plan = changed(knob)
    columns = {name: column_of(name, [getattr(plan, name)]) for name in KNOBS if name != "placement"}
    sizes = {name: column_of("tp", [1]) for name in SIZES}
    assert PlanTable(**sizes, **columns, placement=plan.placement).plan(0) == plan  # type: ignore[arg-type]
    plain = replace(plan, **{knob.name: knob.default}) if knob.name not in VALID else Plan()
    assert plan_words(plan) != plan_words(plain)
    job = knee.simulate("llama2-7b", cluster="dgx-h100", gpus=8, local_batch=1).job
    assert table_of([job]).plan(0) == job.plan


@pytest.mark.parametrize("command", ["simulate", "scale", "train", "dryrun"])
def test_every_field_is_an_option(command: str) -> None:
    text = CliRunner().invoke(main, [command, "--help"]).output
    for name in KNOBS:
        assert f"--{name.removesuffix('_frac') if name == 'tp_overlap_frac' else name}".replace("_", "-") in text


def test_a_search_takes_what_it_keeps_and_limits() -> None:
    text = CliRunner().invoke(main, ["plan", "--help"]).output
    found = set(inspect.signature(knee.plan).parameters)
    for name, knob in KNOBS.items():
        argument = {"limited": f"max_{name}"}.get(knob.search, name)
        assert (argument in found) == (knob.search in ("kept", "limited", "listed"))
        assert (f"--{argument.replace('_', '-')}" in text) == (argument in found)


def test_moments_in_another_type_take_less_memory_and_time() -> None:
    asked: dict[str, Any] = {"cluster": "dgx-h100", "gpus": 8, "local_batch": 1}
    usual, same, narrow = (
        knee.simulate("llama2-7b", **asked, **more) for more in ({}, {"moment_dtype": "fp32"}, {"moment_dtype": "bf16"})
    )
    assert (same.step_s, same.memory_bytes) == (usual.step_s, usual.memory_bytes)
    assert narrow.step_s < usual.step_s
    # 2 moments of 2 bytes less, sharded over 8 GPUs
    assert usual.memory.optimizer_bytes / narrow.memory.optimizer_bytes == pytest.approx(2.0)  # type: ignore[union-attr]
