"""The rules that the values of a model keep, and what is said where they do not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from knee.base.errors import SpecError, out_of_range

if TYPE_CHECKING:
    from knee.specs.model.decoder import Model

MOST = 2**24
"""Beyond any model anyone trains; larger sizes are typing mistakes."""
MOST_LAYERS = 10_000
"""The same of layers, which a step is walked through one by one."""
MOST_NORMS = 8
"""The same of the norms of a block."""
MOST_MTP = 64
"""The same of layers that predict further tokens."""
LETTERS = "sf"


def check_sizes(where: str, spec: object, least: int, *names: str) -> None:
    """Refuse fields of a part of a model that are below ``least`` or beyond any model."""
    for name in names:
        if not least <= getattr(spec, name) <= MOST:
            raise out_of_range(f"{where}.{name}", getattr(spec, name), f"it must be between {least} and {MOST:,}")


def check_numbers(model: Model) -> None:
    """Refuse sizes that no model has."""
    for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "max_seq_len"):
        if getattr(model, field) < 1:
            raise out_of_range(f"model.{field}", getattr(model, field), "it must be at least 1")
        most = MOST_LAYERS if field == "layers" else MOST
        if getattr(model, field) > most:
            raise out_of_range(f"model.{field}", getattr(model, field), f"more than {most:,} is not supported")
    if not 0 < model.norm_eps < 1:
        raise out_of_range("model.norm_eps", f"{model.norm_eps:g}", "it must be between 0 and 1")
    if not 1 < model.rope_base < math.inf:
        raise out_of_range("model.rope_base", f"{model.rope_base:g}", "it must be more than 1")
    if not 0 < model.rope_frac <= 1:
        raise out_of_range("model.rope_frac", f"{model.rope_frac:g}", "it must be more than 0 and at most 1")
    for field in ("attention_soft_cap", "final_soft_cap"):
        if not 0 <= getattr(model, field) < math.inf:
            raise out_of_range(f"model.{field}", f"{getattr(model, field):g}", "it must be positive, or 0 for no cap")


def check_attention(model: Model) -> None:
    """Refuse heads that do not fit together."""
    if not 0 <= model.head_size <= MOST:
        raise out_of_range("model.head_size", model.head_size, f"it must be between 0 (hidden / heads) and {MOST:,}")
    if model.head_size == 0 and model.latent_attention is None and model.hidden % model.heads:
        text = f"model.hidden {model.hidden} is not divisible by model.heads {model.heads}"
        hint = "give head_size explicitly, or correct one of them"
        raise SpecError(text, hint=hint, code="does-not-divide", field="model.hidden")
    if model.heads % model.kv_heads:
        text = f"model.heads {model.heads} is not a multiple of model.kv_heads {model.kv_heads}"
        hint = f"use a number of kv_heads that divides {model.heads}"
        raise SpecError(text, hint=hint, code="does-not-divide", field="model.heads")


def check_windows(model: Model) -> None:
    """Refuse a window without layers, layers without a window, and patterns that are none."""
    pattern, field = model.layer_pattern, "model.layer_pattern"
    if not 0 <= model.window <= MOST:
        rule = f"it must be between 1 and {MOST:,}, or 0 for full attention"
        raise out_of_range("model.window", model.window, rule)
    if not pattern or set(pattern) - set(LETTERS):
        text = f"model.layer_pattern is {pattern[:80]!r}; its letters must be s (sliding window) or f (full attention)"
        hint = "write a letter per layer, or a shorter pattern that repeats, such as sssssf"
        raise SpecError(text, hint=hint, code="unknown-choice", field=field)
    if len(pattern) > model.layers:
        text = f"model.layer_pattern has {len(pattern):,} letters, but the model has {model.layers:,} layers"
        hint = "write a letter per layer, or a shorter pattern that repeats"
        raise SpecError(text, hint=hint, code="out-of-range", field=field)
    if model.window_kind == "chunked" and not model.window:
        text = "model.window_kind is chunked, but model.window is 0"
        hint = "give the size of a chunk as window"
        raise SpecError(text, hint=hint, code="contradiction", field="model.window_kind")
    if ("s" in pattern) != (model.window > 0) and (model.window or pattern != "s"):
        text = (
            f"model.window is {model.window:,}, but no layer of model.layer_pattern {pattern[:80]!r} has it"
            if model.window
            else f"model.layer_pattern {pattern[:80]!r} has layers with a sliding window, but model.window is 0"
        )
        hint = 'give the size of the window and mark its layers with s; for full attention, layer_pattern is "f"'
        raise SpecError(text, hint=hint, code="contradiction", field=field)


def check_norms(model: Model) -> None:
    """Refuse a number of norms that no block has."""
    if not 1 <= model.layer_norms <= MOST_NORMS:
        raise out_of_range("model.layer_norms", model.layer_norms, f"it must be between 1 and {MOST_NORMS}")
    if model.layer_norms == 1 and not model.parallel_residual:
        text = "model.layer_norms is 1, but attention and the MLP share a norm only with model.parallel_residual"
        hint = "give layer_norms 2, or parallel_residual = true"
        raise SpecError(text, hint=hint, code="contradiction", field="model.layer_norms")


def check_experts(model: Model) -> None:
    """Refuse a mixture of experts without a layer that has them."""
    experts = model.experts
    if not 0 <= model.mtp_layers <= MOST_MTP:
        raise out_of_range("model.mtp_layers", model.mtp_layers, f"it must be between 0 and {MOST_MTP}")
    if experts is not None and not experts.layers_with_experts(model.layers):
        raise SpecError(
            f"no layer has experts: of {model.layers} layers {experts.dense_layers} are dense, and one in "
            f"{experts.every} of the others has experts",
            hint="lower dense_layers or every",
            code="contradiction",
            field="model.experts.dense_layers",
        )


def check_latent(model: Model) -> None:
    """Refuse what latent attention has no place for."""
    if model.latent_attention is None:
        return
    if model.kv_heads != model.heads:
        raise SpecError(
            f"model.kv_heads is {model.kv_heads}, but latent attention has keys and values for each of the "
            f"{model.heads} heads",
            hint=f"give kv_heads = {model.heads}",
            code="contradiction",
            field="model.kv_heads",
        )
    if model.head_size:
        text = "model.head_size has no meaning with latent attention, whose heads have nope_size + rope_size"
        raise SpecError(text, hint="leave head_size out", code="contradiction", field="model.head_size")
    if model.qk_norm != "none":
        text = f"model.qk_norm is {model.qk_norm}, but latent attention has norms of its narrow vectors"
        raise SpecError(text, hint='leave qk_norm out, or give "none"', code="contradiction", field="model.qk_norm")
    for field in ("biases", "qkv_bias"):
        if getattr(model, field):
            text = f"model.{field} is true, but biases of latent attention are not modelled"
            raise SpecError(text, hint=f"leave {field} out", code="contradiction", field=f"model.{field}")
