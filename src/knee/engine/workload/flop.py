"""Model FLOP per token under the conventions people use; MFU means nothing without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from knee.base.arrays import Floats
from knee.base.errors import InputError
from knee.engine.workload.parameters import active_parameter_count
from knee.specs.model import Model


def most_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query sees if the causal mask is not counted, mean over layers: the sequence, or the window."""
    sliding = model.sliding_layers / model.layers
    return (1.0 - sliding) * seq_len + sliding * np.minimum(model.window, seq_len)


def causal_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query attends to, mean over queries and layers: s / 2 in layers with full attention."""
    sliding = model.sliding_layers / model.layers
    return (1.0 - sliding) * seq_len / 2.0 + sliding * window_keys(model, seq_len)


def window_keys(model: Model, seq_len: Floats) -> Floats:
    """Keys that a query of a layer with the window attends to, mean over queries.

    Formula: a sliding window w - w^2 / (2 s); chunks (n w^2 + r^2) / (2 s)
    Where:   w is at most s; the first w queries see fewer keys than a sliding window has. A sequence has n whole
             chunks and a rest of r tokens, each with full attention inside
    """
    window: Floats = np.minimum(model.window, seq_len)
    if model.window_kind == "chunked":
        whole = np.floor(seq_len / window)
        rest = seq_len - whole * window
        return (whole * window**2 + rest**2) / (2.0 * seq_len)
    return window - window**2 / (2.0 * seq_len)


def kernel_keys(model: Model, seq_len: Floats, kv_block: Floats) -> Floats:
    """The length that gives a kernel with full attention the rate of the mean layer's: a kernel's time is
    flop (1 + half / length), so it is the harmonic mean over layers, weighted by FLOP."""
    sliding, window = model.sliding_layers / model.layers, np.minimum(model.window, seq_len)
    full = (1.0 - sliding) * seq_len / 2.0
    band = sliding * window_keys(model, seq_len)
    return (full + band) / (full / kv_block + band / np.minimum(window, kv_block))


def _attention(model: Model, seq_len: NDArray[np.int64]) -> NDArray[np.float64]:
    """L * d * s: one multiply-add column of attention over all layers. A query of a layer with a sliding window has
    the window's keys."""
    return model.layers * _width(model) * most_keys(model, seq_len.astype(np.float64))


def _causal_attention(model: Model, seq_len: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same of the keys that the causal mask leaves: half of them without a window."""
    return model.layers * _width(model) * causal_keys(model, seq_len.astype(np.float64))


def _width(model: Model) -> float:
    """Of all heads; of queries and values the mean, where latent attention has two sizes."""
    if model.latent_attention is None:
        return model.q_width
    return (model.q_width + model.heads * model.latent_attention.value_size) / 2.0


# Each is FLOP per trained token, forward and backward; recomputation never counts. Of experts those count that a token
# uses, and layers for multi-token prediction do not.
CONVENTIONS: dict[str, Callable[[Model, NDArray[np.int64]], NDArray[np.float64]]] = {
    # PaLM, appendix B (arXiv 2204.02311): 6N + 12 L d s, attention in full although the mask halves it
    "palm": lambda m, s: 6.0 * active_parameter_count(m) + 12.0 * _attention(m, s),
    # Kaplan et al. 2020: parameters only
    "6n": lambda m, s: np.full(len(s), 6.0 * active_parameter_count(m)),
    # as PaLM, with the causal half of the square
    "causal": lambda m, s: 6.0 * active_parameter_count(m) + 12.0 * _causal_attention(m, s),
    # torchtitan: the input embedding is a lookup, not a product
    "torchtitan": lambda m, s: 6.0 * (active_parameter_count(m) - m.vocab * m.hidden) + 12.0 * _attention(m, s),
}


def model_flop_per_token(model: Model, seq_len: NDArray[np.int64], convention: str) -> NDArray[np.float64]:
    """FLOP that training on one token takes, by a named convention."""
    if convention not in CONVENTIONS:
        hint = f"use one of {', '.join(CONVENTIONS)}"
        text = f"no FLOP convention named {convention!r}"
        raise InputError(text, hint=hint, code="unknown-choice", field="flop_convention")
    return CONVENTIONS[convention](model, seq_len)
