"""Models of the catalogue against what their authors published, and values that no model has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.base.errors import SpecError
from knee.engine.workload.parameters import parameter_count
from knee.specs.catalog import entry_names
from knee.specs.load import load_model
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob
from refusals import caught, kind
from tables import LLAMA_7B

PUBLISHED = {
    # parameters of the weights on Hugging Face, tied projections counted once
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "mistral-7b": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "phi-4": 14_659_507_200,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "gpt-neox-20b": 20_554_567_680,
    # embedding and other parameters, in millions, of arXiv 2503.19786, table 1; without the vision encoder
    "gemma3-4b": (675 + 3_209) * 10**6,
    "gemma3-12b": (1_012 + 10_759) * 10**6,
    "gemma3-27b": (1_416 + 25_600) * 10**6,
}
STATED = {  # billions on the model cards and in the reports
    "qwen2.5-7b": 7.61,
    "qwen2.5-72b": 72.7,
    "qwen3-8b": 8.2,
    "qwen3-14b": 14.8,
    "qwen3-32b": 32.8,
    "gemma2-2b": 0.590 + 2.024,
    "gemma2-9b": 0.918 + 8.324,
    "gemma2-27b": 1.180 + 26.047,
    "olmo2-7b": 7.3,
    "olmo2-13b": 13.7,
    "olmo2-32b": 32.2,
    "llama3.2-1b": 1.23,
    "llama3.2-3b": 3.21,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name: str) -> None:
    assert parameter_count(load_model(name).spec) == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_those_that_the_authors_state(name: str) -> None:
    assert parameter_count(load_model(name).spec) / 1e9 == pytest.approx(STATED[name], rel=0.005)


@pytest.mark.parametrize("name", sorted(set(entry_names("model")) & set(PUBLISHED)))
def test_every_model_can_be_simulated(name: str) -> None:
    answer = knee.simulate(name, cluster="dgx-h100", gpus=64, local_batch=1, seq_len=4096, sharding="fsdp", tp=2)
    assert 0.05 < answer.measurement.mfu_frac < 0.75


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"window": -1}, "out-of-range", "model.window"),
        ({"window": 128, "layer_pattern": "sl"}, "unknown-choice", "model.layer_pattern"),
        ({"window": 128, "layer_pattern": ""}, "unknown-choice", "model.layer_pattern"),
        ({"window": 128, "layer_pattern": "s" * 33}, "out-of-range", "model.layer_pattern"),
        ({"window": 128, "layer_pattern": "f"}, "contradiction", "model.layer_pattern"),
        ({"layer_pattern": "sf"}, "contradiction", "model.layer_pattern"),
        ({"rope_frac": 0.0}, "out-of-range", "model.rope_frac"),
        ({"rope_frac": 1.5}, "out-of-range", "model.rope_frac"),
        ({"attention_soft_cap": -1.0}, "out-of-range", "model.attention_soft_cap"),
        ({"final_soft_cap": float("nan")}, "out-of-range", "model.final_soft_cap"),
        ({"layer_norms": 0}, "out-of-range", "model.layer_norms"),
        ({"layer_norms": 1}, "contradiction", "model.layer_norms"),
        ({"kv_heads": 5}, "does-not-divide", "model.heads"),
    ],
)
def test_values_that_no_model_has(change: dict[str, Any], code: str, field: str) -> None:
    assert kind(caught(lambda: replace(LLAMA_7B, **change))) == (code, field)


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ('qk_norm = "some"', "unknown-choice", "qk_norm"),
        ('mlp = "glu"', "unknown-choice", "mlp"),
        ('positions = "spiral"', "unknown-choice", "positions"),
        ("window = -4", "out-of-range", "window"),
        ("window = 1.5", "not-a-number", "window"),
        ('qkv_bias = "maybe"', "wrong-type", "qkv_bias"),
    ],
)
def test_files_with_values_that_no_model_has(tmp_path: Path, line: str, code: str, field: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "llama2-7b"\n{line}\n', encoding="utf-8")
    assert kind(caught(lambda: load_model(str(path)))) == (code, field)


def test_a_file_can_say_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "llama2-7b"\nhead_size = 64\nqk_norm = "full"\nwindow = 1024\nlayer_pattern = "ssf"\nmlp = "geglu"\n'
        "attention_soft_cap = 50\nfinal_soft_cap = 30\nlayer_norms = 1\nparallel_residual = true\nrope_frac = 0.5\n"
        "qkv_bias = true\nattention_output_bias = true\nmlp_bias = true\ntied_embeddings = true\n",
        encoding="utf-8",
    )
    model = load_model(str(path)).spec
    assert (model.sliding_layers, model.gated, model.head_dim) == (22, True, 64)  # of 32: ssf ten times, and ss


@pytest.mark.parametrize(("layers", "pattern", "sliding"), [(34, "sssssf", 29), (26, "sf", 13), (32, "s", 32)])
def test_a_pattern_repeats_and_is_cut(layers: int, pattern: str, sliding: int) -> None:
    assert replace(LLAMA_7B, layers=layers, window=512, layer_pattern=pattern).sliding_layers == sliding


def test_kernels_that_cannot_compute_the_attention_are_refused() -> None:
    for model, attention in (("gemma2-9b", "cudnn"), ("mistral-7b-v0.1", "flash1")):
        with pytest.raises(SpecError) as refused:
            knee.simulate(
                model,
                cluster="dgx-a100",
                gpus=8,
                local_batch=1,
                seq_len=8192,
                overrides={"profile.attention": attention},
            )
        assert kind(refused.value) == ("not-modelled", "profile.attention")
        assert "flash2" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"qk_norm": "full"}, "model.qk_norm"),
        ({"window": 63}, "model.window"),
        ({"final_soft_cap": 30.0}, "model.final_soft_cap"),
        ({"parallel_residual": True}, "model.parallel_residual"),
        ({"layer_norms": 4}, "model.layer_norms"),
        ({"rope_frac": 0.5}, "model.rope_frac"),
        ({"output_bias": True}, "model.output_bias"),
        ({"mlp": "geglu"}, "model.mlp"),
    ],
)
def test_the_trainer_refuses_what_it_cannot_run(change: dict[str, Any], field: str) -> None:
    shape: dict[str, Any] = {"plan": Plan(), "gpus": 1, "global_batch": 1, "seq_len": 64}
    error = caught(lambda: TrainJob(model=replace(LLAMA_7B, **change), **shape))
    assert kind(error) == ("not-trained", field)
    TrainJob(model=replace(LLAMA_7B, window=64), **shape)  # not shorter than the sequence
