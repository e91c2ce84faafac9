"""Published runs: reading a file, repeats, and what each row is asked of knee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from knee.base.errors import SpecError
from knee.specs.catalog import entry_names, gpu_aliases
from knee.specs.notes import Note
from knee.trust.validation.published_runs import MEASURED, REQUIRED, RunFile, Setting, read_runs
from knee.trust.validation.run_to_job import RECOMPUTE, RunJob, gpu_key, job_of, stack_of, stacks
from knee.trust.validation.user_records import NOT_RUN, STATUS_ONLY, read_user_runs
from refusals import caught, kind, numbers
from runs_files import ROW, runs_file


def read(folder: Path, *rows: dict[str, Any]) -> RunFile:
    return read_runs(runs_file(folder / "runs.csv", *rows))


def asked(**values: Any) -> RunJob:
    return job_of(Setting(**{**ROW, **values}))


def test_a_row(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        ROW
        | {
            "id": "a-1",
            "source": "A",
            "micro_batch": "2.0",
            "node_gbit_per_s": 800,
            "compile": 1,
            "colour": "red",
            "tokens_per_s_per_gpu": 9000,
            "memory_gib": 40,
            "status": "ok",
        },
    )
    (run,) = file.runs
    assert file.ignored == ("colour",)
    assert run.lines == (2,)
    assert run.setting.micro_batch == 2
    assert run.setting.node_bytes_per_s == 100e9
    assert run.setting.compile is True
    assert (run.tokens_per_s_per_gpu, run.memory_bytes, run.status) == (9000.0, 40 * 2**30, "ok")


def test_few_columns_are_enough(tmp_path: Path) -> None:
    (run,) = read(tmp_path, ROW | {"step_time_s": 2.0}).runs
    assert run.tokens_per_s_per_gpu == 64 * 4096 / 2.0 / 16
    assert (run.setting.source, run.status, run.memory_bytes) == ("unnamed", "ok", None)
    job = job_of(run.setting).job
    assert (job.plan.sharding, job.plan.dp_shard, job.plan.precision) == ("fsdp", 16, "bf16")
    assert (job.model.kv_heads, job.model.ffn, job.model.vocab) == (32, 5632, 32_000)


def test_repeats_are_one_run_with_their_median(tmp_path: Path) -> None:
    rates = [9000, 10_000, 14_000]
    rows = [ROW | {"id": f"r{rate}", "tokens_per_s_per_gpu": rate, "note": f"on day {rate}"} for rate in rates]
    failed = ROW | {"id": "f", "status": "failed", "tokens_per_s_per_gpu": 1}
    other = ROW | {"id": "o", "tp": 2, "tokens_per_s_per_gpu": 5000}
    file = read(tmp_path, *rows, failed, other)
    same, different = file.runs
    assert same.lines == (2, 3, 4, 5)
    assert same.tokens_per_s_per_gpu == 10_000
    assert same.status == "ok", "what ran once fits"
    assert "on day 9000" in same.setting.note
    assert different.lines == (6,)


def test_a_failure_beside_an_oom_is_an_oom(tmp_path: Path) -> None:
    (run,) = read(tmp_path, *(ROW | {"status": word} for word in ("failed", "oom"))).runs
    assert run.status == "oom"
    assert run.tokens_per_s_per_gpu is None


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"layers": ""}, "missing-field", "layers"),
        ({"tp": "two"}, "not-a-number", "tp"),
        ({"tp": "1.5"}, "not-a-count", "tp"),
        ({"tp": "0"}, "not-a-count", "tp"),
        ({"n_gpus": "1e999"}, "not-finite", "n_gpus"),
        ({"n_gpus": "nan"}, "not-finite", "n_gpus"),
        ({"tokens_per_s_per_gpu": "-1"}, "out-of-range", "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": "1e-300"}, "out-of-range", "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": ""}, "missing-field", "measured"),
        ({"status": "fine"}, "unknown-choice", "status"),
        ({"compile": "maybe"}, "not-a-flag", "compile"),
        ({"n_gpus": "1_6"}, "not-a-number", "n_gpus"),
        ({"n_gpus": "\uff11\uff16"}, "not-a-number", "n_gpus"),
        ({"step_time_s": "1"}, "contradiction", "tokens_per_s_per_gpu"),
    ],
)
def test_rows_that_say_nothing_keep_their_reason(tmp_path: Path, change: dict[str, str], code: str, field: str) -> None:
    file = read(tmp_path, ROW | {"tokens_per_s_per_gpu": 1000} | change, ROW | {"tokens_per_s_per_gpu": 1000})
    reason = file.rows[0].reason
    assert isinstance(reason, Note)
    assert (reason.code, reason.field) == (code, field)
    assert len(file.runs) == 1


def test_numbers_beside_a_failure_are_remarked(tmp_path: Path) -> None:
    (row,) = read(tmp_path, ROW | {"status": "oom", "tokens_per_s_per_gpu": 1000}).rows
    assert row.remarks == ("status is oom but throughput or memory is given; these values are not compared",)
    (row,) = read(tmp_path, ROW | {"step_time_s": 2.0, "tokens_per_s_per_gpu": 64 * 4096 / 2.0 / 16 * 1.03}).rows
    assert row.reason is None


def test_ragged_rows_and_blank_lines(tmp_path: Path) -> None:
    path = runs_file(tmp_path / "r.csv", ROW | {"tokens_per_s_per_gpu": 1000})
    path.write_text(path.read_text() + "\n1,2,3\n,,,\n", encoding="utf-8")
    file = read_runs(path)
    assert [row.reason for row in file.rows] == [None, "the row has more or fewer cells than the header"]


@pytest.mark.parametrize(
    ("text", "found", "line"),
    [
        ("", ("empty", None), []),
        ("\n\n", ("empty", None), []),
        (",".join((*REQUIRED, MEASURED[0])) + "\n", ("empty", None), []),
        (",".join(REQUIRED) + "\n1\n", ("missing-field", "measured"), []),
        ("layers,hidden,status\n", ("missing-field", "heads"), []),
        ("layers,layers\n", ("ambiguous-field", "layers"), []),
        ('layers,"hidden\n1', ("not-csv", None), [1]),
        (",".join((*REQUIRED, MEASURED[0])) + '\n1,2\n1,"2\n3,4', ("not-csv", None), [3]),
        ("layers;hidden\n1;2\n", ("not-csv", None), []),
        ("layers\thidden\n1\t2\n", ("not-csv", None), []),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, found: tuple[str, str | None], line: list[int]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    error = caught(lambda: read_runs(path))
    assert kind(error) == found
    assert error.hint
    assert numbers(error.message.removeprefix(str(path))) == line


def test_a_misspelt_column_is_guessed(tmp_path: Path) -> None:
    row = {"layer" if name == "layers" else name: value for name, value in ROW.items()}
    path = runs_file(tmp_path / "r.csv", row | {"status": "ok"})
    error = caught(lambda: read_runs(path))
    assert kind(error) == ("missing-field", "layers")
    assert "layer?" in str(error.hint)


def test_upper_case_and_a_blank_first_line(tmp_path: Path) -> None:
    path = runs_file(tmp_path / "r.csv", ROW | {"status": "ok"})
    text = path.read_text(encoding="utf-8")
    path.write_text(text.upper(), encoding="utf-8")
    assert kind(caught(lambda: read_runs(path))) == ("missing-field", "layers")
    path.write_text("\n" + text, encoding="utf-8")
    assert [row.line for row in read_runs(path).rows] == [3]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00layers")
    assert caught(lambda: read_runs(tmp_path / "b.csv")).code == "not-utf8"
    assert caught(lambda: read_runs(tmp_path)).code == "unreadable"


def test_every_gpu_key_is_in_the_catalogue() -> None:
    known = entry_names("cluster")
    for key, cluster in gpu_aliases().items():
        assert cluster in known
        precision = "fp16" if key.startswith("v100") else "bf16"
        assert asked(gpu=key, gpus_per_node=8, precision=precision).job.cluster.gpu.hbm_bytes > 0


def test_the_40_gb_board() -> None:
    gpu = asked(gpu="a100-40gb").job.cluster.gpu
    assert (gpu.hbm_bytes, gpu.hbm_bytes_per_s) == (40960 * 2**20, 1555e9)


def test_nodes_and_fabric_are_the_runs_own() -> None:
    cluster = asked(gpus_per_node=4, node_bytes_per_s=50e9, fabric="efa").job.cluster
    assert cluster.node.gpus == 4
    assert cluster.fabric.nic_bytes_per_s == 12.5e9
    assert cluster.fabric.kind == "efa"
    assert asked(fabric="slingshot").job.cluster.fabric.kind == "slingshot"
    assert asked(fabric="ndr").job.cluster.fabric == asked().job.cluster.fabric


def test_free_text_does_not_change_the_job() -> None:
    plain = asked().job
    for note in ("no EFA here: InfiniBand", "RoCE", "8x200G, zero2, V100, NeMo with FP8"):
        assert asked(note=note).job == plain


@pytest.mark.parametrize(
    ("values", "profile", "attention"),
    [
        ({}, "eager", "flash2"),
        ({"compile": True}, "compiled", "flash2"),
        ({"stack": "nanotron", "kernel": "flash attention 2"}, "nanotron", "flash2"),
        ({"stack": "llm-foundry", "kernel": "flash/triton attention"}, "llm-foundry", "flash1"),
        # words outside of the stack column tell none, and a stack is its whole name
        ({"kernel": "nanotron, flash attention 2", "note": "NeMo; Megatron"}, "eager", "flash2"),
        ({"stack": "somebody's (Megatron-style, PyTorch)"}, "eager", "flash2"),
        ({"kernel": "flash_attentionv1.0.8"}, "eager", "flash1"),
        ({"kernel": "Megatron-Core, Transformer Engine"}, "fused", "cudnn"),
        ({"stack": "Megatron-LM"}, "fused", "cudnn"),
        ({"stack": "Megatron-LM", "attention": "unfused"}, "megatron-lm-2022", "unfused"),
        ({"stack": "fms-fsdp"}, "fms-fsdp", "flash2"),
        ({"stack": "fms-fsdp", "compile": True}, "fms-fsdp-compiled", "flash2"),
        ({"stack": "InternEvo"}, "internevo", "flash2"),
        ({"stack": "Megatron-DeepSpeed", "attention": "unfused"}, "megatron-deepspeed", "unfused"),
        ({"stack": "Megatron-DeepSpeed", "gpu": "a100-80gb"}, "megatron-deepspeed", "flash2"),
        ({"attention": "unfused"}, "eager", "unfused"),
        ({"stack": "NeMo 25.02"}, "nemo", "cudnn"),
        ({"stack": "nemo", "compile": True}, "nemo", "cudnn"),
        ({"stack": "NeMo", "gpu": "a100-80gb"}, "nemo", "cudnn"),
        ({"gpu": "v100-32gb", "precision": "fp16"}, "eager", "cutlass"),
        ({"attention": "flash3"}, "eager", "flash3"),
    ],
)
def test_stacks(values: dict[str, Any], profile: str, attention: str) -> None:
    job = asked(**values).job
    assert (job.profile.name, job.profile.attention) == (profile, attention)


def test_a_replaced_attention_kernel_is_said() -> None:
    assert any("treated as cutlass" in note for note in asked(gpu="v100-32gb", precision="fp16").notes)


def test_every_stack_is_known_by_its_names() -> None:
    for stack in stacks().values():
        for name in stack.names:
            assert stack_of(Setting(**ROW, stack=name.upper().replace(" ", "-"))) == stack


def test_words_select_kernels_and_columns_overlap() -> None:
    assert asked(kernel="flash_attention2 + RMS kernel").job.profile.kernels == "fused_norm"
    assert asked(kernel="flash_attention2").job.profile.kernels == "eager"
    stated = asked(stack="nemo", tp=2, tp_overlap=False, dp_overlap=False, cuda_graphs=True)
    assert stated.job.plan.tp_overlap_frac == 0.0
    assert not stated.job.profile.gather_overlap
    assert not stated.job.profile.reduce_overlap
    assert stated.job.profile.launch_s < asked(stack="nemo").job.profile.launch_s
    assert (
        asked(stack="nemo", tp=2, tp_overlap=True).job.plan.tp_overlap_frac
        == asked(stack="nemo").job.profile.tp_overlap_frac
    )
    assert asked(reduce_dtype="bf16").job.plan.reduce_dtype == "bf16"


@pytest.mark.parametrize(
    ("values", "sharding", "shard", "replicate"),
    [
        ({"sharding": "ddp", "dp": 16}, "ddp", 1, 16),
        ({"sharding": "zero1", "dp": 8, "tp": 2}, "zero1", 8, 1),
        ({"sharding": "zero1", "shard_group": 8}, "zero1", 8, 2),
        ({"sharding": "fsdp", "shard_group": 4}, "hsdp", 4, 4),
        ({"sharding": "hsdp"}, "hsdp", 8, 2),
        ({"sharding": "hsdp", "shard_group": 16}, "fsdp", 16, 1),
        ({"sharding": "hsdp", "n_gpus": 8}, "fsdp", 8, 1),
        ({"sharding": "hsdp", "shard_group": 1}, "ddp", 1, 16),
        ({"sharding": "fsdp_no_reshard", "shard_group": 8}, "fsdp_no_reshard", 8, 2),
    ],
)
def test_sharding(values: dict[str, Any], sharding: str, shard: int, replicate: int) -> None:
    plan = asked(**values).job.plan
    assert (plan.sharding, plan.dp_shard, plan.dp_replicate) == (sharding, shard, replicate)


def test_the_rest_of_a_plan() -> None:
    values = {
        "pp": 4,
        "virtual_pp": 2,
        "tp": 2,
        "micro_batch": 1,
        "sequence_parallel": False,
        "async_tp": True,
        "precision": "fp8",
        "recompute": "op",
    }
    found = asked(**values)
    plan = found.job.plan
    assert (plan.schedule, plan.virtual_stages, plan.pp, plan.dp) == ("interleaved", 2, 4, 2)
    assert (plan.sequence_parallel, plan.tp_overlap_frac, plan.precision) == (False, 0.75, "fp8")
    assert (plan.recompute, plan.recompute_frac) == ("ops", 1.0)
    for word, (knees, _, why) in RECOMPUTE.items():
        other = asked(recompute=word)
        assert other.job.plan.recompute == knees
        assert any(note.startswith(f"recompute {word}") for note in other.notes) is (why is not None)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("H100 SXM", "h100"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA B300 SXM6", "b300"),
        ("NVIDIA GH200 480GB", "gh200-480gb"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA L40S", "l40s"),
        ("RTX PRO 6000", "rtx-pro-6000"),
        ("H200 141 GB", "h200-141gb"),
        ("H100 NVL", None),
        ("", None),
    ],
)
def test_gpus_as_drivers_and_clouds_write_them(name: str, key: str | None) -> None:
    assert gpu_key(name) == key
    if key is not None:
        precision = "fp16" if key.startswith("v100") else "bf16"
        assert asked(gpu=name, precision=precision).job.cluster == asked(gpu=key, precision=precision).job.cluster


@pytest.mark.parametrize(
    ("word", "sharding", "said"),
    [
        ("zero3", "fsdp", True),
        ("ZeRO-1", "zero1", False),
        ("fsdp2", "fsdp", True),
        ("fully_shard", "fsdp", True),
        ("fsdp-no-reshard", "fsdp_no_reshard", False),
        ("hybrid_shard", "hsdp", True),
    ],
)
def test_others_words_for_sharding(word: str, sharding: str, said: bool) -> None:
    found = asked(sharding=word.lower())
    assert found.job.plan.sharding == sharding
    assert (f"sharding {word.lower()} is treated as {sharding}" in found.notes) is said


def test_what_is_assumed_of_a_row_is_said() -> None:
    assert "shard_group defaulted to one node (hsdp)" in asked(sharding="hsdp").notes
    assert "gpu a100 is treated as the 80 GB board" in asked(gpu="a100").notes
    v100 = asked(gpu="v100-32gb")
    assert v100.job.plan.precision == "fp16"
    assert any("has no bf16 tensor cores" in note for note in v100.notes)


def test_columns_that_are_missing_are_said_once(tmp_path: Path) -> None:
    said = str(read(tmp_path, ROW | {"status": "ok", "tp": 2}).defaults)
    for words in ("pp 1", "cp 1", "bf16", "recompute none", "no torch.compile", "gpus_per_node", "network rate"):
        assert words in said
    assert "tp 1" not in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpu": "h100-80g"}, "the GPU 'h100-80g' is unknown; did you mean h100-80gb?"),
        ({"gpu": "abacus"}, "known: h100-80gb"),
        ({"dp": 3}, "the plan fills 3 GPUs, not 16"),
        ({"tp": 3}, "tp"),
        ({"pp": 16, "layers": 8}, "16 stages"),
        ({"pp": 100, "virtual_pp": 100}, "more than 256 stages"),
        ({"micro_batch": 3}, "micro_batch 3 does not divide"),
        ({"global_batch": 7}, "does not split"),
        ({"shard_group": 3}, "shard_group 3 does not divide dp 16"),
        ({"sharding": "zero9"}, "sharding is 'zero9'"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"precision": "int4"}, "precision is 'int4'"),
        ({"precision": "fp8", "gpu": "a100-80gb"}, "no fp8 tensor cores"),
        ({"mlp": "kan"}, "mlp is 'kan'"),
        ({"attention": "none"}, "must be one of flash, flash1, flash2, flash3, cudnn, cutlass, unfused"),
        ({"sharding": "ddp", "shard_group": 8}, "ddp, which shards nothing, but shard_group is 8"),
        ({"gpus_per_node": 16}, "gpus_per_node is 16, but a server with h100-sxm has 8"),
        ({"gpu": "NVIDIA H100 PCIe"}, "the GPU 'NVIDIA H100 PCIe' is unknown"),
        ({"hidden": 2050}, "not divisible"),
    ],
)
def test_what_cannot_be_asked_is_said(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as error:
        asked(**values)
    assert words in error.value.message


def test_rows_and_records_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = runs_file(tmp_path / "rows.csv", *([ROW | {"status": "oom"}] * 2))
    records = tmp_path / "records.json"
    records.write_text("{}\n{}\n", encoding="utf-8")
    monkeypatch.setattr("knee.trust.validation.user_records.MOST_FITTED_ROWS", 4)
    assert read_user_runs([rows, records], None, None).rows == 4
    monkeypatch.setattr("knee.trust.validation.user_records.MOST_FITTED_ROWS", 3)
    error = caught(lambda: read_user_runs([rows, records], None, None))
    assert (kind(error)[0], numbers(error.message)) == ("too-many", [4, 3])


def test_what_a_row_does_not_say() -> None:
    """Plain eager PyTorch, nothing beside anything else, a Llama without biases or tied embeddings."""
    found = asked()
    assert (found.stack, found.job.profile.name) == ("PyTorch", "eager")
    assert asked(compile=True).job.profile.name == "compiled"
    plan, model = found.job.plan, found.job.model
    assert (plan.sequence_parallel, plan.ep_overlap, plan.tp_overlap_frac) == (True, False, None)
    assert (plan.tp, plan.pp, plan.cp, plan.ep, plan.etp, plan.virtual_stages) == (1,) * 6
    assert (plan.recompute, plan.recompute_frac, plan.recompute_modules) == ("none", 1.0, ())
    assert (model.tied_embeddings, model.mlp_bias, model.biases, model.mtp_layers) == (False, False, False, 0)
    assert (model.window, model.layer_pattern, model.experts, model.latent_attention) == (0, "s", None, None)
    assert len(found.notes) == 4
    given = asked(vocab=50_000, ffn=8000, sharding="ddp", micro_batch=2, kv_heads=4)
    assert given.notes == ()
    assert (given.job.model.vocab, given.job.model.ffn, given.job.model.kv_heads) == (50_000, 8000, 4)


@pytest.mark.parametrize(
    ("mlp", "ffn", "norm", "positions", "biases"),
    [
        ("swiglu", 5632, "rmsnorm", "rope", False),  # 8/3 of 2,048, in whole 256
        ("gelu", 4 * 2048, "layernorm", "learned", True),
        ("geglu", 4 * 2048, "layernorm", "rope", False),
        ("relu2", 4 * 2048, "layernorm", "rope", False),
    ],
)
def test_the_model_follows_from_its_mlp(mlp: str, ffn: int, norm: str, positions: str, biases: bool) -> None:
    model = asked(mlp=mlp).job.model
    assert (model.ffn, model.norm, model.positions, model.biases) == (ffn, norm, positions, biases)


def test_mpt_has_alibi_and_no_biases() -> None:
    model = asked(mlp="gelu", model="MPT-7B").job.model
    assert (model.positions, model.biases) == ("alibi", False)


def test_rows_that_are_not_used_are_counted_by_reason(tmp_path: Path) -> None:
    """Each row counts, also those that are repeats of one setting."""
    rows = [ROW | {"tp": 1, "tokens_per_s_per_gpu": 9000}]
    rows += [ROW | {"tp": 2, "status": word} for word in ("oom", "oom")]
    rows += [ROW | {"tp": 4, "status": "failed"}, ROW | {"tp": 8, "status": "ok"}]
    found = read_user_runs([runs_file(tmp_path / "runs.csv", *rows)], None, None)
    assert (found.rows, found.rows_used, len(found.pairs), len(found.oom)) == (5, 1, 1, 1)
    assert found.skipped == {NOT_RUN: 3, STATUS_ONLY: 1}
