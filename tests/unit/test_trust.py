"""Trust: which published runs are like a job, the band of the truth, and its label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from knee.fidelity.bandwidths import carried_bandwidths
from knee.fidelity.error_table import FOR_READERS, NUMBERS, OWN, WORDS, Errors, error_rows, read_errors
from knee.fidelity.jobs_of_runs import job_of
from knee.fidelity.likeness import ENOUGH, FAMILIES, GATHERED_GPUS, VENDOR, likeness_of
from knee.fidelity.runs import PublishedRun, Setting
from knee.fidelity.trust import Trust, trust_of, truth_band
from knee.specs.job import Job
from knee.specs.load import catalog_entries, describe, load_cluster, load_model, load_profile, make_job
from knee.specs.plan import SHARDINGS

ROW: dict[str, Any] = {
    "source": "a", "profile": "llm-foundry", "kernels": "eager", "gpu": "h100-sxm", "fabric": "infiniband",
    "sharding": "fsdp", "schedule": "1f1b", "precision": "bf16", "n_gpus": 64, "layers": 32, "hidden": 4096, "tp": 1,
    "pp": 1, "cp": 1, "dp": 64, "error_frac": 0.0, "memory_error_frac": "", "unseen_error_frac": 0.0,
    "stack": "s", "nodes": 8, "seq_len": 4096, "recompute": "none",
}


def job(cluster: str = "dgx-h100", profile: str = "eager", gpus: int = 64, **plan: Any) -> Job:
    plan = {"sharding": "fsdp", "micro_batch": 1, **plan}
    made, _ = make_job(load_model("llama2-7b").spec, load_cluster(cluster).spec, load_profile(profile).spec, gpus=gpus,
                       global_batch=2 * gpus, plan_options=plan)
    return made


def table(folder: Path, *rows: dict[str, Any]) -> Errors:
    """Errors as if they were in a file."""
    names = (*WORDS, *NUMBERS, *FOR_READERS)
    lines = [",".join(names), *(",".join(str((ROW | row)[name]) for name in names) for row in rows)]
    path = folder / "errors.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read_errors.cache_clear()
    return read_errors(path)


def some(n: int, error: float = 0.0, **changes: Any) -> list[dict[str, Any]]:
    return [{"error_frac": error, "unseen_error_frac": error, **changes} for _ in range(n)]


# The band.


def test_the_band_is_of_the_truth_not_of_the_prediction() -> None:
    # predicted twice what was measured: the truth is half of what is predicted
    low, high = truth_band(np.array([1.0, 1.0]), np.array([0.5, 0.5]), np.array([0, 0]))
    assert low == high == pytest.approx(-0.5)
    low, high = truth_band(np.array([-0.2, 0.25]), np.array([0.5, 0.5]), np.array([0, 0]))
    assert (low, high) == (pytest.approx(-0.2), pytest.approx(0.25))


def test_the_band_leaves_a_tenth_out_on_each_side() -> None:
    errors = 1.0 / (1.0 + np.linspace(-0.5, 0.5, 1001)) - 1.0
    low, high = truth_band(errors, np.full(1001, 1 / 1001), np.zeros(1001, dtype=np.int64))
    assert (low, high) == (pytest.approx(-0.4, abs=0.003), pytest.approx(0.4, abs=0.003))


def test_few_runs_give_the_whole_range() -> None:
    errors = 1.0 / (1.0 + np.linspace(-0.4, 0.4, 9)) - 1.0
    low, high = truth_band(errors, np.full(9, 1 / 9), np.zeros(9, dtype=np.int64))
    assert (low, high) == (pytest.approx(-0.4), pytest.approx(0.4))


def test_a_source_with_many_runs_does_not_swamp_the_others(tmp_path: Path) -> None:
    many = some(500, 0.0, source="many")
    few = [row for name in "bcd" for row in some(8, 1.0, source=name, profile="fms-fsdp")]
    found = trust_of(job(), errors=table(tmp_path, *many, *few))
    assert found.low_frac == pytest.approx(-0.5)
    assert found.high_frac == 0.0
    assert (found.runs, found.sources) == (524, 4)


def test_a_model_size_that_is_off_widens_the_band(tmp_path: Path) -> None:
    rows = [row for layers in (8, 16, 24) for row in some(20, 0.0, layers=layers)] + some(2, 0.25, layers=48)
    assert trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *rows)).low_frac == pytest.approx(-0.2)


# The ladder.


def test_the_stack_s_own_runs_come_first(tmp_path: Path) -> None:
    own = some(ENOUGH, 0.0, unseen_error_frac=1.0)
    others = some(40, 1.0, source="b", profile="nanotron")
    found = trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *own, *others))
    assert (found.label, found.runs, found.low_frac) == ("validated", ENOUGH, 0.0)
    assert found.like == "h100-sxm, llm-foundry, FSDP, 64 to 64 GPUs"
    assert found.reasons == ()


def test_other_stacks_count_with_the_errors_of_a_profile_that_had_not_seen_them(tmp_path: Path) -> None:
    rows = some(4, 0.0, unseen_error_frac=0.25) + some(4, 0.0, source="b", profile="fms-fsdp", unseen_error_frac=0.25)
    found = trust_of(job(), errors=table(tmp_path, *rows))
    assert (found.label, found.low_frac, found.high_frac) == ("validated", -0.2, -0.2)
    assert found.median_error_frac == 0.25


def test_one_other_stack_does_not_validate(tmp_path: Path) -> None:
    rows = some(40) + some(40, 1.0, gpu="a100-sxm-80", profile="fms-fsdp")
    found = trust_of(job(), errors=table(tmp_path, *rows))
    assert found.label == "near"
    assert "all runs like it are of one stack, llm-foundry" in found.reasons
    assert found.low_frac == -0.5


def test_a_wider_set_is_never_narrower_than_a_stricter_one(tmp_path: Path) -> None:
    rows = some(3, 1.0) + some(200, 0.0, gpu="a100-sxm-80")
    found = trust_of(job(profile="llm-foundry"), errors=table(tmp_path, *rows))
    assert (found.label, found.runs, found.low_frac) == ("near", 203, -0.5)
    assert found.like == "llm-foundry, FSDP, 64 to 64 GPUs"
    assert found.reasons == ("only 3 published runs are like it: h100-sxm, llm-foundry, FSDP, 16 to 256 GPUs",)


@pytest.mark.parametrize("change", [
    {"tp": 2, "dp": 32}, {"sharding": "zero1"}, {"n_gpus": 8}, {"gpu": "a100-sxm-80"}, {"profile": "nanotron"},
    {"pp": 2, "dp": 32}, {"cp": 2, "dp": 32},
])
def test_what_makes_a_run_unlike(tmp_path: Path, change: dict[str, Any]) -> None:
    # enough other runs that nothing is absent
    rest = [ROW | {"profile": "nemo", "kernels": "fused"}]
    errors = table(tmp_path, *some(20), *[row | change for row in some(20)], *rest)
    first = likeness_of(job(profile="llm-foundry"), (), errors).rungs[0]
    assert np.count_nonzero(first.chosen) == 20
    assert first.chosen[:20].all()


def test_rungs_end_with_all_runs() -> None:
    errors = read_errors()
    assert likeness_of(job(), (), errors).rungs[-1].chosen.all()


def test_every_sharding_has_a_family() -> None:
    assert FAMILIES.keys() == set(SHARDINGS)


# Labels of known jobs, on the errors that knee carries.


def test_fsdp_on_h100_is_validated() -> None:
    found = trust_of(job())
    assert found.label == "validated"
    assert found.runs >= ENOUGH
    assert found.sources >= 2
    assert found.low_frac is not None
    assert found.high_frac is not None
    assert -0.5 < found.low_frac <= found.high_frac < 0.5
    assert found.reasons == ()


@pytest.mark.parametrize(("asked", "reason"), [
    (job(gpus=102_400), "no published run had more than"),
    (job(gpus=102_400), "no all-gather over more than 1,024 GPUs"),
    (job(gpus=512), "no published run had FSDP over more than 128"),
    (job("dgx-b200"), "no published run used b200-sxm"),
    (job("dgx-h200"), "no published run used h200-sxm"),
    (job(precision="fp8"), "no published run computed in fp8"),
    (job(pp=2, sharding="zero1", schedule="zero_bubble"), "no published run had the zero_bubble schedule"),
])
def test_what_no_run_had_is_extrapolated(asked: Job, reason: str) -> None:
    found = trust_of(asked)
    assert found.label == "extrapolated"
    assert any(words.startswith(reason) for words in found.reasons), found.reasons
    # the band of all runs, and no narrower than that of those that are like it
    near = trust_of(job())
    assert found.runs > near.runs
    assert found.low_frac is not None
    assert near.low_frac is not None
    assert found.low_frac <= near.low_frac


@pytest.mark.parametrize("cluster", ["mi300x-8", "cpu"])
def test_without_a_basis_there_is_no_band(cluster: str) -> None:
    found = trust_of(job(cluster, gpus=8))
    assert (found.label, found.runs, found.low_frac, found.high_frac) == ("extrapolated", 0, None, None)
    assert found.memory_high_frac is None


@pytest.mark.parametrize(("asked", "given", "reason"), [
    (job(profile="paper"), (), "no published run of the stack of paper"),
    (job(tp=2), (), "no published run is like it: h100-sxm, eager kernels, FSDP + TP"),
    (job("h100-4-slingshot"), (), "no published run was over slingshot"),
    (job(gpus=256), (), "the largest run like it had"),
    (job(), ("cluster.fabric.nic_bytes_per_s", "profile.hop_scale"), "values of your own: fabric.nic_bytes_per_s"),
])
def test_what_is_not_quite_alike_is_near(asked: Job, given: tuple[str, ...], reason: str) -> None:
    found = trust_of(asked, given)
    assert found.label == "near"
    assert any(words.startswith(reason) for words in found.reasons), found.reasons


def test_a_cluster_or_profile_of_ones_own_is_not_validated() -> None:
    asked = job()
    for mine in (replace(asked, cluster=replace(asked.cluster, name="mine")),
                 replace(asked, profile=replace(asked.profile, name="mine"))):
        found = trust_of(mine)
        assert found.label == "near"
        assert "of your own, mine" in found.reasons[0]


def test_a_gpu_of_ones_own_is_extrapolated() -> None:
    found = trust_of(job(), ("cluster.gpu.bf16_flop_per_s",))
    assert found.label == "extrapolated"
    assert found.reasons[0] == "a GPU of your own: gpu.bf16_flop_per_s"


def test_prices_and_watts_do_not_matter() -> None:
    assert trust_of(job(), ("cluster.usd_per_gpu_h", "cluster.gpu.tdp_w", "model.layers")) == trust_of(job())


# Memory.


@pytest.mark.parametrize(("needs", "answer"), [(50.0, "yes"), (75.0, "unsure"), (85.0, "unsure"), (100.0, "no")])
def test_what_fits_within_the_error_is_unsure(needs: float, answer: str) -> None:
    trust = replace(trust_of(job()), memory_low_frac=-0.1, memory_high_frac=0.2)
    assert trust.fits(needs, 80.0) == answer


def test_without_a_band_of_memory_the_prediction_stands() -> None:
    trust = trust_of(job("mi300x-8", gpus=8))
    assert (trust.fits(79.9, 80.0), trust.fits(80.1, 80.0)) == ("yes", "no")


def test_memory_is_judged_by_its_own_readings(tmp_path: Path) -> None:
    rows = some(20) + some(20, profile="nanotron", sharding="zero1", memory_error_frac=0.25)
    found = trust_of(job(profile="nanotron", sharding="zero1"), errors=table(tmp_path, *rows))
    assert (found.memory_runs, found.memory_low_frac, found.memory_high_frac) == (20, -0.2, -0.2)
    assert found.memory_like == "h100-sxm, nanotron, ZeRO-1, 64 to 64 GPUs"


def test_no_reading_of_memory_is_no_band(tmp_path: Path) -> None:
    found = trust_of(job(), errors=table(tmp_path, *some(20)))
    assert (found.memory_runs, found.memory_low_frac, found.memory_like) == (0, None, "none")


# The file.


def test_rows_are_rounded_and_keep_what_was_measured() -> None:
    setting = Setting(source="a, \"b\"", layers=32, hidden=4096, heads=32, gpu="h100-80gb", n_gpus=16, seq_len=4096,
                      global_batch=32, kernel="llm_foundry")
    run = PublishedRun(setting=setting, lines=(2,), status="ok", tokens_per_s_per_gpu=1.0, memory_bytes=None)
    asked = job_of(setting)
    (row,) = error_rows([(run, asked, 0.123456, float("nan"), None), (run, asked, None, None, None)])
    assert (row["error_frac"], row["memory_error_frac"], row["unseen_error_frac"]) == (0.1235, "", "")
    assert (row["profile"], row["kernels"], row["gpu"]) == ("llm-foundry", "eager", "h100-sxm")
    assert (row["dp"], row["nodes"]) == (16, 2)
    assert not any("," in str(cell) or '"' in str(cell) for cell in row.values())
    assert list(row) == [*WORDS, *NUMBERS, *FOR_READERS]


def test_the_carried_errors_are_whole() -> None:
    header = OWN.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert header == [*WORDS, *NUMBERS, *FOR_READERS]
    errors = read_errors()
    assert len(errors) > 300
    assert len(set(errors.words["source"])) >= 8
    assert set(errors.words["profile"]) <= set(catalog_entries("profile"))
    assert set(errors.words["gpu"]) <= set(catalog_entries("gpu"))
    vendors = {dict(row[:2] for row in describe("gpu", name))["vendor"] for name in set(errors.words["gpu"])}
    assert vendors == {VENDOR}
    assert np.isfinite(errors.numbers["error_frac"]).all()
    assert np.isfinite(errors.numbers["unseen_error_frac"]).all()


def test_the_largest_all_gather_is_the_carried_one() -> None:
    tests = carried_bandwidths().readings
    assert max(t.setting.n_gpus for t in tests if t.setting.operation == "all_gather") == GATHERED_GPUS


def test_trust_is_plain_data() -> None:
    data = trust_of(job()).as_json()
    assert data.keys() == set(Trust.__slots__)
