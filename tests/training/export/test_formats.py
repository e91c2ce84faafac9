"""Exports of a plan: knee's own file gives the same job back, and other programs get options that they have."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from export_jobs import expert_jobs, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import knee
from knee.base.errors import InputError
from knee.specs.job import Job
from knee.specs.load import load_job
from knee.specs.plan import AXES, CP_METHODS, RECOMPUTES, SHARDINGS
from knee.specs.schedules import SCHEDULES
from knee.training.export.command_line import LaunchCommand, recorded
from knee.training.export.formats import TARGETS, export
from knee.training.export.megatron import _layout
from refusals import caught, kind

GOLDEN = Path(__file__).parent / "exports"


def read_back(job: Job, folder: Path) -> Job:
    path = folder / "plan.toml"
    path.write_text(export(job, "knee"), encoding="utf-8")
    loaded = load_job(path)
    assert loaded.assumptions == ()
    return loaded.spec


@cache
def grid() -> list[Job]:
    """Valid jobs with many kinds of plans."""
    jobs = []
    for sharding, tp, cp, (pp, schedule, v), recompute, overlap, method in list(
        itertools.product(
            SHARDINGS,
            (1, 4),
            (1, 2),
            (
                (1, "1f1b", 1),
                (4, "gpipe", 1),
                (4, "1f1b", 1),
                (4, "interleaved", 2),
                (2, "interleaved", 3),
                (4, "zero_bubble", 1),
            ),
            RECOMPUTES,
            (None, 0.5),
            CP_METHODS,
        )
    )[::5]:
        options = {
            "sharding": sharding,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "schedule": schedule,
            "virtual_stages": v,
            "recompute": recompute,
            "tp_overlap_frac": overlap,
            "cp_method": method,
            "micro_batch": 1,
        }
        options |= {"dp_shard": 2} if sharding == "hsdp" else {}
        try:
            jobs.append(made(**options))
        except InputError:
            continue
    return jobs


# knee's own file


@pytest.mark.slow
def test_every_plan_of_a_grid_comes_back(tmp_path: Path) -> None:
    assert len(grid()) > 100
    assert all(read_back(job, tmp_path) == job for job in grid()[::5])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_plan_comes_back(data: st.DataObject, tmp_path: Path) -> None:
    draw = data.draw
    job = draw(st.sampled_from(grid()))
    placement = tuple(draw(st.permutations(AXES)))
    frac = draw(st.floats(0.01, 1)) if job.plan.recompute == "blocks" else 1.0
    plan = replace(
        job.plan,
        placement=placement,
        recompute_frac=frac,
        prefetch=draw(st.integers(0, 8)),
        sequence_parallel=draw(st.booleans()),
        state_dtype=draw(st.sampled_from(("fp32", "bf16"))),
        reduce_dtype=draw(st.sampled_from(("fp32", "bf16"))),
        tp_overlap_frac=draw(st.none() | st.floats(0, 1)),
        sync_every=draw(st.integers(1, 1000)) if job.plan.dp_replicate > 1 else 1,
    )
    drawn = replace(job, plan=plan)
    assert read_back(drawn, tmp_path) == drawn


@pytest.mark.parametrize(
    "sets",
    [
        {"cluster.fabric.nic_bytes_per_s": "25 GB/s", "cluster.gpu.hbm_bytes": "100 GB", "profile.launch_s": "3 us"},
        {"cluster.fabric.tiers.0.hop_s": "3 us", "cluster.usd_per_gpu_h": "2.5 USD/h", "model.rope_base": "1e6"},
        {"profile.gather_overlap": "true", "profile.logit_bytes": "6", "model.head_size": "64"},
        {"cluster.gpu.attention.flash2.forward_frac": "0.5"},
    ],
)
def test_what_was_set_comes_back(sets: dict[str, str], tmp_path: Path) -> None:
    job = made(sets=sets)
    assert read_back(job, tmp_path) == job
    assert len(export(job, "knee").splitlines()) < 60


def test_specs_that_are_nobodys_come_back(tmp_path: Path) -> None:
    job = made("gpt3-175b", "dgx-a100", "fused", batch=64, seq_len=2048, tp=8, sharding="zero1")
    own = replace(
        job,
        model=replace(job.model, name='my "own" model'),
        profile=replace(job.profile, name="mine"),
        cluster=replace(job.cluster, name="ours", usd_per_gpu_h=None),
    )
    assert read_back(own, tmp_path) == own


def test_a_value_taken_away_comes_back(tmp_path: Path) -> None:
    job = made(profile="paper")
    assert job.profile.saves is not None
    bare = replace(job, profile=replace(job.profile, saves=None))
    assert read_back(bare, tmp_path) == bare
    gpu = replace(job.cluster.gpu, fp8_flop_per_s=None)
    older = replace(job, cluster=replace(job.cluster, gpu=gpu))
    assert read_back(older, tmp_path) == older


# Commands


def words_of(script: str) -> list[str]:
    """The command's words, as a shell would have them."""
    return shlex.split(script[script.index("\ntorchrun") :].replace("\\\n", " "))


def options_of(script: str) -> set[str]:
    return {word for word in words_of(script) if re.match(r"-[-a-z]|activation_checkpoint:", word)}


def scripts(to: str) -> dict[str, str]:
    found = {}
    more = [
        made(
            "llama3-405b",
            gpus=512,
            tp=8,
            pp=16,
            schedule="interleaved",
            virtual_stages=v,
            precision=p,
            batch=512,
            micro_batch=1,
        )
        for v in (2, 4)
        for p in ("bf16", "fp8")
    ]
    more += [made(cluster="dgx-b200", profile="eager", precision="fp4", sharding="zero1")]
    more += [made(precision="fp8", sharding="fsdp"), made(sharding="hsdp", dp_shard=8), made(state_dtype="bf16")]
    more += [
        made("gpt3-175b", "dgx-a100", "fused", tp=8, pp=8, seq_len=2048, sharding="zero1"),
        made("llama3-70b", tp=2, pp=6, gpus=96, batch=128 * 3, sharding="zero1"),
        made("llama2-7b", precision="fp16", sharding="zero1", batch=64, dp_replicate=2, seq_len=4096),
        made(recompute="blocks", recompute_frac=0.5, sharding="zero1"),
        made(recompute="full"),
        made(recompute="ops"),
        made(sharding="zero1", reduce_dtype="bf16"),
        made(sharding="zero1", pp=4, placement=["tp", "cp", "pp", "dp_shard", "dp_replicate"]),
        made(sharding="fsdp_no_reshard", reduce_dtype="bf16"),
        made(sharding="zero1", tp=2, sequence_parallel=False),
        made(profile="eager", tp=2, sequence_parallel=False),
        made("llama3-405b", gpus=512, tp=8, pp=16, sharding="zero1", batch=512),
        made(sharding="zero1", sets={"model.head_size": "64", "model.mlp": "relu2"}),
        made("qwen2.5-7b", sharding="zero1"),
        made("qwen3-8b", sharding="zero1"),
        made("mistral-7b-v0.1", sharding="zero1", sets={"model.rope_frac": "0.5"}),
        *expert_jobs(),
    ]
    for job in (*grid(), *more):
        try:
            found[repr(job)] = export(job, to)
        except InputError:
            continue
    return found


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_options_are_recorded_ones(tool: str) -> None:
    known = {*recorded()[tool]["options"], *recorded()["torchrun"]["options"]}
    emitted = set().union(*(options_of(text) for text in scripts(tool).values()))
    assert emitted <= known
    # the record holds nothing that is never said
    assert emitted >= set(recorded()[tool]["options"])


def test_an_option_that_is_not_recorded_cannot_be_written() -> None:
    with pytest.raises(LookupError, match="--made-up"):
        LaunchCommand(tool="megatron").option("--made-up", 1)


@pytest.mark.parametrize("tool", ["torchtitan", "megatron", "torchrun"])
def test_where_options_were_read_is_said(tool: str) -> None:
    entry = recorded()[tool]
    assert entry["repo"].count("/") == 1
    assert entry["commit"]
    assert entry["paths"]
    assert str(entry["checked"]) >= "2026-11-15"


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_a_script_is_one_that_bash_reads(tool: str, tmp_path: Path) -> None:
    job = made(sharding="fsdp", tp=2)
    odd = replace(job, model=replace(job.model, name="llama\n$(touch pwned) `id`"))
    path = tmp_path / "plan.sh"
    path.write_text(export(odd, tool), encoding="utf-8")
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    assert all(line.startswith(("#", "torchrun", "  ", "unset", "export")) for line in path.read_text().splitlines())


def test_degrees_and_batches_are_the_plans() -> None:
    def values(script: str) -> dict[str, str]:
        words = words_of(script)
        return dict(itertools.pairwise(words))

    job = made(tp=4, pp=4, schedule="interleaved", virtual_stages=2, cp=2, batch=128, micro_batch=2)
    titan = values(export(job, "torchtitan"))
    assert titan["--parallelism.data_parallel_shard_degree"] == str(job.plan.dp_shard) == "2"
    assert titan["--training.local_batch_size"] == "64"
    assert titan["--parallelism.pipeline_parallel_microbatch_size"] == "2"
    assert titan["--parallelism.pipeline_parallel_schedule"] == "Interleaved1F1B"
    zero1 = replace(job, plan=replace(job.plan, sharding="zero1", cp_method="ring"))
    megatron = values(export(zero1, "megatron"))
    assert megatron["--micro-batch-size"] == "2"
    assert megatron["--global-batch-size"] == "128"
    assert megatron["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert megatron["--cp-comm-type"] == "p2p"


def unrolled(layout: str) -> list[str]:
    """Stages of a layout, by the rules of Megatron's PipelineParallelLayerLayout.parse_str_to_list."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda m: m.group(1) * int(m.group(2)), layout)
    return layout.split("|")


@pytest.mark.parametrize("layers", [(3, 4, 4, 4, 3), (5, 5, 5, 4), (0, 2, 2, 1), (3, 4), (1, 0, 0, 2), (7, 8, 9, 9, 8)])
def test_a_layout_spells_the_stages(layers: tuple[int, ...]) -> None:
    stages = unrolled(_layout(layers))
    assert [stage.count("t") for stage in stages] == list(layers)
    assert (stages[0][0], stages[-1][-1]) == ("E", "L")
    assert "".join(stages).count("E") == "".join(stages).count("L") == 1


def test_stages_that_no_option_makes_are_spelled_out() -> None:
    text = export(made("llama3-70b", tp=2, pp=6, gpus=96, batch=384, sharding="zero1"), "megatron")
    assert "--pipeline-model-parallel-layout" in text
    assert "--account-for" not in text


# What cannot be run


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("torchtitan", {"sharding": "zero1"}, "plan.sharding", "fsdp_no_reshard"),
    ("torchtitan", {"pp": 4, "schedule": "zero_bubble"}, "plan.schedule", "1f1b"),
    ("torchtitan", {"cp": 2, "cp_method": "ring"}, "plan.cp_method", "allgather"),
    ("torchtitan", {"cp": 2, "sharding": "ddp"}, "plan.sharding", "fsdp_no_reshard"),
    ("torchtitan", {"precision": "fp16"}, "plan.precision", "bf16"),
    ("torchtitan", {"precision": "fp4", "cluster": "dgx-b200"}, "plan.precision", "fp8"),
    ("megatron", {"precision": "fp8", "fp8_recipe": "rowwise", "sharding": "zero1"}, "plan.fp8_recipe", "tensorwise"),
    ("torchtitan", {"reduce_dtype": "bf16"}, "plan.reduce_dtype", "--reduce-dtype fp32"),
    ("torchtitan", {"recompute": "blocks", "recompute_frac": 0.5}, "plan.recompute", "--recompute full"),
    ("torchtitan", {"tp": 2, "placement": ["dp_shard", "tp", "cp", "dp_replicate", "pp"]}, "plan.placement",
     "--placement tp-cp"),
    ("torchtitan", {"tp": 16}, "plan.tp", "8"),
    ("torchtitan", {"prefetch": 3}, "plan.prefetch", "--prefetch 1"),
    ("torchtitan", {"model": "llama2-7b", "seq_len": 4096}, "model", "megatron"),
    ("torchtitan", {"model": "llama2-7b", "seq_len": 4096, "sharding": "zero1"}, "model", "megatron"),
    ("torchtitan", {"cluster": "cpu", "gpus": 8}, "cluster.gpu", "knee"),
    ("torchtitan", {"gpus": 12, "batch": 12}, "gpus", "8"),
    ("torchtitan", {"sharding": "hsdp", "dp_shard": 8, "sync_every": 500}, "plan.sync_every", "--sync-every"),
    ("megatron", {"sharding": "zero1", "dp_replicate": 2, "sync_every": 10}, "plan.sync_every", "--sync-every"),
    ("megatron", {"pp": 4, "schedule": "zero_bubble"}, "plan.schedule", "1f1b"),
    ("megatron", {"pp": 4, "schedule": "gpipe"}, "plan.schedule", "1f1b"),
    ("megatron", {"pp": 4, "sharding": "fsdp"}, "plan.pp", "zero1"),
    ("megatron", {"sharding": "fsdp_no_reshard"}, "plan.reduce_dtype", "zero1"),
    ("megatron", {"sharding": "fsdp_no_reshard", "dp_replicate": 2}, "plan.dp_replicate", "hsdp"),
    ("megatron", {"sharding": "zero1", "state_dtype": "bf16"}, "plan.state_dtype", "--state-dtype fp32"),
    ("megatron", {"sharding": "fsdp", "prefetch": 0}, "plan.prefetch", "--prefetch 1"),
    ("megatron", {"model": "mpt-7b", "seq_len": 2048, "sharding": "zero1"}, "model.positions", "knee"),
    ("megatron",
     {"sharding": "zero1", "tp": 2, "pp": 2, "placement": ["pp", "tp", "cp", "dp_shard", "dp_replicate"]},
     "plan.placement", "--placement tp-cp"),
    ("megatron", {"sharding": "zero1", "pp": 4, "recompute": "blocks", "recompute_frac": 0.3}, "plan.recompute_frac",
     "--recompute full"),
    ("megatron", {"sharding": "zero1", "sets": {"model.rope_base": "10000.5"}}, "model.rope_base", "rope_base=10000"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "asked", "field", "nearest"), REFUSED)
def test_what_cannot_be_run_is_refused(tool: str, asked: dict[str, Any], field: str, nearest: str) -> None:
    job = made(**asked)
    error = caught(lambda: export(job, tool))
    assert kind(error) == ("cannot-run", field)
    assert recorded()[tool]["called"] in error.message
    assert "\n" not in error.message
    assert nearest in str(error.hint)


def test_every_plan_is_exported_or_refused_in_words() -> None:
    for job, tool in itertools.product(grid(), ("torchtitan", "megatron")):
        try:
            said = export(job, tool)
        except InputError as error:
            said = f"{error.code} {error.field}"
        assert said.startswith((f"# knee {knee.__version__}: llama3-8b ", "cannot-run plan."))


def test_schedules_that_a_tool_has_not_are_all_refused() -> None:
    for tool, has in (("torchtitan", {"gpipe", "1f1b", "interleaved"}), ("megatron", {"1f1b", "interleaved"})):
        sharding = "zero1" if tool == "megatron" else "fsdp_no_reshard"
        for schedule in set(SCHEDULES) - has:
            job = made(pp=4, schedule=schedule, sharding=sharding)
            assert kind(caught(lambda job=job, tool=tool: export(job, tool))) == ("cannot-run", "plan.schedule")


def test_an_unknown_target_is_refused() -> None:
    assert kind(caught(lambda: export(made(), "deepspeed"))) == ("unknown-choice", "to")


# Whole texts


def golden_jobs() -> dict[str, tuple[Job, str]]:
    pipeline = {"tp": 8, "pp": 16, "schedule": "interleaved", "virtual_stages": 2, "micro_batch": 1}
    large = {"model": "llama3-405b", "gpus": 2048, "batch": 2048}
    jobs = {f"llama3-8b-{to}": (made(tp=2, sharding="fsdp", micro_batch=1), to) for to in TARGETS}
    jobs["llama3-405b-torchtitan"] = made(**large, **pipeline), "torchtitan"
    jobs["llama3-405b-megatron"] = made(profile="fused", sharding="zero1", **large, **pipeline), "megatron"
    return jobs


@pytest.mark.parametrize("name", golden_jobs())
def test_texts_are_as_they_were_read(name: str) -> None:
    job, to = golden_jobs()[name]
    text = export(job, to).replace(f"knee {knee.__version__}:", "knee VERSION:")
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("gemma2-9b", "model.mlp"),
        ("olmo2-7b", "model.qk_norm"),
        ("gpt-neox-20b", "model.parallel_residual"),
    ],
)
def test_models_that_megatron_cannot_run(model: str, field: str) -> None:
    job = made(model, profile="eager", seq_len=2048, sharding="zero1")
    assert kind(caught(lambda: export(job, "megatron"))) == ("cannot-run", field)


def test_a_window_of_some_layers_is_exported_if_the_last_of_each_so_many_has_none() -> None:
    every = {"model.window": "4096"}
    assert "--window-size" in options_of(export(made(sharding="zero1", sets=every), "megatron"))
    gemma = made(sharding="zero1", sets=every | {"model.layer_pattern": "sssssf"})
    assert "--window-attn-skip-freq 6" in export(gemma, "megatron")
    job = made(sharding="zero1", sets=every | {"model.layer_pattern": "fs"})
    assert kind(caught(lambda: export(job, "megatron"))) == ("cannot-run", "model.window")
    short = made(sharding="zero1", sets=every, seq_len=4096)
    assert "--window-size" not in options_of(export(short, "megatron"))


@pytest.mark.parametrize(("model", "field"), [("qwen3-8b", "model.qk_norm"), ("mistral-7b-v0.1", "model.window")])
def test_models_that_torchtitan_does_not_register(model: str, field: str) -> None:
    assert kind(caught(lambda: export(made(model), "torchtitan"))) == ("cannot-run", field)


def test_new_models_come_back(tmp_path: Path) -> None:
    for model in ("gemma3-12b", "qwen2.5-7b", "gpt-neox-20b"):
        job = made(model, profile="eager", seq_len=2048)
        own = replace(job, model=replace(job.model, name="mine"))
        assert read_back(own, tmp_path) == own
