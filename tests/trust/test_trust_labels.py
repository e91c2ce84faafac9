"""Trust: which published runs are like a job, the band of the truth, and its label."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from errors_made import ends, job, sized, some, table
from knee.specs.catalog import entry_names
from knee.specs.job import Job
from knee.specs.load import load_profile
from knee.specs.notes import code_of
from knee.specs.plan import SHARDING_FAMILIES, SHARDINGS
from knee.trust.error_table import COLUMNS, LATER, OWN, error_rows, read_errors
from knee.trust.similarity import ENOUGH, GATHERED_GPUS, likeness_of
from knee.trust.trust import Trust, trust_of
from knee.trust.validation.bandwidth_errors import carried_bandwidths
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_to_job import job_of

# Runs of its kind, and like it.


def test_the_stack_s_own_runs_come_first(tmp_path: Path) -> None:
    own, others = some(ENOUGH), some(40, source="b", profile="nanotron")
    found = trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *own, *others))
    assert (found.label, found.runs, found.kind_runs, found.basis_runs) == ("validated", ENOUGH, ENOUGH, ENOUGH + 40)
    assert found.reasons == ()


def test_other_stacks_do_not_validate(tmp_path: Path) -> None:
    errors = table(tmp_path, *some(40), *some(40, source="b", profile="fms-fsdp"))
    generic, unknown = trust_of(job(), errors=errors), trust_of(job(profile="knee"), errors=errors)
    assert (generic.label, unknown.label) == ("near", "near")
    assert [code_of(reason) for reason in generic.reasons] == ["no-one-stack"]
    assert [code_of(reason) for reason in unknown.reasons] == ["other-stack"]


def test_a_kind_whose_parts_were_measured_apart_is_near(tmp_path: Path) -> None:
    rows = some(20) + some(20, gpu="a100-sxm-80", tp=2, dp=32)
    found = trust_of(job(profile="llm-foundry", tp=2), errors=table(tmp_path, *rows))
    assert (found.label, found.kind_runs) == ("near", 0)
    assert "none-of-kind" in map(code_of, found.reasons)


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 2, "dp": 32},
        {"sharding": "zero1"},
        {"gpu": "a100-sxm-80"},
        {"profile": "nanotron"},
        {"pp": 2, "dp": 32},
        {"cp": 2, "dp": 32},
    ],
)
def test_what_makes_a_run_of_another_kind(tmp_path: Path, change: dict[str, Any]) -> None:
    errors = table(tmp_path, *some(20), *[row | change for row in some(20)])
    found = likeness_of(job(profile="llm-foundry"), (), errors)
    assert np.flatnonzero(found.kind).tolist() == list(range(20))


@pytest.mark.parametrize(
    "change",
    [
        {"n_gpus": 8},
        {"layers": 200},
        {"hidden": 1024},
        {"seq_len": 512},
        {"nic_bytes_per_s": 1e9},
        {"recompute": "full"},
        {"tokens_per_gpu": 512},
        {"nodes": 1},
        {"micro_tokens": 128},
    ],
)
def test_what_makes_a_run_of_its_kind_unlike(tmp_path: Path, change: dict[str, Any]) -> None:
    errors = table(tmp_path, *some(20), *[row | change for row in some(20)])
    found = likeness_of(job(profile="llm-foundry"), (), errors)
    assert found.kind.all()
    assert np.flatnonzero(found.like).tolist() == list(range(20))


def test_too_few_alike_say_in_what(tmp_path: Path) -> None:
    rows = some(20, seq_len=512) + some(2, seq_len=65536)
    found = trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *rows))
    assert (found.label, found.runs) == ("near", 0)
    assert found.reasons == ("none of 22 similar published runs is close to this job in tokens per sequence",)


@pytest.mark.parametrize(
    ("hidden", "label"),
    [
        (4096, "validated"),
        (8192, "validated"),
        (16384, "near"),
        (16512, "extrapolated"),
        (1024, "near"),
        (768, "extrapolated"),
    ],
)
def test_a_size_out_of_range_is_near_up_to_four_times(tmp_path: Path, hidden: int, label: str) -> None:
    found = trust_of(
        replace(sized(hidden=hidden, heads=32), profile=load_profile("llm-foundry").spec),
        errors=table(tmp_path, *some(20)),
    )
    assert found.label == label
    if label != "validated":
        assert f"hidden size: {hidden:,} here, 4,096 in similar published runs" in found.reasons


def test_sizes_out_of_range_multiply(tmp_path: Path) -> None:
    asked = replace(job(profile="llm-foundry", gpus=192), seq_len=4 * 4096, global_batch=192)
    found = trust_of(asked, errors=table(tmp_path, *some(20)))
    assert found.label == "extrapolated"
    assert [words.partition(":")[0] for words in found.reasons] == [
        "GPUs",
        "tokens per sequence",
        "tokens per GPU and step",
    ]


def test_columns_that_a_file_has_not_are_not_compared(tmp_path: Path) -> None:
    names = tuple(name for name in COLUMNS if name not in LATER)
    assert trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *some(20), names=names)).label == "validated"


def test_every_sharding_has_a_family() -> None:
    assert SHARDING_FAMILIES.keys() == set(SHARDINGS)


# Labels of known jobs, on the errors that knee carries.


def test_fsdp_on_h100_is_validated() -> None:
    found = trust_of(job(profile="llm-foundry"))
    assert found.label == "validated"
    assert found.runs >= ENOUGH
    assert found.sources >= 2
    assert found.low_frac is not None
    assert found.high_frac is not None
    assert -0.5 < found.low_frac <= found.high_frac < 0.5
    assert found.reasons == ()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (job(gpus=102_400), "GPUs: 102,400 here"),
        (job(gpus=102_400), "no all-gather over more than 1,024 GPUs"),
        (job(gpus=512), "GPUs: 512 here"),
        (sized(hidden=64, heads=2, kv_heads=2, ffn=128), "hidden size: 64 here"),
        (sized(window=512), "no published run had attention with a sliding window"),
        (sized(attention_soft_cap=50.0), "no published run had attention with a soft cap"),
        (job("dgx-h200"), "no published run used the GPU h200-sxm"),
        (job(pp=2, sharding="zero1", schedule="zero_bubble"), "no published run used the zero_bubble schedule"),
        (job(cp=2), "no published run used this kind of parallelism: FSDP + CP"),
        (job(gpus=1), "no published run used this kind of parallelism: one GPU alone"),
    ],
)
def test_what_no_run_had_is_extrapolated(asked: Job, reason: str) -> None:
    found = trust_of(asked)
    assert (found.label, found.runs) == ("extrapolated", 0)
    assert any(words.startswith(reason) for words in found.reasons), found.reasons
    assert found.basis_runs > 0


def test_without_a_basis_there_is_no_band() -> None:
    found = trust_of(job("cpu", gpus=8))
    assert (found.label, found.runs, found.low_frac, found.high_frac) == ("extrapolated", 0, None, None)
    assert found.memory_high_frac is None


NEAR = [
    (job(profile="paper"), "no similar published run used the stack of profile paper"),
    (
        job(profile="knee"),
        "no similar published run used the stack of profile knee; published runs of other stacks with eager",
    ),
    (
        job(),
        "profile eager does not describe a single software stack; published runs of several stacks with eager kernels",
    ),
    (job("h100-4-slingshot"), "no similar published run used slingshot"),
    (job(gpus=256), "GPUs: 256 here, 8 to 96 in similar published runs"),
    (job(seq_len=131_072), "tokens per sequence: 131,072 here, 512 to 65,536 in similar published runs"),
]


@pytest.mark.parametrize(("asked", "reason"), NEAR)
def test_what_is_not_quite_alike_is_near(asked: Job, reason: str) -> None:
    found = trust_of(asked)
    assert found.label == "near"
    assert found.kind_runs > 0
    assert any(words.startswith(reason) for words in found.reasons), found.reasons


@pytest.mark.parametrize(("profile", "name", "fitted"), [
    ("paper", "paper", True), ("paper-v100", "paper-v100", True), ("paper", "mine", True),
    ("eager", "paper-mine", False),
])  # fmt: skip
def test_what_is_fitted_to_the_paper_is_told_by_values(profile: str, name: str, fitted: bool) -> None:
    asked = job(profile=profile)
    found = trust_of(replace(asked, profile=replace(asked.profile, name=name)))
    assert ("fitted-to-paper" in map(code_of, found.reasons)) == fitted


def test_bands_do_not_get_narrower_as_labels_get_weaker() -> None:
    path = [trust_of(job(profile="llm-foundry", gpus=gpus)) for gpus in (64, 256, 512, 2048, 102_400)]
    assert [trust.label for trust in path] == ["validated", "near", "extrapolated", "extrapolated", "extrapolated"]
    for stronger, weaker in pairwise(path):
        assert ends(weaker)[0] <= ends(stronger)[0]
        assert ends(weaker)[1] >= ends(stronger)[1]
    tiny = sized(hidden=64, heads=2, kv_heads=2, ffn=128)
    for asked in (*(asked for asked, _ in NEAR), tiny, job("dgx-h200"), job(precision="fp8")):
        assert ends(trust_of(asked))[0] <= ends(path[0])[0]
        assert ends(trust_of(asked))[1] >= ends(path[0])[1]


# Values of one's own.


def changed(asked: Job, **rates: Any) -> Job:
    fabric = replace(asked.cluster.fabric, **rates)
    return replace(asked, cluster=replace(asked.cluster, fabric=fabric))


def test_values_are_compared_not_who_wrote_them() -> None:
    written = ("cluster.fabric.nic_bytes_per_s", "cluster.gpu.bf16_flop_per_s", "profile.hop_scale")
    assert trust_of(job(profile="llm-foundry"), written) == trust_of(job(profile="llm-foundry"))
    other = trust_of(changed(job(profile="llm-foundry"), nic_bytes_per_s=40e9), written)
    assert (other.label, other.reasons) == ("near", ("these values are your own: fabric.nic_bytes_per_s",))


def test_a_renamed_cluster_or_profile_is_its_base() -> None:
    asked = job(profile="llm-foundry")
    cluster = replace(asked.cluster, name="mine", gpu=replace(asked.cluster.gpu, name="my-gpu"))
    mine = replace(asked, cluster=cluster, profile=replace(asked.profile, name="my-stack"))
    assert trust_of(mine) == trust_of(asked)
    assert trust_of(asked).label == "validated"


def test_a_cluster_or_profile_of_ones_own_is_not_validated() -> None:
    asked = job(profile="llm-foundry")
    cluster = replace(changed(asked, hop_s=1e-5).cluster, name="mine")
    profile = replace(asked.profile, name="mine", hop_scale=9.0)
    for kind, mine, path in (
        ("cluster", replace(asked, cluster=cluster), "fabric.hop_s"),
        ("profile", replace(asked, profile=profile), "hop_scale"),
    ):
        found = trust_of(mine)
        assert found.label == "near"
        assert found.reasons == (f"these values in {kind} mine are your own: {path}",)


def test_a_gpu_of_ones_own_is_extrapolated_and_named_once() -> None:
    asked = job(profile="llm-foundry")
    gpu = replace(asked.cluster.gpu, bf16_flop_per_s=9e14)
    found = trust_of(replace(asked, cluster=replace(asked.cluster, gpu=gpu)), ("cluster.gpu.bf16_flop_per_s",))
    assert found.label == "extrapolated"
    assert found.reasons == ("these values of the GPU are your own: gpu.bf16_flop_per_s",)


def test_prices_and_watts_do_not_matter() -> None:
    asked = job(profile="llm-foundry")
    cheap = replace(asked, cluster=replace(asked.cluster, name="cheap", usd_per_gpu_h=0.1))
    assert trust_of(cheap, ("cluster.usd_per_gpu_h",)) == trust_of(asked)


# Memory.


@pytest.mark.parametrize(("needs", "answer"), [(50.0, "yes"), (75.0, "unsure"), (85.0, "unsure"), (100.0, "no")])
def test_what_fits_within_the_error_is_unsure(needs: float, answer: str) -> None:
    trust = replace(trust_of(job()), memory_low_frac=-0.1, memory_high_frac=0.2)
    assert trust.fits(needs, 80.0) == answer


def test_without_a_band_of_memory_the_prediction_stands() -> None:
    trust = trust_of(job("cpu", gpus=8))
    assert (trust.fits(79.9, 80.0), trust.fits(80.1, 80.0)) == ("yes", "no")


def test_memory_is_judged_by_its_own_readings(tmp_path: Path) -> None:
    rows = some(20) + some(20, profile="nanotron", memory_error_frac=0.25)
    found = trust_of(job(profile="nanotron"), errors=table(tmp_path, *rows))
    assert (found.basis_runs, found.memory_runs) == (40, 20)
    assert (found.memory_low_frac, found.memory_high_frac) != ends(found)


def test_errors_of_memory_that_saw_nothing_of_the_source_come_first(tmp_path: Path) -> None:
    rows = some(20, memory_error_frac=0.0, unseen_memory_error_frac=0.25)
    shipped = trust_of(job(), errors=table(tmp_path, *some(20, memory_error_frac=0.0))).memory_low_frac
    unseen = trust_of(job(), errors=table(tmp_path, *rows)).memory_low_frac
    assert shipped is not None
    assert unseen is not None
    assert unseen < shipped


def test_no_reading_of_memory_is_no_band(tmp_path: Path) -> None:
    found = trust_of(job(), errors=table(tmp_path, *some(20)))
    assert (found.memory_runs, found.memory_low_frac, found.memory_like) == (0, None, "none")


# The file.


def test_rows_are_rounded_and_keep_what_was_measured() -> None:
    setting = Setting(
        source='a, "b"',
        layers=32,
        hidden=4096,
        heads=32,
        gpu="h100-80gb",
        n_gpus=16,
        seq_len=4096,
        global_batch=32,
        stack="llm-foundry",
    )
    run = PublishedRun(setting=setting, lines=(2,), status="ok", tokens_per_s_per_gpu=1.0, memory_bytes=None)
    asked = job_of(setting)
    none = (None, None)
    (row,) = error_rows([(run, asked, (0.123456, float("nan")), none), (run, asked, none, none)])
    assert (row["error_frac"], row["memory_error_frac"], row["unseen_error_frac"]) == (0.1235, "", "")
    assert (row["profile"], row["kernels"], row["gpu"]) == ("llm-foundry", "eager", "h100-sxm")
    assert (row["dp"], row["nodes"]) == (16, 2)
    assert not any("," in str(cell) or '"' in str(cell) for cell in row.values())
    assert (row["nic_bytes_per_s"], row["micro_tokens"], row["tokens_per_gpu"]) == (50e9, 8192, 8192)
    assert list(row) == list(COLUMNS)


def test_the_carried_errors_are_whole() -> None:
    header = OWN.read_text(encoding="utf-8").splitlines()[0].split(",")
    before = len(COLUMNS) - len(LATER)
    assert header[:before] == list(COLUMNS[:before])
    errors = read_errors()
    assert len(errors) > 300
    assert len(set(errors.words["source"])) >= 8
    assert set(errors.words["profile"]) <= set(entry_names("profile"))
    assert set(errors.words["gpu"]) <= set(entry_names("gpu"))
    assert np.isfinite(errors.numbers["error_frac"]).all()
    assert np.isfinite(errors.numbers["unseen_error_frac"]).all()


def test_the_largest_all_gather_is_the_carried_one() -> None:
    tests = carried_bandwidths().readings
    assert max(t.setting.n_gpus for t in tests if t.setting.operation == "all_gather") == GATHERED_GPUS


def test_trust_is_plain_data() -> None:
    data = trust_of(job()).as_json()
    assert data.keys() == set(Trust.__slots__)
