"""Hugging Face ``config.json`` -> the fields of a model: what the keys of each family mean, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.base.files import is_deep
from knee.specs.model.decoder import MOST_LAYERS

# Families of Hugging Face configs, dense and with experts: which keys of ``config.json`` say what of a model.

LAYER_TYPES = {"full_attention": "f", "sliding_attention": "s"}
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "su", "llama3")
"""Ways to stretch the rotary embedding; none changes the work of a step."""


class Keys:
    """A config's values. ``used`` are the keys that somebody asked for: what changes the work and is not among them is
    refused."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value; the default also where it is null."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """A value without which there is no model."""
        self.used.add(key)
        if self.values.get(key) is None:
            raise KeyError(key)
        return self.values[key]

    def number(self, key: str, default: float | None = None) -> Any:
        """What can be multiplied: a word would be repeated as often as the model is wide."""
        value = self.need(key) if default is None else self.get(key, default)
        if type(value) not in (int, float):
            raise self.wrong(key, "should be a number")
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number that is not too small."""
        value = self.need(key) if default is None else self.get(key, default)
        if type(value) is not int:
            raise self.wrong(key, "must be a whole number")
        if value < least:
            raise self.wrong(key, f"must be at least {least}", code="out-of-range")
        return value

    def wholes(self, key: str) -> list[int]:
        """A list of whole numbers, which may be missing."""
        value = self.get(key, [])
        if not isinstance(value, list) or any(type(one) is not int for one in value):
            raise self.wrong(key, "must be a list of whole numbers", "correct it, or remove it")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false, and no word that Python takes for true."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "should be true or false", "write true or false without quotation marks")
        return value

    def inside(self, key: str) -> Keys:
        """The keys of a nested table, which may be missing."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "should be an object", "correct it, or remove it")
        return Keys(self.path, value)

    def wrong(self, key: str, rule: str, hint: str = "correct it", *, code: str = "wrong-type") -> InputError:
        """The error about a value of this config."""
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 60 else shown[:60] + "..."
        return InputError(f"{self.path}: {key} is {shown}; it {rule}", hint=hint, code=code, field=key)

    def choice(self, key: str, default: str, known: dict[str, str]) -> str:
        """A word in knee's own words."""
        value = str(self.get(key, default))
        if value not in known:
            hint = "describe the model in a TOML file with the nearest of knee's own fields"
            raise self.wrong(key, f"must be one of {', '.join(known)}", hint, code="not-modelled")
        return known[value]

    def rope(self) -> dict[str, Any]:
        """Base and rotated share, from this release's keys or from ``rope_parameters`` of later ones."""
        scaling, parameters = self.inside("rope_scaling"), self.inside("rope_parameters")
        tables = [t for t in parameters.values.values() if isinstance(t, dict)] or [parameters.values]
        for key, table in (("rope_scaling", scaling.values), *(("rope_parameters", t) for t in tables)):
            kind = table.get("rope_type", table.get("type", "default"))
            if kind not in ROPE_TYPES:
                text = f"{self.path}: {key} has the rope type {str(kind)[:60]!r}, which is not modelled"
                hint = f"use one of {', '.join(ROPE_TYPES)}; none of them changes the simulated time"
                raise InputError(text, hint=hint, code="not-modelled", field=key)
        # of several bases, that of the layers with full attention
        last = parameters.values.get("full_attention", tables[0])
        base = self.get("rope_theta", self.get("rotary_emb_base", last.get("rope_theta")))
        share = self.get("partial_rotary_factor", self.get("rotary_pct", last.get("partial_rotary_factor")))
        if base is not None and type(base) not in (int, float):
            raise self.wrong("rope_theta", "should be a number")
        return {"rope_base": base or 10_000.0, "rope_frac": 1.0 if share is None else share}

    def window(self, default: Any = None, *, pattern: str = "s") -> dict[str, Any]:
        """The sliding window and its layers, by ``layer_types`` where the config has them, else by a pattern."""
        types = self.get("layer_types")
        letters = pattern if types is None else self.letters(LAYER_TYPES)
        # null is an answer, full attention; only a key that is not there has the default
        window = self.get("sliding_window", None if "sliding_window" in self.values else default)
        self.flag("use_sliding_window")
        if window is None or self.values.get("use_sliding_window") is False or "s" not in letters:
            if types is not None and "s" in letters:
                rule = "is needed by layers with sliding_attention"
                hint = "give sliding_window its size, or make all layers full_attention"
                raise self.wrong("sliding_window", rule, hint, code="contradiction")
            return {}
        if type(window) is not int or window < 1:
            hint = "give a number of tokens, or null for full attention"
            raise self.wrong("sliding_window", "must be a whole number of at least 1", hint, code="out-of-range")
        return {"window": window, "layer_pattern": letters}

    def letters(self, known: dict[str, str]) -> str:
        """``layer_types`` as the shortest pattern that repeats."""
        types, layers = self.need("layer_types"), self.number("num_hidden_layers")
        if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
            raise self.wrong("layer_types", "must be a list of words", "correct it, or remove it")
        if len(types) != layers:
            text = f"{self.path}: layer_types has {len(types):,} entries, but num_hidden_layers is {layers:,}"
            hint = "give one entry per layer"
            raise InputError(text, hint=hint, code="contradiction", field="layer_types")
        unknown = sorted(set(types) - set(known))
        if unknown:
            text = f"{self.path}: layer_types has {unknown[0][:60]!r}, which is not modelled"
            hint = f"knee models {' and '.join(known)} here"
            raise InputError(text, hint=hint, code="not-modelled", field="layer_types")
        return shortest_pattern("".join(known[one] for one in types))


def shortest_pattern(letters: str) -> str:
    """The shortest pattern that gives these letters when it repeats and is cut."""
    length = len(letters)
    repeats = (letters[:n] for n in range(1, length + 1) if letters == (letters[:n] * length)[:length])
    return next(repeats, "f")


# What the keys of each family of Hugging Face configs mean.

GATES = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(("gelu", "gelu_new", "gelu_pytorch_tanh"), "geglu")}
PLAIN = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
TEXT_PARTS = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text"}
"""Families with a ``text_config``, and the family of that."""


def decoder_fields(c: Keys, *, tied: bool = False) -> dict[str, Any]:
    """What all descendants of Llama share: gated MLP, RMSNorm, rotary embedding."""
    heads = c.need("num_attention_heads")
    return {
        "layers": c.need("num_hidden_layers"),
        "hidden": c.need("hidden_size"),
        "ffn": c.need("intermediate_size"),
        "heads": heads,
        "kv_heads": c.get("num_key_value_heads", heads),
        "head_size": c.get("head_dim", 0),
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_position_embeddings", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings", tied),
        "mlp": c.choice("hidden_act", "silu", GATES),
        "norm": "rmsnorm",
        "norm_eps": c.number("rms_norm_eps", 1e-6),
        "positions": "rope",
        **c.rope(),
    }


def attention_biases(c: Keys) -> dict[str, bool]:
    bias = c.flag("attention_bias")
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _grouped_queries(c: Keys, *, tied: bool = False) -> dict[str, Any]:
    """A decoder whose config has to say how many key-value heads it has: transformers' defaults differ."""
    c.need("num_key_value_heads")
    return decoder_fields(c, tied=tied)


def qwen2_fields(c: Keys) -> dict[str, Any]:
    """Queries, keys and values have biases. The window is off unless it is switched on, and then begins at a layer."""
    c.need("num_key_value_heads")
    window: dict[str, Any] = {}
    first = c.number("max_window_layers", 0)
    if c.flag("use_sliding_window"):
        layers = c.number("num_hidden_layers")
        full = max(0, min(int(first), int(layers)))
        window = c.window(pattern="f" * full + "s" * (int(layers) - full) if full else "s")
    elif c.get("layer_types") is not None:
        window = c.window()
    c.used.add("sliding_window")
    return {**decoder_fields(c), "qkv_bias": True, **window}


def qwen3_fields(c: Keys) -> dict[str, Any]:
    """A norm of each head instead of biases."""
    return {**qwen2_fields(c), **attention_biases(c), "head_size": c.get("head_dim", 128), "qk_norm": "head"}


def _olmo(c: Keys) -> dict[str, Any]:
    """Norms after attention and the MLP, and of all queries and keys."""
    return {**decoder_fields(c), **attention_biases(c), "qk_norm": "full"}


def _gemma(c: Keys) -> dict[str, Any]:
    default = c.get("hidden_act", "gelu_pytorch_tanh")
    c.values = {
        "hidden_act": c.get("hidden_activation", default),
        **{k: v for k, v in c.values.items() if k != "hidden_act"},
    }
    return {**decoder_fields(c, tied=True), **attention_biases(c), "head_size": c.get("head_dim", 256)}


def _gemma2(c: Keys) -> dict[str, Any]:
    """Four norms, soft caps, and a window in every second layer."""
    c.values = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} | c.values
    return {**_four_norms(c), **c.window(4096, pattern="sf")}


def _four_norms(c: Keys) -> dict[str, Any]:
    """What Gemma 2 and 3 share."""
    c.need("num_key_value_heads")
    fields = {**_gemma(c), "layer_norms": 4, "attention_soft_cap": c.get("attn_logit_softcapping", 0.0)}
    return {**fields, "final_soft_cap": c.get("final_logit_softcapping", 0.0)}


GEMMA3 = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
}
"""What the configs of Gemma 3 leave out: transformers' defaults."""


def _gemma3(c: Keys) -> dict[str, Any]:
    """A norm of each head instead of soft caps, and full attention in every sixth layer."""
    c.values = GEMMA3 | c.values
    every = c.get("sliding_window_pattern", c.get("_sliding_window_pattern", 6))
    if type(every) is not int or every < 1:
        hint = "6 means five layers with the window and one without"
        raise c.wrong("sliding_window_pattern", "must be a whole number of at least 1", hint, code="out-of-range")
    layers = int(c.number("num_hidden_layers"))
    pattern = ("s" * (every - 1) + "f")[: max(layers, 1)] if every <= layers else "s"
    return {**_four_norms(c), "qk_norm": "head", **c.window(4096, pattern=pattern)}


def _with_biases(c: Keys, activation: str, rope_frac: float) -> dict[str, Any]:
    """What GPT-NeoX and the first Phi share: biases everywhere, a plain MLP, LayerNorm and a rotated share."""
    heads = c.need("num_attention_heads")
    return {
        "layers": c.need("num_hidden_layers"),
        "hidden": c.need("hidden_size"),
        "ffn": c.need("intermediate_size"),
        "heads": heads,
        "kv_heads": heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_position_embeddings", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings"),
        "biases": True,
        "mlp": c.choice("hidden_act", activation, PLAIN),
        "norm": "layernorm",
        "norm_eps": c.number("layer_norm_eps", 1e-5),
        "positions": "rope",
        **c.rope(),
        **({} if c.get("rotary_pct", c.get("partial_rotary_factor")) is not None else {"rope_frac": rope_frac}),
    }


def _gpt_neox(c: Keys) -> dict[str, Any]:
    """Two norms, and a parallel residual unless it is switched off."""
    if not c.flag("attention_bias", True):
        hint = "describe the model in a TOML file"
        raise c.wrong("attention_bias", "must be true in GPT-NeoX", hint, code="not-modelled")
    return {**_with_biases(c, "gelu", 0.25), "parallel_residual": c.flag("use_parallel_residual", True)}


def _phi(c: Keys) -> dict[str, Any]:
    """Phi-1 to Phi-2: attention and the MLP read one norm, and the output projection has a bias too."""
    grouped = {"kv_heads": c.get("num_key_value_heads", c.need("num_attention_heads"))}
    beside = {"layer_norms": 1, "parallel_residual": True, "output_bias": True}
    return {**_with_biases(c, "gelu_new", 0.5), **grouped, **beside}


def _gpt2(c: Keys) -> dict[str, Any]:
    heads = c.need("n_head")
    return {
        "layers": c.need("n_layer"),
        "hidden": c.need("n_embd"),
        "ffn": c.get("n_inner") or 4 * c.number("n_embd"),
        "heads": heads,
        "kv_heads": heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("n_positions", 1024),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "biases": True,
        "mlp": c.choice("activation_function", "gelu_new", PLAIN),
        "norm": "layernorm",
        "positions": "learned",
    }


def _mpt(c: Keys) -> dict[str, Any]:
    attention = c.inside("attn_config")
    c.inside("ffn_config").choice("ffn_type", "mptmlp", {"mptmlp": "gelu"})
    for key, off in (("clip_qkv", 0), ("sliding_window_size", -1), ("qk_gn", False)):
        if attention.get(key, off) != off:
            rule = "changes the work, and is not modelled for mpt"
            raise attention.wrong(key, rule, "remove it", code="not-modelled")
    kv_heads = {"multiquery_attention": 1, "grouped_query_attention": attention.get("kv_n_heads")}
    heads, alibi = c.need("n_heads"), attention.flag("alibi")
    return {
        "layers": c.need("n_layers"),
        "hidden": c.need("d_model"),
        "ffn": int(c.number("expansion_ratio", 4) * c.number("d_model")),
        "heads": heads,
        "kv_heads": kv_heads.get(str(attention.get("attn_type"))) or heads,
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_seq_len", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings", True),
        "biases": not c.flag("no_bias"),
        "mlp": "gelu",
        "norm": "layernorm",
        "qk_norm": "full" if attention.flag("qk_ln") else "none",
        "positions": "alibi" if alibi else "rope" if attention.flag("rope") else "learned",
    }


# Which layers of a config have experts, in knee's two fields.


def layers_with_experts(c: Keys, key: str, has_experts: Callable[[int], bool]) -> dict[str, Any]:
    """``dense_layers`` and ``every`` that give exactly the layers that a config's keys give; ``key`` is the one to
    name where none do."""
    layers = min(c.whole("num_hidden_layers"), MOST_LAYERS)
    found = [layer for layer in range(layers) if has_experts(layer)]
    if not found:
        hint = "correct it; a model without experts has another model_type"
        raise c.wrong(key, "leaves no layer with experts", hint, code="contradiction")
    every = found[1] - found[0] if len(found) > 1 else 1
    dense = found[0] - (every - 1)
    if dense < 0 or found != list(range(dense + every - 1, layers, every)):
        hint = "knee models leading dense layers, and experts in every n-th layer after them"
        raise c.wrong(key, "gives layers with experts that are not modelled", hint, code="not-modelled")
    return {"dense_layers": dense, "every": every}


SCORES = {"softmax": "softmax", "sigmoid": "sigmoid"}
CHOOSERS = {"greedy": "plain", "group_limited_greedy": "groups", "noaux_tc": "groups"}
"""Ways to choose experts, and whether they choose among groups. noaux_tc has a bias that balances the experts."""


def _experts(c: Keys, count: str, ffn: str, *, top_k: str = "num_experts_per_tok", **more: Any) -> dict[str, Any]:
    """The table of experts, from the names of a family's keys."""
    return {"experts": {"count": c.whole(count), "top_k": c.whole(top_k), "ffn": c.whole(ffn), **more}}


def _qwen2_moe(c: Keys) -> dict[str, Any]:
    """Layers of mlp_only_layers are dense, and so are those between each decoder_sparse_step."""
    shared = c.whole("shared_expert_intermediate_size")
    more = {"shared_ffn": shared, "shared_gate": shared > 0, **_qwen_layers(c)}
    return {**qwen2_fields(c), **_experts(c, _qwen_count(c), "moe_intermediate_size", **more)}


def _qwen_count(c: Keys) -> str:
    """The key of the number of experts; later releases of transformers write another one."""
    return "num_experts" if c.get("num_experts") is not None or not c.get("num_local_experts") else "num_local_experts"


def _qwen_layers(c: Keys) -> dict[str, Any]:
    step, dense = c.whole("decoder_sparse_step", 1, least=1), frozenset(c.wholes("mlp_only_layers"))
    key = "mlp_only_layers" if dense else "decoder_sparse_step"
    layers = layers_with_experts(c, key, lambda layer: layer not in dense and (layer + 1) % step == 0)
    return {**layers, "normalised_weights": c.flag("norm_topk_prob")}


def _phimoe(c: Keys) -> dict[str, Any]:
    """LayerNorm with biases, and biases of attention and of the output projection."""
    return {
        **_grouped_queries(c),
        **attention_biases(c),
        **c.window(),
        "norm": "layernorm",
        "norm_bias": True,
        "output_bias": c.flag("lm_head_bias"),
        **_experts(c, "num_local_experts", "intermediate_size"),
    }


def _grok(c: Keys) -> dict[str, Any]:
    """Gated GELU, four norms, and a soft cap of attention scores."""
    c.values = {"hidden_act": "gelu", **c.values}
    cap = c.number("max_attn_value", 30.0)
    experts = _experts(c, "num_experts", "intermediate_size")
    return {**_grouped_queries(c, tied=True), "layer_norms": 4, "attention_soft_cap": float(cap), **experts}


def _released_in(c: Keys, method: str) -> None:
    """Weights that their authors released in this type; the plan says in which type they are trained. What is stored in
    another way is refused."""
    stored = c.inside("quantization_config").values
    if stored and stored.get("quant_method") != method:
        c.used.discard("quantization_config")


def _gpt_oss(c: Keys) -> dict[str, Any]:
    """Biases everywhere but in norms, sinks, and a window in every second layer."""
    _released_in(c, "mxfp4")
    key = "num_experts_per_tok" if c.get("num_experts_per_tok") is not None else "experts_per_token"
    experts = _experts(c, "num_local_experts", "intermediate_size", top_k=key, router_bias=True)
    bias = c.flag("attention_bias", True)
    return {
        **_grouped_queries(c),
        "head_size": c.get("head_dim", 64),
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": True,
        "attention_sinks": True,
        **c.window(128, pattern="sf"),
        **experts,
    }


def _deepseek_v3(c: Keys) -> dict[str, Any]:
    _released_in(c, "fp8")
    mtp = {"mtp_layers": c.whole("num_nextn_predict_layers", 0)}
    return {**decoder_fields(c), **_latent(c), **_deepseek_experts(c, "sigmoid", "noaux_tc"), **mtp}


def _latent(c: Keys) -> dict[str, Any]:
    """Heads have the sizes of their parts, so ``head_dim`` (later releases: that of the rotated part) says nothing."""
    sizes = {"kv_rank": c.whole("kv_lora_rank"), "nope_size": c.whole("qk_nope_head_dim")}
    sizes |= {"rope_size": c.whole("qk_rope_head_dim"), "value_size": c.whole("v_head_dim")}
    return {"head_size": 0, "latent_attention": {**sizes, "q_rank": c.whole("q_lora_rank", 0)}}


def _deepseek_experts(c: Keys, scores: str, chooser: str) -> dict[str, Any]:
    ffn, shared = c.whole("moe_intermediate_size"), c.whole("n_shared_experts", 0)
    first, step = c.whole("first_k_dense_replace", 0), c.whole("moe_layer_freq", 1, least=1)
    grouped = c.choice("topk_method", chooser, CHOOSERS) == "groups"
    groups, used = c.whole("n_group", 1), c.whole("topk_group", 1)
    key = "first_k_dense_replace" if step == 1 else "moe_layer_freq"
    return _experts(
        c,
        "n_routed_experts",
        "moe_intermediate_size",
        shared_ffn=shared * ffn,
        scores=c.choice("scoring_func", scores, SCORES),
        router_bias=c.get("topk_method", chooser) == "noaux_tc",
        groups=groups if grouped else 1,
        top_groups=used if grouped else 1,
        weight_scale=float(c.number("routed_scaling_factor", 1.0)),
        normalised_weights=c.flag("norm_topk_prob", scores == "sigmoid"),
        **layers_with_experts(c, key, lambda layer: layer >= first and layer % step == 0),
    )


def _glm4_moe(c: Keys) -> dict[str, Any]:
    """The output projection of attention has no bias; half of each head is rotated."""
    c.values = {"partial_rotary_factor": 0.5, **c.values}
    return {
        **_grouped_queries(c),
        "qkv_bias": c.flag("attention_bias"),
        "qk_norm": "head" if c.flag("use_qk_norm") else "none",
        **_deepseek_experts(c, "sigmoid", "noaux_tc"),
        "mtp_layers": c.whole("num_nextn_predict_layers", 0),
    }


def _llama4(c: Keys) -> dict[str, Any]:
    """Layers with a rotary embedding have chunks; every fourth has neither. An expert is as wide as the shared one."""
    layers = min(c.whole("num_hidden_layers"), MOST_LAYERS)
    expert = c.whole("intermediate_size")
    fields = _grouped_queries(c) | {"ffn": c.whole("intermediate_size_mlp", 16_384)} | attention_biases(c)
    step, listed = c.whole("interleave_moe_layer_step", 1, least=1), c.get("moe_layers")
    chosen = frozenset(c.wholes("moe_layers") if listed is not None else range(step - 1, layers, step))
    key = "interleave_moe_layer_step" if listed is None else "moe_layers"
    rotated = _rotated_layers(c, layers)
    return {
        **fields,
        "rope_frac": c.number("partial_rotary_factor", 1.0) * sum(rotated) / max(layers, 1),
        "qk_norm": "unit" if c.flag("use_qk_norm", True) else "none",
        **_chunks(c, rotated),
        **_experts(
            c,
            "num_local_experts",
            "intermediate_size",
            shared_ffn=expert,
            scores="sigmoid",
            **layers_with_experts(c, key, lambda layer: layer in chosen),
        ),
    }


def _rotated_layers(c: Keys, layers: int) -> list[bool]:
    """Which layers have a rotary embedding: ``no_rope_layers`` has a 1 for those that do."""
    every, flags = c.whole("no_rope_layer_interval", 4, least=1), c.wholes("no_rope_layers")
    if flags and (len(flags) != layers or set(flags) - {0, 1}):
        hint = "give 1 for each layer with a rotary embedding and 0 for each without, or remove it"
        raise c.wrong("no_rope_layers", "must have a 0 or 1 for each layer", hint, code="contradiction")
    return [bool(flag) for flag in flags] if flags else [(layer + 1) % every != 0 for layer in range(layers)]


def _chunks(c: Keys, rotated: list[bool]) -> dict[str, Any]:
    chunk = c.whole("attention_chunk_size", 8192 if "attention_chunk_size" not in c.values else 0)
    letters = shortest_pattern("".join("s" if one else "f" for one in rotated))
    if c.get("layer_types") is not None:
        letters = c.letters({"full_attention": "f", "chunked_attention": "s"})
    if not chunk or "s" not in letters:
        return {}
    return {"window": chunk, "window_kind": "chunked", "layer_pattern": letters}


def _dbrx(c: Keys) -> dict[str, Any]:
    attention, mlp = c.inside("attn_config"), c.inside("ffn_config")
    mlp.inside("ffn_act_fn").choice("name", "silu", {"silu": "swiglu"})
    if attention.get("clip_qkv"):
        hint = "remove it: clamping is elementwise work, which knee does not add"
        raise attention.wrong("clip_qkv", "changes the work, and is not modelled for dbrx", hint, code="not-modelled")
    return {
        "layers": c.need("n_layers"),
        "hidden": c.need("d_model"),
        "ffn": mlp.whole("ffn_hidden_size"),
        "heads": c.need("n_heads"),
        "kv_heads": attention.whole("kv_n_heads"),
        "vocab": c.need("vocab_size"),
        "max_seq_len": c.get("max_seq_len", 2048),
        "tied_embeddings": c.flag("tie_word_embeddings"),
        "norm": "layernorm",
        "rope_base": attention.get("rope_theta", 10_000.0),
        **_experts(mlp, "moe_num_experts", "ffn_hidden_size", top_k="moe_top_k"),
    }


READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": lambda c: {**decoder_fields(c), **attention_biases(c), "mlp_bias": c.flag("mlp_bias"), **c.window()},
    "mistral": lambda c: {**_grouped_queries(c), **c.window()},
    "qwen2": qwen2_fields,
    "qwen3": qwen3_fields,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi": _phi,
    # the fused projections have the shapes of Llama's
    "phi3": lambda c: {**decoder_fields(c), **c.window()},
    "olmo2": lambda c: {**_olmo(c), **c.window()},
    "olmo3": lambda c: {**_olmo(c), **c.window()},
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "mpt": _mpt,
    "mixtral": lambda c: {**_grouped_queries(c), **c.window(), **_experts(c, "num_local_experts", "intermediate_size")},
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda c: {
        **qwen3_fields(c),
        **_experts(c, _qwen_count(c), "moe_intermediate_size", **_qwen_layers(c)),
    },
    # the first generation: attention as in Llama
    "deepseek": lambda c: {**decoder_fields(c), **attention_biases(c), **_deepseek_experts(c, "softmax", "greedy")},
    "deepseek_v2": lambda c: {**decoder_fields(c), **_latent(c), **_deepseek_experts(c, "softmax", "greedy")},
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "grok-1": _grok,
    "olmoe": lambda c: {**_olmo(c), **_experts(c, "num_experts", "intermediate_size")},
    "phimoe": _phimoe,
    "dbrx": _dbrx,
}

# What a config may say that knee does not model: refused by name, never ignored.

NEUTRAL: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("layer_types sliding_window sliding_window_pattern attention_chunk_size", ()),
    ("no_rope_layers", ([],)),
    ("use_qk_norm qk_layernorm use_parallel_residual parallel_attn", (False,)),
    ("final_logit_softcapping attn_logit_softcapping", (0,)),
    ("partial_rotary_factor rotary_pct", (1,)),
    ("attention_bias mlp_bias", (False,)),
    ("clip_qkv num_nextn_predict_layers", (0,)),
    ("num_local_experts num_experts n_routed_experts moe_num_experts", (0, 1)),
    ("moe_intermediate_size", ()),
    ("n_shared_experts shared_expert_intermediate_size", (0,)),
    ("n_group topk_group", (1,)),
    ("first_k_dense_replace", (0,)),
    ("moe_layer_freq decoder_sparse_step", (1,)),
    ("mlp_only_layers moe_layers", ([],)),
    ("interleave_moe_layer_step", (1,)),
    ("kv_lora_rank q_lora_rank index_topk", (0,)),
    ("lm_head_bias", (False,)),
    ("num_kv_shared_layers", (0,)),
    ("cross_attention_layers", ([],)),
    ("add_cross_attention is_encoder_decoder", (False,)),
    ("vision_config audio_config quantization_config", ()),
)
"""Keys that change the work, and the values besides null that leave it as it is."""


def unknown_family(path: Path, kind: object, known: tuple[str, ...]) -> InputError:
    """A family whose keys knee does not know."""
    return InputError(
        f"{path}: model_type {str(kind)[:60]!r} is not supported (knee reads {', '.join(known)})",
        hint="describe the model in a TOML file: layers, hidden, ffn, heads, kv_heads, vocab and, if it differs from "
        "Llama, head_size, mlp, norm, layer_norms, qk_norm, window, layer_pattern, soft caps and biases; experts need "
        "the table experts (count, top_k, ffn), and latent attention the table latent_attention (kv_rank, nope_size, "
        "rope_size, value_size)",
        code="not-modelled",
        field="model_type",
    )


def refuse_unread(keys: Keys, kind: str) -> None:
    """A key that changes the work, and that the family's reader did not ask for."""
    for key, neutral in ((key, neutral) for words, neutral in NEUTRAL for key in words.split()):
        value = keys.values.get(key)
        # 0 is not false here: a flag that is no flag is refused
        is_neutral = any(type(value) in (type(one), float) and value == one for one in neutral)
        if value is None or key in keys.used or is_neutral:
            continue
        rule = f"changes the work, and is not modelled for {kind}"
        hint = "remove it if the model does not use it, or describe the model in a TOML file"
        if key == "quantization_config":
            rule = "describes stored weights, which are not trained as they are"
            hint = "remove it: the plan's precision says in which type the products are"
        raise keys.wrong(key, rule, hint, code="not-modelled")


def read_config(path: Path, text: str) -> dict[str, Any]:
    """The fields of a model, from the text of its ``config.json`` at ``path``."""
    config = _parse_json(path, text)
    name = _name(path, config)
    kind = str(config.get("model_type"))
    if kind in TEXT_PARTS and isinstance(config.get("text_config"), dict):
        # the decoder of a model that also sees: its name says that the rest is left out
        tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        outer = {key: config[key] for key in ("quantization_config",) if key in config}
        config = {"model_type": TEXT_PARTS[kind], **tied, **outer, **config["text_config"]}
        name, kind = f"{name}-text", str(config["model_type"])
    reader = READERS.get(kind)
    if reader is None:
        raise unknown_family(path, config.get("model_type"), tuple(READERS))
    keys = Keys(path, config)
    try:
        shape = reader(keys)
    except KeyError as error:
        text = f"{path}: {error.args[0]} is missing, which a {kind} config needs"
        hint = f"add {error.args[0]} to the file"
        raise InputError(text, hint=hint, code="missing-field", field=str(error.args[0])) from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        text = f"{path}: a value is not of the type that a {kind} config has there"
        raise InputError(text, code="wrong-type") from None
    refuse_unread(keys, kind)
    return {"name": name, **shape}


def _parse_json(path: Path, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
        if is_deep(config):
            raise RecursionError
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error}", code="not-json", field="model") from None
    except (ValueError, RecursionError):
        text = f"{path} is not a model's config: it is nested too deeply, or a number is too long"
        raise InputError(text, code="not-json", field="model") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model's config: it is not a JSON object", code="wrong-type")
    return config


def _name(path: Path, config: dict[str, Any]) -> str:
    given = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    return given or (path.parent.resolve().name if path.stem == "config" else path.stem)
