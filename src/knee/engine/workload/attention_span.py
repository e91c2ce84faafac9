"""How many keys a query attends to: all before it, those of a sliding window, or those of its chunk."""

from __future__ import annotations

import numpy as np

from knee.base.arrays import Floats
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
