"""Every column that a row may have: what study files may name."""

from __future__ import annotations

from knee.specs.metrics import DERIVED, OTHERS, STEP
from knee.specs.plan import KNOBS

LABELS = (
    *("study", "series", "kind", "model", "cluster", "profile", "gpus", "nodes", "global_batch", "local_batch"),
    *("seq_len", "set", "plan", "degree", "trust", "low_frac", "high_frac", "experts", "gpu", "node_gpus"),
    *("collective", "message", "compared", "size", "flop_size", "span", "cause", "cells", "dp"),
)
"""Of the question, and of what a row is about."""
COLUMNS: tuple[str, ...] = (*LABELS, *KNOBS, *STEP, *DERIVED, *OTHERS)
"""Of training steps, of bandwidths, of data sheets and of budgets."""
