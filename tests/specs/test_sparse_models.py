"""Parameters of models with experts against what their authors state, and values that no mixture of experts has.

Authors count differently. ``total`` and ``active`` of a row are the authors' numbers in billions, as written, and
``leaves_out`` says which embeddings they leave out of both, or of the active ones only:

- "": both embeddings count, as in ``parameter_count`` and ``active_parameter_count``
- "input": the active parameters leave out the input embedding, which is a lookup
- "both": total and active leave out input embedding and output projection
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import knee
from knee.commands.catalog.result import file_entry
from knee.engine.workload.parameters import active_parameter_count, mtp_parameter_count, parameter_count
from knee.specs.catalog import entry_names
from knee.specs.load import load_model
from knee.specs.model import Experts, LatentAttention, Model
from knee.specs.model.decoder import departures
from refusals import caught, kind
from tables import LLAMA_7B


@dataclass(frozen=True)
class Stated:
    """What the authors say."""

    total: str
    active: str = ""
    leaves_out: str = ""
    besides: float = 0.0
    """Billions that the authors count in the total, and that are no part of the decoder."""
    cut: bool = False
    """Whether the authors cut the last digit of the active parameters and do not round it."""


VISION = 0.872  # vision encoder of Llama 4 and its projection: 108,641,793,536 parameters in all on Hugging Face
STATED = {
    "mixtral-8x7b": Stated("46.7", "12.9"),  # mistral.ai/news/mixtral-of-experts
    "mixtral-8x22b": Stated("141", "39"),
    "qwen1.5-moe-a2.7b": Stated("14.3", "2.7"),
    "qwen2-57b-a14b": Stated("57", "14"),
    # 3.353 B; without the input embedding 3.04 B
    "qwen3-30b-a3b": Stated("30.5", "3.3", cut=True),
    "qwen3-235b-a22b": Stated("235", "22"),
    "qwen3-coder-480b-a35b": Stated("480", "35"),
    "deepseek-moe-16b": Stated("16.4", "2.8"),
    # the report says 2.4 B active; table 3 of Moonlight's report (arXiv 2502.16982) has both without embeddings
    "deepseek-v2-lite": Stated("15.29", "2.24", "both"),
    "deepseek-v2": Stated("236", "21"),
    # README_WEIGHTS.md: 671 B without multi-token prediction, 36.6 B active "including 0.9B for the output head"
    "deepseek-v3": Stated("671", "36.6", "input"),
    "moonlight-16b-a3b": Stated("15.29", "2.24", "both"),
    # the weights; the report says 1.04 T and 32.6 B, where 17 B are one more layer with experts
    "kimi-k2": Stated("1026", "32", "input"),
    "gpt-oss-20b": Stated("20.91", "3.61", "input"),  # the model card says that it leaves out the input embedding
    "gpt-oss-120b": Stated("116.83", "5.13", "input"),
    "llama4-scout": Stated("109", "17", besides=VISION),
    "llama4-maverick": Stated("400", "17"),
    # 314.9 B without the tied embedding, 315.7 B with it; the authors state no active parameters
    "grok-1": Stated("314", "", "both"),
    "olmoe-1b-7b": Stated("6.9", "1.3"),
    "phi-3.5-moe": Stated("41.9", "6.6"),
    "dbrx": Stated("132", "36"),
    # table 1 of arXiv 2508.06471; these counts give its numbers: both without embeddings, GLM-4.5 with its layer for
    # multi-token prediction (4 B)
    "glm-4.5": Stated("355", "32", "both", besides=3.99),
    "glm-4.5-air": Stated("106", "12", "both"),
    # dense models have as many active parameters as parameters
    "llama3-8b": Stated("8.03", "8.03"),
    "qwen3-8b": Stated("8.2", "8.2"),
    "olmo2-7b": Stated("7.3", "7.3"),
    "gemma2-9b": Stated("9.24", "9.24"),
    "llama3.2-3b": Stated("3.21", "3.21"),
}


def close(count: float, stated: str, *, cut: bool = False) -> bool:
    """Within 0.5%, or within half a unit of the authors' last digit."""
    value, unit = float(stated), 10.0 ** -len(stated.partition(".")[2])
    if cut:
        return value <= count < value + unit
    return abs(count - value) <= max(0.005 * value, unit / 2)


def embeddings(model: Model) -> float:
    """Billions of parameters of input embedding and output projection."""
    return (1 if model.tied_embeddings else 2) * model.vocab * model.hidden / 1e9


def test_enough_models_are_compared() -> None:
    sparse = [name for name in STATED if load_model(name).spec.experts is not None]
    assert len(STATED) >= 25
    published = [name for name in entry_names("model") if name != "moe-tiny"]
    assert set(sparse) == {name for name in published if load_model(name).spec.experts is not None}
    assert len(sparse) >= 18


@pytest.mark.parametrize("name", STATED)
def test_total_parameters(name: str) -> None:
    model, stated = load_model(name).spec, STATED[name]
    total = parameter_count(model) / 1e9 - (embeddings(model) if stated.leaves_out == "both" else 0.0)
    assert close(total + stated.besides, stated.total), total


@pytest.mark.parametrize("name", [name for name, stated in STATED.items() if stated.active])
def test_active_parameters(name: str) -> None:
    model, stated = load_model(name).spec, STATED[name]
    out = {"": 0.0, "input": model.vocab * model.hidden / 1e9, "both": embeddings(model)}[stated.leaves_out]
    active = active_parameter_count(model) / 1e9 - out
    assert close(active, stated.active, cut=stated.cut), active


@pytest.mark.parametrize(
    ("name", "count"),
    [  # parameters of the weights on Hugging Face
        ("mixtral-8x7b", 46_702_792_704),
        ("olmoe-1b-7b", 6_919_161_856),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("qwen3-coder-480b-a35b", 480_154_875_392),
    ],
)
def test_parameters_to_the_last_one(name: str, count: int) -> None:
    assert parameter_count(load_model(name).spec) == count


def test_multi_token_prediction_is_counted_apart() -> None:
    """DeepSeek-V3: 671 B, 11.5 B of its own, and 684.5 B on Hugging Face, where it has copies of both embeddings."""
    model = load_model("deepseek-v3").spec
    assert parameter_count(model) == parameter_count(replace(model, mtp_layers=0))
    mtp = mtp_parameter_count(model) / 1e9
    assert mtp == pytest.approx(11.5, rel=0.01)
    assert parameter_count(model) / 1e9 + mtp + embeddings(model) == pytest.approx(684.5, rel=0.005)
    assert mtp_parameter_count(load_model("mixtral-8x7b").spec) == 0


EXPERTS: dict[str, Any] = {"count": 8, "top_k": 2, "ffn": 1024}
LATENT: dict[str, Any] = {"kv_rank": 512, "nope_size": 128, "rope_size": 64, "value_size": 128}


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"count": 0}, "out-of-range", "model.experts.count"),
        ({"top_k": 9}, "out-of-range", "model.experts.top_k"),
        ({"shared_ffn": -1}, "out-of-range", "model.experts.shared_ffn"),
        ({"shared_gate": True}, "contradiction", "model.experts.shared_gate"),
        ({"groups": 3}, "does-not-divide", "model.experts.groups"),
        ({"groups": 4, "top_groups": 5}, "out-of-range", "model.experts.top_groups"),
        ({"groups": 8, "top_groups": 1}, "out-of-range", "model.experts.top_k"),
    ],
)
def test_experts_that_no_model_has(change: dict[str, Any], code: str, field: str) -> None:
    assert kind(caught(lambda: Experts(**EXPERTS | change))) == (code, field)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"experts": Experts(**EXPERTS, dense_layers=32)}, "contradiction", "model.experts.dense_layers"),
        ({"mtp_layers": -1}, "out-of-range", "model.mtp_layers"),
        ({"latent_attention": LatentAttention(**LATENT), "kv_heads": 8}, "contradiction", "model.kv_heads"),
        ({"latent_attention": LatentAttention(**LATENT), "qkv_bias": True}, "contradiction", "model.qkv_bias"),
        ({"latent_attention": LatentAttention(**LATENT), "biases": True}, "contradiction", "model.biases"),
        ({"window_kind": "chunked"}, "contradiction", "model.window_kind"),
    ],
)
def test_parts_that_do_not_fit_together(change: dict[str, Any], code: str, field: str) -> None:
    assert kind(caught(lambda: replace(LLAMA_7B, **change))) == (code, field)


TABLE = """base = "llama2-7b"
mtp_layers = 1
attention_sinks = true
norm_bias = true
output_bias = true
window = 8192
window_kind = "chunked"
layer_pattern = "sssf"
[latent_attention]
kv_rank = 512
nope_size = 128
rope_size = 64
value_size = 128
q_rank = 1536
[experts]
count = 64
top_k = 6
ffn = 1408
shared_ffn = 2816
shared_gate = true
dense_layers = 2
every = 2
scores = "sigmoid"
groups = 8
top_groups = 4
router_bias = true
"""


def test_a_file_can_say_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE, encoding="utf-8")
    model = load_model(str(path), (("experts.top_k", "4"),)).spec
    assert model.experts is not None
    assert (model.experts.top_k, model.expert_layers, model.head_dim) == (4, 15, 192)
    # and what the catalogue prints of it is a file with the same model
    again = tmp_path / "again.toml"
    again.write_text(file_entry(str(path)).to_toml(), encoding="utf-8")
    assert replace(load_model(str(again)).spec, name="mine") == load_model(str(path)).spec


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ("count = 8.5", "not-a-number", "experts.count"),
        ('count = "many"', "not-a-number", "experts.count"),
        ("top_k = 0", "out-of-range", "experts.top_k"),
        ('scores = "tanh"', "unknown-choice", "experts.scores"),
        ('shared_gate = "maybe"', "wrong-type", "experts.shared_gate"),
        ("cont = 8", "unknown-field", "experts.cont"),
    ],
)
def test_tables_with_values_that_no_model_has(tmp_path: Path, line: str, code: str, field: str) -> None:
    path, name = tmp_path / "mine.toml", line.partition(" ")[0]
    rows = [f"{key} = {value}" for key, value in EXPERTS.items() if key != name]
    path.write_text("\n".join(['base = "llama2-7b"', "[experts]", *rows, line]), encoding="utf-8")
    assert kind(caught(lambda: load_model(str(path)))) == (code, field)


def test_a_budget_is_not_that_of_a_dense_model() -> None:
    ask = {"cluster": "dgx-h100", "gpus": 64, "days": 30}
    assert kind(caught(lambda: knee.budget(model="mixtral-8x7b", **ask))) == ("not-modelled", "model.experts")


def test_what_a_model_has_beyond_llamas_block_is_known() -> None:
    other = departures(load_model("deepseek-v3").spec, 4096)
    assert {"experts", "latent_attention", "mtp_layers"} <= other.keys()
