"""A ladder of model shapes: any number of parameters as a member of a family would have them."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache

from knee.base.units import short
from knee.commands.budget.scaling_laws import unknown_name
from knee.engine.workload.parameters import parameter_count
from knee.specs.catalog import ROOT, read_toml
from knee.specs.load import load_model
from knee.specs.model import Model

LEAST_PARAMS, MOST_PARAMS = 5e7, 4e12
"""Sizes that a ladder has; beyond them nobody trains dense models."""
STEPS_PER_DOUBLING = 4
"""Of the ladder: neighbours are 19% apart, beside a real member 10 to 29%, and the least loss between them is less than
a ten-thousandth below theirs."""
MLP_STEP = 256
WHOLE_NODE_HEADS = 8
"""Heads come in eights where the width allows it, so that a node's GPUs can split them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Members, smallest first, all with the family's vocabulary."""

    name: str
    members: tuple[Model, ...]
    vocab: int
    head_size: int
    kind: str
    source: str

    def shape(self, params: float) -> Model:
        """The shape of about so many parameters: a member's own where it is one.

        Formula: between members a and b, t = ln(N / N_a) / ln(N_b / N_a): width = w_a (w_b / w_a)^t, rounded to whole
                 heads by eights (fours, twos, one below 4,096, 2,048 and 1,024 wide); ffn / width = (f_a / w_a)^(1-t)
                 (f_b / w_b)^t; grouped-query attention as the nearer member has it; layers as bring N closest
        Valid:   beyond the first and last member their neighbours' rule goes on
        """
        sizes = [parameter_count(member) for member in self.members]
        for member, size in zip(self.members, sizes, strict=True):
            if abs(math.log(params / size)) < 0.5 * math.log(2) / STEPS_PER_DOUBLING:
                return member
        at = min(max(bisect_right(sizes, params), 1), len(sizes) - 1)
        a, b = self.members[at - 1], self.members[at]
        t = math.log(params / sizes[at - 1]) / math.log(sizes[at] / sizes[at - 1])
        width = a.hidden * (b.hidden / a.hidden) ** t
        ratio = (a.ffn / a.hidden) ** (1 - t) * (b.ffn / b.hidden) ** t
        # beyond the ends the MLP keeps the last member's ratio
        ratio = min(max(ratio, min(a.ffn / a.hidden, b.ffn / b.hidden)), max(a.ffn / a.hidden, b.ffn / b.hidden))
        step = self.head_size * (
            WHOLE_NODE_HEADS if width >= 4096 else 4 if width >= 2048 else 2 if width >= 1024 else 1
        )
        near = a if t < 0.5 else b
        return self._of(near, step * max(1, round(width / step)), ratio, params)

    def _of(self, near: Model, width: int, ratio: float, params: float) -> Model:
        heads = max(1, width // self.head_size)
        groups = near.kv_heads if near.kv_heads < near.heads and heads % near.kv_heads == 0 else heads
        ffn = max(MLP_STEP, MLP_STEP * round(ratio * width / MLP_STEP))
        one = replace(near, name="shape", layers=1, hidden=width, ffn=ffn, heads=heads, kv_heads=groups, head_size=0)
        two = replace(one, layers=2)
        layer = parameter_count(two) - parameter_count(one)
        layers = max(1, round((params - parameter_count(one)) / layer) + 1)
        whole = replace(one, layers=layers)
        return replace(whole, name=f"{self.name}-{short(parameter_count(whole))}")

    def ladder(self, low: float = LEAST_PARAMS, high: float = MOST_PARAMS, every: int = 1) -> list[Model]:
        """Shapes from at least ``low`` to at most ``high``: rungs of one ladder, whatever the ends."""
        step = every / STEPS_PER_DOUBLING
        first, last = math.ceil(math.log2(max(low, LEAST_PARAMS)) / step - 1e-9), math.floor(math.log2(high) / step)
        found = [_shape(self.name, 2.0 ** (k * step)) for k in range(first, last + 1)]
        return list({parameter_count(model): model for model in found}.values())


@cache
def _shape(family: str, params: float) -> Model:
    return family_of(family).shape(params)


@cache
def _document() -> dict[str, dict[str, object]]:
    return read_toml(ROOT / "shape_families.toml")


def family_names() -> list[str]:
    """Families of the catalogue."""
    return list(_document())


@cache
def family_of(name: str) -> Family:
    """A family by its name."""
    if name not in _document():
        raise unknown_name("family", name, family_names())
    raw = _document()[name]
    names, vocab = raw["members"], raw["vocab"]
    assert isinstance(names, list)
    assert isinstance(vocab, int)
    members = tuple(replace(load_model(str(member)).spec, vocab=vocab) for member in names)
    return Family(
        name=name,
        members=members,
        vocab=vocab,
        head_size=int(str(raw["head_size"])),
        kind=str(raw["kind"]),
        source=str(raw["source"]),
    )
