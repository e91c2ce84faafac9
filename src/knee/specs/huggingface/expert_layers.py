"""Which layers of a config have experts, in knee's two fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knee.specs.huggingface.keys import Keys
from knee.specs.model.rules import MOST_LAYERS


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
