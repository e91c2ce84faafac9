"""``knee simulate`` as a stranger uses it: answers, and an error for every wrong question."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from commands_page import commands_page

from knee.base.errors import DoesNotFit
from knee.commands.main import available, main
from knee.specs.check import SeveralMistakes
from knee.specs.plan import Plan
from refusals import ended, kind, numbers, refused

NAMES = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--profile", "paper")
ASK = (*NAMES, "--local-batch", "2")
KEYS = {
    "step_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu_frac",
    "flop_convention",
    "compute_load_s",
    "comm_load_s",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "overlapped_comm_s",
    "memory_bytes",
    "fits",
    "power_w_per_gpu",
    "tokens_per_j",
    "usd_per_mtoken",
    "assumptions",
}
ASKED_KEYS = {"model", "cluster", "profile", "gpus", "global_batch", "seq_len", "plan"}
JOB = """
model = "llama2-7b"
cluster = "dgx-h100"
profile = "paper"
gpus = 16
local_batch = 2
[plan]
tp = 2
"""


def knee(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def answer(*args: str) -> dict[str, Any]:
    result = knee(*args, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def write(folder: Path, text: str, name: str = "job.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# Answers.


def test_json_has_the_promised_keys() -> None:
    data = answer(*ASK)
    assert data.keys() >= KEYS | ASKED_KEYS
    assert (data["model"], data["cluster"], data["profile"], data["gpus"]) == ("llama2-7b", "dgx-h100", "paper", 16)
    assert data["global_batch"] == 32
    assert data["plan"]["dp_shard"] == 16
    assert data["fits"] is True
    assert data["flop_convention"] == "palm"
    assert data["comm_s"] == pytest.approx(data["exposed_comm_s"] + data["overlapped_comm_s"])
    assert data["assumptions"]


def test_local_batch_is_over_all_gpus_not_over_data_parallel_ranks() -> None:
    assert answer(*ASK, "--tp", "2") == answer(*NAMES, "--global-batch", "32", "--tp", "2")


def test_the_table_has_its_parts_and_ends_with_the_assumptions() -> None:
    lines = knee(*ASK).stdout.splitlines()
    for heading in ("throughput", "time", "communication", "memory", "power", "assumptions:"):
        assert any(line.startswith(heading) for line in lines), heading
    below = lines[lines.index("assumptions:") + 1 :]
    assert below
    assert all(line.startswith("  - ") for line in below)


def test_what_is_not_known_is_said() -> None:
    assert "unknown" in knee(*ASK, "--set", "usd_per_gpu_h=none").stdout
    assert answer(*ASK, "--set", "usd_per_gpu_h=none")["usd_per_mtoken"] is None


def test_the_table_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = knee(*ASK).stdout
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "")
    assert knee(*ASK).stdout == wide


def test_a_convention_is_named_with_its_mfu() -> None:
    data = answer(*ASK, "--flop-convention", "6n")
    assert data["flop_convention"] == "6n"
    assert data["mfu_frac"] < answer(*ASK)["mfu_frac"]


def test_set_changes_one_value() -> None:
    slow = answer(*ASK, "--set", "fabric.nic_bytes_per_s=50Gbit/s")
    assert slow["step_s"] > answer(*ASK)["step_s"]


def test_logarithmic_gathers_are_a_what_if() -> None:
    large = (*ASK, "--gpus", "2048")
    ring, nccl, every = (answer(*large, "--set", f"profile.pat={word}", "--why") for word in ("off", "nccl", "any"))
    # NCCL has them with one GPU a node alone, and this group has eight
    assert ring["step_s"] == nccl["step_s"] == answer(*large)["step_s"]
    assert every["step_s"] < 0.7 * ring["step_s"]
    assert len(every["assumptions"]) == len(nccl["assumptions"]) + 1
    assert {"algorithm": "PAT", "pat": "any"}.items() <= {line["name"]: line["value"] for line in every["why"]}.items()
    assert kind(refused(*large, "--set", "profile.pat=true")) == ("unknown-choice", "pat")


def test_every_field_of_the_plan_has_an_option() -> None:
    options = {one.name for one in main.get_command(click.Context(main), "simulate").params}  # type: ignore[union-attr]
    assert options >= {f.name for f in fields(Plan)}


DENSE_ROUTING = {
    "ep": 1,
    "etp": 1,
    "dispatcher": "alltoall",
    "ep_overlap": False,
    "routing": "balanced",
    "imbalance": None,
    "capacity_factor": None,
    "recompute_modules": [],
}


def test_every_option_of_the_plan_reaches_it() -> None:
    options = """
        --global-batch 16 --tp 2 --pp 2 --cp 2 --ep 1 --etp 1 --dp-shard 1 --dp-replicate 2 --sync-every 500
        --sync-fragments 5 --sync-dtype fp8 --collectives hierarchical
        --sharding zero1 --schedule interleaved --virtual-stages 2 --micro-batch 2 --recompute blocks
        --recompute-frac 0.5 --precision fp16 --fp8-recipe tensorwise --prefetch 2 --reduce-dtype fp32
        --state-dtype bf16 --moment-dtype fp8 --cp-method ring
        --no-sequence-parallel --tp-overlap 25% --placement cp-tp-dp_shard-dp_replicate-pp
    """
    plan = answer(*NAMES, *options.split())["plan"]
    assert plan == {
        "tp": 2,
        "pp": 2,
        "cp": 2,
        "ep": 1,
        "etp": 1,
        "dp_shard": 1,
        "dp_replicate": 2,
        "sharding": "zero1",
        "schedule": "interleaved",
        "virtual_stages": 2,
        "micro_batch": 2,
        "recompute": "blocks",
        "recompute_frac": 0.5,
        "precision": "fp16",
        "fp8_recipe": "tensorwise",
        "prefetch": 2,
        "sync_every": 500,
        "sync_fragments": 5,
        "sync_dtype": "fp8",
        "collectives": "hierarchical",
        "reduce_dtype": "fp32",
        "state_dtype": "bf16",
        "moment_dtype": "fp8",
        "cp_method": "ring",
        "sequence_parallel": False,
        "tp_overlap_frac": 0.25,
        "placement": ["cp", "tp", "dp_shard", "dp_replicate", "pp"],
        **DENSE_ROUTING,
    }


def test_every_option_of_experts_reaches_the_plan() -> None:
    options = """
        --global-batch 64 --ep 4 --tp 2 --etp 2 --dispatcher deepep --ep-overlap --routing dropless --imbalance 1.5
        --capacity-factor 2 --recompute modules --recompute-modules layernorm+moe_act
    """
    plan = answer("simulate", "qwen3-30b-a3b", "--cluster", "dgx-h200", "--gpus", "64", *options.split())["plan"]
    expected = {"ep": 4, "etp": 2, "dispatcher": "deepep", "ep_overlap": True, "routing": "dropless"}
    expected |= {"imbalance": 1.5, "capacity_factor": 2, "recompute_modules": ["layernorm", "moe_act"]}
    assert {name: plan[name] for name in expected} == expected


def test_why_explains_and_the_assumptions_stay_last() -> None:
    text = knee(*ASK, "--why").stdout
    assert "\nwhy (" in text
    assert "step_s" in text.partition("\nwhy (")[2]
    assert text.index("\nwhy (") < text.index("\nassumptions:\n")
    assert {"name", "value", "formula", "source", "depth"} == answer(*ASK, "--why")["why"][0].keys()


def test_trace_names_its_files_on_stderr(tmp_path: Path) -> None:
    result = knee(*ASK, "--pp", "2", "--trace", str(tmp_path / "step.json"), "--json")
    assert result.exit_code == 0
    json.loads(result.stdout)
    written = [line.removeprefix("wrote ") for line in result.stderr.splitlines()]
    assert len(written) == 2
    assert all("traceEvents" in json.loads(Path(name).read_text()) for name in written)


# Files.


def test_a_job_file(tmp_path: Path) -> None:
    assert answer("simulate", write(tmp_path, JOB)) == answer(*ASK, "--tp", "2")


def test_options_replace_what_a_job_file_says(tmp_path: Path) -> None:
    path = write(tmp_path, JOB)
    options = """
        --gpus 32 --global-batch 32 --cluster dgx-a100 --tp 4 --seq-len 2048 --profile fused --set attention=flash2
        --set model.layers=16
    """
    data = answer("simulate", path, *options.split())
    assert (data["gpus"], data["global_batch"], data["cluster"], data["plan"]["tp"]) == (32, 32, "dgx-a100", 4)
    assert (data["seq_len"], data["profile"], data["plan"]["dp_shard"]) == (2048, "fused", 8)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ('cluster = "dgx-h100"', ("--cluster", "dgx-h100")),
        ("gpus = 16", ("--gpus", "16")),
        ("local_batch = 2", ("--local-batch", "2")),
        ("local_batch = 2", ("--global-batch", "32")),
        ("tp = 2", ("--tp", "2")),
        ("[plan]\ntp = 2", ("--tp", "2")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_options_complete_a_job_file(line: str, option: tuple[str, ...], tmp_path: Path) -> None:
    assert line in JOB
    assert answer("simulate", write(tmp_path, JOB.replace(line, "")), *option) == answer(*ASK, "--tp", "2")


def test_options_that_replace_wrong_values_of_a_job_file(tmp_path: Path) -> None:
    wrong = JOB.replace("gpus = 16", "gpus = 0").replace("dgx-h100", "dgx-h10").replace("tp = 2", 'tp = "two"')
    path = write(tmp_path, wrong)
    error = refused("simulate", path)
    assert isinstance(error, SeveralMistakes)
    assert {one.place for one in error.mistakes} == {"gpus", "cluster", "plan.tp"}
    assert answer("simulate", path, "--gpus", "16", "--cluster", "dgx-h100", "--tp", "2") == answer(*ASK, "--tp", "2")


def test_paths_of_options_start_here_and_those_of_a_file_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    write(tmp_path, 'base = "dgx-h100"\nusd_per_gpu_h = 1\n', "mine.toml")
    write(tmp_path / "jobs", 'base = "dgx-h100"\nusd_per_gpu_h = 2\n', "mine.toml")
    write(tmp_path / "jobs", JOB.replace("dgx-h100", "mine.toml"))
    monkeypatch.chdir(tmp_path)
    there, here = answer("simulate", "jobs/job.toml"), answer("simulate", "jobs/job.toml", "--cluster", "mine.toml")
    assert there["usd_per_mtoken"] == pytest.approx(2 * here["usd_per_mtoken"])


def test_set_inside_a_list() -> None:
    ask = (*ASK, "--gpus", "1024", "--set", "fabric.topology_aware=false")
    assert answer(*ask, "--set", "fabric.tiers.0.oversubscription=4")["step_s"] > answer(*ask)["step_s"]


def test_a_model_file_is_a_model(tmp_path: Path) -> None:
    text = "layers = 32\nhidden = 4096\nffn = 11008\nheads = 32\nkv_heads = 32\nvocab = 32000\n"
    path = write(tmp_path, text, "mine.toml")
    data = answer("simulate", path, *ASK[2:])
    assert data["model"] == "mine"
    assert data["step_s"] == answer(*ASK)["step_s"]


def test_a_folder_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-llama").mkdir()
    shape = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    write(tmp_path / "my-llama", json.dumps(shape), "config.json")
    monkeypatch.chdir(tmp_path)
    for ref in ("my-llama", "my-llama/config.json"):
        assert answer("simulate", ref, *ASK[2:])["model"] == "my-llama"


# Wrong questions.


@pytest.mark.parametrize(
    ("args", "code", "field", "near"),
    [
        (("simulate", "lama2-7b", *ASK[2:]), "unknown-name", "model", "llama2-7b"),
        ((*ASK, "--cluster", "dgx-h10"), "unknown-name", "cluster", "dgx-h100"),
        ((*ASK, "--profile", "pper"), "unknown-name", "profile", "paper"),
        ((*ASK, "--sharding", "fsp"), "unknown-choice", "sharding", "fsdp"),
        ((*ASK, "--recompute", "some"), "unknown-choice", "recompute", ""),
        ((*ASK, "--flop-convention", "plam"), "unknown-choice", "flop_convention", "palm"),
        ((*ASK, "--gpu", "8"), "unknown-option", "--gpu", "--gpus"),
        (("simulat",), "unknown-command", None, "simulate"),
        (("zzz",), "unknown-command", None, "simulate, plan"),
        (("simulate",), "missing-argument", "model", ""),
        (("simulate", "", *ASK[2:]), "missing-argument", "model", ""),
        ((*ASK, "--cluster", ""), "missing-argument", "cluster", ""),
        ((*ASK, "--profile", ""), "missing-argument", "profile", ""),
        (("simulate", "llama2-7b"), "missing-argument", "cluster", ""),
        ((*ASK, "--global-batch", "32"), "contradiction", "local_batch", ""),
        ((*ASK, "more"), "usage", None, ""),
        ((*ASK, "--gpus", "many"), "not-a-number", "gpus", ""),
    ],
)
def test_unknown_names_and_missing_options(args: tuple[str, ...], code: str, field: str | None, near: str) -> None:
    error = refused(*args)
    assert kind(error) == (code, field)
    assert near in str(error.hint)


def test_a_plan_that_does_not_fill_the_gpus_prints_every_factor() -> None:
    error = refused(*ASK, "--dp-shard", "4", "--tp", "2")
    assert kind(error) == ("does-not-fill", "gpus")
    assert error.message.endswith("dp_replicate(1) * dp_shard(4) * tp(2) * pp(1) * cp(1) != gpus(16)")
    assert kind(refused(*ASK, "--tp", "3")) == ("does-not-divide", "gpus")


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        (("--gpus", "48", "--tp", "3"), "does-not-divide", "plan.tp"),
        (("--gpus", "48", "--pp", "48"), "out-of-range", "plan.pp"),
        (("--micro-batch", "3"), "does-not-divide", "plan.micro_batch"),
        (("--schedule", "interleaved", "--pp", "2"), "contradiction", "plan"),
        (("--placement", "tp-pp"), "not-each-once", "plan.placement"),
        (("--precision", "fp8", "--cluster", "dgx-a100"), "no-rate", "plan.precision"),
        (("--local-batch", "0.3"), "batch-not-whole", "local_batch"),
        (("--tp-overlap", "much"), "not-an-amount", "plan.tp_overlap_frac"),
        (("--set", "layers=many"), "not-a-number", "layers"),
        (("--set", "hbm_bytes=nan"), "not-finite", "gpu.hbm_bytes"),
        (("--set", "hbm_bytes_per_s=3GB"), "not-an-amount", "gpu.hbm_bytes_per_s"),
    ],
)
def test_plans_and_values_that_cannot_be(args: tuple[str, ...], code: str, field: str) -> None:
    assert kind(refused(*ASK, *args)) == (code, field)


@pytest.mark.parametrize(
    ("field", "option", "values"),
    [
        ("gpus", "--gpus", ("-8", "0", "1000000000", "9" * 30)),
        ("seq_len", "--seq-len", ("-1", "0", "99999999999")),
        ("plan.micro_batch", "--micro-batch", ("0", "-2", "9" * 30)),
        ("plan.tp", "--tp", ("-1", "0")),
        ("plan.pp", "--pp", ("-1",)),
        ("plan.cp", "--cp", ("-4",)),
        ("plan.dp_shard", "--dp-shard", ("-1",)),
        ("local_batch", "--local-batch", ("-2", "nan", "inf", "0", "1e30")),
        ("plan.prefetch", "--prefetch", ("-1", "9" * 30)),
        ("plan.virtual_stages", "--virtual-stages", ("9" * 30,)),
        ("plan.tp_overlap_frac", "--tp-overlap", ("2", "-1")),
        ("layers", "--set", ("layers=-4", "layers=" + "9" * 30)),
        ("gpu.hbm_bytes", "--set", ("hbm_bytes=-1",)),
        ("fabric.nic_bytes_per_s", "--set", ("fabric.nic_bytes_per_s=1e-300",)),
    ],
)
def test_negative_and_absurd_sizes(field: str, option: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert kind(refused(*ASK, option, value)) == ("out-of-range", field), value


@pytest.mark.parametrize(
    ("sets", "code", "field", "near"),
    [
        (("gpus=8",), "not-an-override", "gpus", "--gpus"),
        (("seq_len=8",), "not-an-override", "seq_len", "--seq-len"),
        (("cluster=dgx-a100",), "not-an-override", "cluster", "--cluster"),
        (("model=llama2-13b",), "not-an-override", "model", ""),
        (("hop_s=1us",), "ambiguous-field", "hop_s", ""),
        (("layrs=3",), "unknown-field", "layrs", "layers"),
        (("layers",), "not-key-value", "overrides", ""),
        (("=3",), "not-key-value", "overrides", ""),
        (("layers=",), "not-key-value", "overrides", ""),
        (("layers=3", "layers=4"), "contradiction", "overrides", ""),
        (("sharding=fsdp",), "contradiction", "sharding", ""),
    ],
)
def test_wrong_sets(sets: tuple[str, ...], code: str, field: str, near: str) -> None:
    options = [word for text in sets for word in ("--set", text)]
    error = refused(*ASK, "--sharding", "zero1", *options)
    assert kind(error) == (code, field)
    assert near in str(error.hint)


def test_a_broken_file_is_placed(tmp_path: Path) -> None:
    error = refused("simulate", write(tmp_path, 'gpus = 8\nmodel = "llama2-7b\n'))
    assert error.code == "not-toml"
    assert "line 2" in error.message
    assert refused("simulate", "nothing.toml").code == "no-file"


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    text = """
        model = "llama2-7"
        clustr = "dgx-h100"
        gpus = "many"
        [plan]
        tp = "x"
        shardng = "fsdp"
    """
    error = refused("simulate", write(tmp_path, text))
    assert isinstance(error, SeveralMistakes)
    assert {(one.code, one.place) for one in error.mistakes} == {
        ("unknown-name", "model"),
        ("unknown-field", "clustr"),
        ("missing-field", "cluster"),
        ("not-a-number", "gpus"),
        ("not-a-number", "plan.tp"),
        ("unknown-field", "plan.shardng"),
    }
    assert len(error.message.splitlines()) == 7
    for near in ("llama2-7b", "cluster?", "sharding?"):
        assert near in error.message


@pytest.mark.parametrize(
    ("file", "code"), [("step.txt", "unknown-choice"), ("no/such/folder/step.json", "not-writable")]
)
def test_a_trace_that_cannot_be_written(file: str, code: str, tmp_path: Path) -> None:
    assert kind(refused(*ASK, "--trace", tmp_path / file)) == (code, "trace")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_nothing_could_open(tmp_path: Path) -> None:
    error = refused(*ASK, "--local-batch", "65536", "--micro-batch", "1", "--trace", tmp_path / "step.json")
    assert kind(error) == ("too-large", "trace")
    assert numbers(error.message) == [65_536, 32]


# A plan that does not fit.


def test_a_plan_that_does_not_fit_is_answered_in_full() -> None:
    result, error = ended("simulate", "llama2-70b", *ASK[2:], "--json")
    assert isinstance(error, DoesNotFit)
    data = json.loads(result.stdout)
    assert data["fits"] is False
    assert data.keys() >= KEYS
    assert data["step_s"] > 0
    needs, has = numbers(error.message)
    assert (needs, has) == (pytest.approx(data["memory_bytes"] / 2**30, rel=0.01), 79.6)
    assert error.hint


def test_the_hint_fits() -> None:
    asked = ("simulate", "llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--local-batch", "4")
    result, error = ended(*asked)
    assert isinstance(error, DoesNotFit)
    assert "NOT" in result.stdout
    changes = str(error.hint).partition("--")
    assert answer(*asked, *f"--{changes[2]}".split())["fits"] is True


# The process itself.


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "knee", *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--version",), 0),
        ((*ASK, "--nope"), 2),
        (("simulate", "llama2-70b", *ASK[2:]), 3),
    ],
    ids=["version", "option", "does-not-fit"],
)
def test_exit_codes(args: tuple[str, ...], code: int) -> None:
    done = run(*args)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert (done.stderr == "") == (code == 0)


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_failure_to_report() -> None:
    script = f"{sys.executable} -m knee catalog | head -n 1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == "models\n"
    assert done.stderr == ""


def test_help_imports_nothing_heavy() -> None:
    """So that it is quick: benchmarks/startup.py has the milliseconds."""
    code = "import sys; sys.argv = ['knee', '--help']; from knee.commands.main import main"
    code += "\ntry: main()\nfinally: print(*sys.modules)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "pydantic", "rich"} & set(text.splitlines()[-1].split())


def test_help_lists_what_the_commands_say_of_themselves() -> None:
    text = knee("--help").stdout
    assert knee().stdout == text
    for name in available():
        assert f"\n  {name} " in text
        assert knee(name, "--help").exit_code == 0


def test_the_page_of_commands_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "commands.md"
    assert page.read_text(encoding="utf-8") == commands_page(), "run make docs"
