"""Whole runs (``--tokens``), recomputation policies, tables that fit the terminal, completion and examples."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import knee
from knee.base.errors import KneeError, SpecError
from knee.commands.main import COMMANDS, EXAMPLES, main, names_of
from knee.engine.energy import network_w_per_gpu
from knee.show.terminal import table
from knee.specs.load import load_cluster
from knee.specs.plan import Plan

ASK = ("llama2-7b", "--cluster", "dgx-h100", "--gpus", "64", "--local-batch", "2")


def ran(*args: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(main, args, env=env, standalone_mode=False)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.stdout


def simulated(**options: object) -> knee.Simulation:
    return knee.simulate("llama2-7b", cluster="dgx-h100", gpus=64, local_batch=2, **options)  # type: ignore[arg-type]


def test_a_whole_run_adds_up() -> None:
    run = json.loads(ran("simulate", *ASK, "--tokens", "2T", "--json"))["training"]
    assert run["gpu_hours"] == pytest.approx(run["days"] * 24 * 64)
    drawn = run["gpu_mwh"] + run["host_mwh"] + run["network_mwh"]
    assert run["energy_mwh"] == pytest.approx(drawn * run["pue"]) == pytest.approx(drawn + run["site_mwh"])
    assert run["co2e_kg"] == pytest.approx(run["energy_mwh"] * run["g_co2e_per_kwh"])
    assert run["low_days"] < run["days"] < run["high_days"]
    assert run == simulated(tokens=2e12).training == simulated(tokens="2T").training
    assert simulated().training is None


def test_a_job_on_one_node_needs_no_switches() -> None:
    cluster = load_cluster("dgx-h100").spec
    assert network_w_per_gpu(cluster, 8) == 0
    one, two, three = (network_w_per_gpu(cluster, gpus) for gpus in (64, 512, 4096))
    assert (two / one, three / one) == pytest.approx((3, 5))


def test_the_search_answers_for_the_recommended_plan_and_in_its_rows() -> None:
    found = knee.plan("llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, max_pp=1, max_cp=1, tokens="100B")
    assert found.training is not None
    assert found.to_dict()["training"] == found.training
    assert found.rows()[0]["training.days"] == pytest.approx(1e11 / found.plans[0].tokens_per_s / 86_400)


def test_recomputing_operators_lies_between_none_and_full() -> None:
    none, ops, full = (simulated(recompute=how, profile="compiled") for how in ("none", "ops", "full"))
    assert none.step_s < ops.step_s < full.step_s
    assert none.memory_bytes > ops.memory_bytes > full.memory_bytes


def test_a_policy_that_saves_nothing_says_so() -> None:
    codes = [getattr(note, "code", "") for note in simulated(recompute="attention").assumptions]
    assert "recompute-saves-nothing" in codes


def test_every_second_block_is_the_default_of_blocks() -> None:
    assert simulated(recompute="blocks").job.plan.recompute_frac == 0.5
    with pytest.raises(SpecError):
        Plan(recompute="full", recompute_frac=0.5)


def test_the_old_word_is_refused_with_both_of_its_meanings() -> None:
    with pytest.raises(KneeError) as error:
        simulated(recompute="selective")
    assert error.value.hint is not None
    assert "attention" in error.value.hint
    assert "ops" in error.value.hint


def test_a_narrow_terminal_does_without_the_least_columns() -> None:
    rows = [["first", "second", "third"], ["1" * 20, "2" * 20, "3" * 20]]
    assert table._fitting(rows, (1,), 80) == ([0, 1, 2], [])
    assert table._fitting(rows, (1,), 50) == ([0, 2], [1])


@pytest.mark.slow
def test_a_page_of_plans(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    ran("plan", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "16", "--html", str(page))
    assert page.read_text(encoding="utf-8").count("<table") >= 3


def completed(words: str) -> list[str]:
    env = {"_KNEE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    output = CliRunner().invoke(main, [], prog_name="knee", env=env, complete_var="_KNEE_COMPLETE").stdout
    return [line.partition(",")[2] for line in output.split()]


def test_the_shell_completes_names_of_the_catalogue() -> None:
    assert "llama2-7b" in completed("knee simulate llama2")
    assert "dgx-h100" in completed("knee simulate llama2-7b --cluster dgx-h")
    assert all(names_of(kind) for kind in ("model", "cluster", "profile", "grid", "study", "any"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_it_can_read(name: str) -> None:
    for line in EXAMPLES[name]:
        _, *words = shlex.split(line)
        group = click.Context(main, info_name="knee", help_option_names=["-h", "--help"])
        command = main.get_command(group, words[0])
        assert command is not None
        if isinstance(command, click.Group):
            inner = click.Context(command, parent=group, info_name=words[0])
            _, part, rest = command.resolve_command(inner, words[1:]) if len(words) > 1 else ("", None, [])
            if part is not None:
                part.make_context(words[1], rest, parent=inner)
        else:
            command.make_context(words[0], words[1:], parent=group)
