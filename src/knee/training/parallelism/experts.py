"""A mixture of experts in place of a block's MLP: router, routed experts, shared experts.

Every token chooses ``top_k`` experts. Its copies are sorted by expert, so that the experts' products are one grouped
product each, and the copies' results are summed with the router's weights. The weights are applied between the two
products, where rows are narrow; the results of the second product then need not be kept. Nothing here waits for the
device: numbers of rows stay there as offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from knee.specs.model import Experts, Model
from knee.training.parallelism.torch_internals import NamedGroup, all_reduce, exchange, grouped

EXPERT_WEIGHTS = ("expert_in", "expert_out")
"""Weights of the routed experts, which experts' own groups cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRules:
    """How tokens are routed, beyond what the model says."""

    balanced: bool = False
    """Tokens go to experts in turn, whatever the router says: every expert has equally many."""
    capacity_factor: float = 0.0
    """Rows of an expert and sequence, over those of balanced routing; further tokens are dropped. 0 drops none."""
    balance_loss: float = 0.0
    """Coefficient of the loss for unequal use of the experts."""
    sequence_groups: tuple[NamedGroup, ...] = ()
    """Groups whose ranks have parts of the same sequences."""
    averaged: int = 1
    """Ranks of these groups whose gradients are averaged and not summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Copies of tokens, sorted by expert."""

    token: Any
    """(rows,): which token each row is a copy of."""
    place: Any
    """(tokens * top_k,): the row of each token's choices; None where rows are dropped or padded."""
    weights: Any
    """(rows,): the router's weights, in fp32."""
    counts: Any
    """(experts,): rows of each expert."""
    each: int | None
    """Rows of every expert, where they are equally many and the host knows it."""


class ExpertWeights(nn.Module):
    """The routed experts of one rank. Experts lie one after the other as rows of two weights, so that FSDP2 cuts them
    evenly over any number of ranks."""

    def __init__(self, experts: Experts, hidden: int, *, ep: int, etp: int, dtype: Any) -> None:
        super().__init__()
        self.count, self.ffn, self.hidden = experts.count // ep, experts.ffn // etp, hidden
        self.clears_empty = False
        """Whether gradients of experts without rows must be set to 0."""
        self.expert_in = nn.Parameter(torch.empty(self.count * 2 * self.ffn, hidden, dtype=dtype))
        self.expert_out = nn.Parameter(torch.empty(self.count * hidden, self.ffn, dtype=dtype))

    def forward(self, rows: Any, weights: Any, offsets: Any) -> Any:
        """Rows sorted by expert; ``offsets`` (experts,) says where the rows of each end."""
        gate_and_up = self.expert_in.to(rows.dtype).view(self.count, 2 * self.ffn, self.hidden)
        down = self.expert_out.to(rows.dtype).view(self.count, self.hidden, self.ffn)
        inner = weighted_swiglu(_GroupedProduct.apply(rows, gate_and_up, offsets, self.clears_empty), weights)
        return _GroupedProduct.apply(inner, down, offsets, self.clears_empty)


def expert_shape(name: str, experts: Experts, hidden: int) -> list[int]:
    """The shape of a weight of all experts."""
    rows = 2 * experts.ffn if name == "expert_in" else hidden
    return [experts.count * rows, hidden if name == "expert_in" else experts.ffn]


def expert_part(name: str, whole: Any, experts: Experts, ep: NamedGroup | None, etp: NamedGroup | None) -> Any:
    """What of a weight of all experts a rank holds: some experts, and some of their inner columns."""
    parts = whole.view(experts.count, 2 if name == "expert_in" else 1, -1, whole.shape[1])
    if ep:
        parts = parts.chunk(ep.size)[ep.rank]
    if etp:
        parts = parts.chunk(etp.size, dim=2 if name == "expert_in" else 3)[etp.rank]
    return parts.flatten(0, 2)


class MixtureOfExperts(nn.Module):
    """Router, routed experts and shared experts of one block, on one rank."""

    def __init__(self, model: Model, tp: Any, exchange: Any, rules: RoutingRules, dtype: Any) -> None:
        """``exchange`` brings rows to the ranks of their experts and back."""
        super().__init__()
        experts = model.experts
        assert experts is not None
        self.spec, self.tp, self.exchange, self.rules = experts, tp, exchange, rules
        hidden, shared = model.hidden, experts.shared_ffn // tp.size

        def weight(*shape: int) -> Any:
            return nn.Parameter(torch.empty(shape, dtype=dtype))

        self.router = weight(experts.count, hidden)
        self.moves_bias = experts.router_bias and experts.scores == "sigmoid"
        if experts.router_bias and not self.moves_bias:
            self.router_bias = weight(experts.count)
        if self.moves_bias:
            # it decides who is chosen and has no gradient
            self.register_buffer("balance_bias", torch.zeros(experts.count))
            self.register_buffer("load", torch.zeros(experts.count))
        if shared:
            self.shared_w1, self.shared_w3 = weight(shared, hidden), weight(shared, hidden)
            self.shared_w2 = weight(hidden, shared)
            if experts.shared_gate:
                self.shared_gate = weight(1, hidden)
        self.experts = ExpertWeights(experts, hidden, ep=exchange.ep, etp=exchange.etp, dtype=dtype)
        self.loss_scale: Any = 1.0
        """What a microbatch's loss is multiplied by before backward."""

    def forward(self, x: Any) -> Any:
        """(batch, sequence, hidden) in and out; with sequence parallelism this rank's part of the sequence."""
        shared = self._shared(x) if self.spec.shared_ffn else None
        tokens = x.flatten(0, 1)
        scores, chosen, weights = self.route(tokens)
        if self.rules.balance_loss:
            share = balance_loss(scores, chosen, x.shape[0], self.rules.sequence_groups)
            loss = share * (self.rules.balance_loss * self.rules.averaged)
            weights = _WithLoss.apply(weights, loss, self.loss_scale)
        factor = self.rules.capacity_factor
        if factor:
            rows = capped_rows(chosen, weights, self.spec, factor, sequences=x.shape[0])
        else:
            rows = sorted_rows(chosen, weights, self.spec, balanced=self.rules.balanced)
        done = self.exchange(self.experts, _ToRows.apply(tokens, rows.token, rows.place), rows)
        out = _ToTokens.apply(done, rows.token, rows.place, tokens.shape[0]).view_as(x)
        return out if shared is None else out + shared

    def route(self, tokens: Any) -> tuple[Any, Any, Any]:
        """Scores of all experts, the chosen experts and their weights, in fp32."""
        spec = self.spec
        logits = functional.linear(tokens, self.router.to(tokens.dtype)).float()
        if spec.router_bias and not self.moves_bias:
            logits = logits + self.router_bias.float()
        scores = logits.softmax(-1) if spec.scores == "softmax" else logits.sigmoid()
        if self.rules.balanced:
            turn = torch.arange(tokens.shape[0] * spec.top_k, device=tokens.device)
            chosen = (turn % spec.count).view(-1, spec.top_k)
        else:
            biased = scores + self.balance_bias if self.moves_bias else scores
            chosen = choose(biased.detach(), spec)
        if self.moves_bias:
            with torch.no_grad():
                # a recomputed block counts every token twice, which changes no sign
                self.load.add_(_counts(chosen, spec.count).float())
        weights = scores.gather(1, chosen)
        if spec.normalised_weights:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return scores, chosen, weights * spec.weight_scale

    def _shared(self, x: Any) -> Any:
        y = self.tp.enter(x)
        w1, w3, w2 = (w.to(x.dtype) for w in (self.shared_w1, self.shared_w3, self.shared_w2))
        inner = functional.silu(functional.linear(y, w1)) * functional.linear(y, w3)
        out = self.tp.leave(functional.linear(inner, w2))
        if self.spec.shared_gate:
            out = out * functional.linear(x, self.shared_gate.to(x.dtype)).sigmoid()
        return out


def choose(scores: Any, spec: Experts) -> Any:
    """The ``top_k`` experts of each token, from the best groups of experts where there are groups.

    Source: DeepSeek-V2 (arXiv 2405.04434) takes a group's best expert as its score, DeepSeek-V3 (arXiv 2412.19437),
    whose scores are sigmoids, the sum of its best two
    """
    if spec.groups > 1:
        by_group = scores.unflatten(1, (spec.groups, -1))
        of_group = 2 if spec.scores == "sigmoid" and by_group.shape[-1] > 1 else 1
        best = by_group.topk(of_group, dim=-1).values.sum(-1).topk(spec.top_groups, dim=-1).indices
        open_groups = torch.zeros_like(by_group[..., 0]).scatter(1, best, 1.0)
        scores = by_group.masked_fill(open_groups.unsqueeze(-1) == 0, -math.inf).flatten(1)
    return scores.topk(spec.top_k, dim=-1).indices


def sorted_rows(chosen: Any, weights: Any, spec: Experts, *, balanced: bool) -> Rows:
    """Every copy of every token, none dropped."""
    by_expert, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(spec.count, device=chosen.device), right=True)
    place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    return Rows(
        token=order // spec.top_k,
        place=place,
        weights=weights.flatten().index_select(0, order),
        counts=ends.diff(prepend=ends.new_zeros(1)),
        each=len(order) // spec.count if balanced else None,
    )


def capped_rows(chosen: Any, weights: Any, spec: Experts, factor: float, *, sequences: int) -> Rows:
    """As many rows for every expert and sequence: those of the largest weights, and empty ones (of weight 0)."""
    tokens = chosen.shape[0] // sequences
    most = min(tokens, math.ceil(factor * tokens * spec.top_k / spec.count))
    table = torch.zeros(chosen.shape[0], spec.count, device=chosen.device).scatter(1, chosen, weights)
    kept, index = table.view(sequences, tokens, spec.count).topk(most, dim=1)
    first = tokens * torch.arange(sequences, device=chosen.device).view(-1, 1, 1)
    return Rows(
        token=(index + first).movedim(2, 0).flatten(),
        place=None,
        weights=kept.movedim(2, 0).flatten(),
        counts=torch.full((spec.count,), sequences * most, device=chosen.device),
        each=sequences * most,
    )


def _sum_of_rows(y: Any, token: Any, place: Any, tokens: int) -> Any:
    """Every token picks its rows, which needs no atomic addition, or unlucky tokens have no rows at all."""
    if place is None:
        return y.new_zeros(tokens, y.shape[1]).index_add(0, token, y)
    return y.index_select(0, place).view(tokens, -1, y.shape[1]).sum(1)


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, token: Any, place: Any) -> Any:
        ctx.save_for_backward(token, place)
        ctx.tokens = x.shape[0]
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        token, place = ctx.saved_tensors
        return _sum_of_rows(grad, token, place, ctx.tokens), None, None


_ToTokens = exchange(_sum_of_rows, lambda grad, token: grad.index_select(0, token), kept=1)


def weighted_swiglu(gate_and_up: Any, weights: Any) -> Any:
    """silu(gate) * up * weight, in fp32 inside. Compiled code fuses it into one kernel; without, backward computes it
    again, because it would keep several times the memory of its input."""
    if torch.compiler.is_compiling():
        return _weighted_swiglu(gate_and_up, weights)
    return _WeightedSwiglu.apply(gate_and_up, weights)


class _WeightedSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up: Any, weights: Any) -> Any:
        ctx.save_for_backward(gate_and_up, weights)
        return _weighted_swiglu(gate_and_up, weights)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = _weighted_swiglu(*inputs)
        return torch.autograd.grad(out, inputs, grad)


def _weighted_swiglu(gate_and_up: Any, weights: Any) -> Any:
    gate, up = gate_and_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up * weights.unsqueeze(-1)).to(gate_and_up.dtype)


def grouped_product(x: Any, weights: Any, offsets: Any) -> Any:
    """Rows times the transposed weight of their expert: (rows, k), (experts, n, k) -> (rows, n)."""
    return _GroupedProduct.apply(x, weights, offsets, False)


class _GroupedProduct(torch.autograd.Function):
    """torch's own backward refuses gradients that are not contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Any, weights: Any, offsets: Any, clears_empty: bool) -> Any:
        ctx.save_for_backward(x, weights, offsets)
        ctx.clears_empty = clears_empty
        return grouped(x, weights.transpose(1, 2), offsets)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weights, offsets = ctx.saved_tensors
        grad = grad.contiguous()
        of_weights = grouped(grad.transpose(0, 1), x, offsets, clears_empty=ctx.clears_empty)
        return grouped(grad, weights, offsets), of_weights, None, None


def offsets_of(counts: Any) -> Any:
    """Where the rows of each expert end, as the grouped product takes it."""
    return counts.cumsum(0).to(torch.int32)


def _counts(chosen: Any, experts: int) -> Any:
    flat = chosen.flatten()
    return torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, torch.ones_like(flat))


def balance_loss(scores: Any, chosen: Any, sequences: int, groups: tuple[NamedGroup, ...]) -> Any:
    """The loss for unequal use of the experts, for each sequence by itself, so that no layout changes it.

    Formula: mean over sequences of sum_i f_i P_i, f_i = E / (k s) * tokens of expert i, P_i = sum_t p_it / s
    Where:   p are scores that add up to 1; with a part of a sequence, this rank's share of the sum over tokens
    Source:  DeepSeek-V3 (arXiv 2412.19437), equations 17 to 20; Switch Transformer (arXiv 2101.03961)
    """
    experts, top_k = scores.shape[1], chosen.shape[1]
    shares = (scores / scores.sum(-1, keepdim=True)).view(sequences, -1, experts)
    marks = torch.zeros_like(scores).scatter(1, chosen, 1.0).view(sequences, -1, experts)
    used, parts = marks.sum(1), 1
    for group in groups:
        used, parts = all_reduce(used, group), parts * group.size
    tokens = parts * shares.shape[1]
    return (used * (experts / (top_k * tokens)) * shares.sum(1)).sum() / (sequences * tokens)


class _WithLoss(torch.autograd.Function):
    """The first argument as it is; in backward a loss beside it starts from ``scale``."""

    @staticmethod
    def forward(ctx: Any, x: Any, loss: Any, scale: Any) -> Any:
        del loss
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad.new_ones(()) * ctx.scale, None
