"""Names and shares of what runs inside a segment, for the trace of one plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knee.cost.compute import operation_s
from knee.cost.step import peak_column, shapes_of
from knee.record.events import Group
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, RECOMPUTES
from knee.timeline.actions import StepParts, is_zero_bubble
from knee.timeline.events import Kernel, Message, Script, group, script_of
from knee.timeline.step import Actions
from knee.workload import operations as op

Shares = tuple[tuple[Message, float], ...]


def scripts_of(
    model: Model, cluster: Cluster, parts: StepParts, a: Actions, stage: int
) -> dict[tuple[str, int], Script]:
    """A script for every action of every chunk kind of plan 0, with groups as stage ``stage`` sees them."""
    scripts = {}
    for action in a.sums:
        kernels = _kernels(model, cluster, parts, action)
        local = _local(parts, stage, forward=action[0] == "F")
        for row in range(len(a.rows)):
            scripts[(action, row)] = script_of(parts, kernels, local, row, a, stage)
    return scripts


def _kernels(model: Model, cluster: Cluster, parts: StepParts, action: str) -> dict[str, tuple[Kernel, ...]]:
    """The operations of each segment, with their shares of its compute."""
    one = parts.table.rows(slice(0, 1))
    s, kinds = shapes_of(one), parts.profile.kernels
    peak = peak_column(cluster, one)
    forward = op.layer_forward(model, s, kinds)
    back = op.layer_backward_input(model, s, kinds)
    weight = op.layer_backward_weight(model, s, kinds)
    full = bool(one.recompute[0] == RECOMPUTES.index("full"))
    selective = bool(one.recompute[0] == RECOMPUTES.index("selective"))
    again = forward if full else [o for o in forward if isinstance(o, op.Attention)] if selective else []
    split = bool(is_zero_bubble(one)[0])
    layer = {"F": forward, "B": [*again, *back] if split else [*again, *back, *weight], "W": weight}[action[0]]
    ends = (op.embedding_forward(model, s), op.head_forward(model, s, kinds))
    if action[0] != "F":
        ends = (op.head_backward(model, s, kinds), op.embedding_backward(model, s))
    copies = {"F_first": ("copy_out", 0), "B_last": ("copy_in", 1), "W_last": ("copy_in", 1)}
    extra = []
    if action in copies and not (split and action == "B_last"):
        name, which = copies[action]
        extra = [(name, float(parts.copies(parts.traffic.layer.moved)[which][0]))]

    def named(ops: Sequence[op.Operation], more: Sequence[tuple[str, float]] = ()) -> tuple[Kernel, ...]:
        seconds = [(o.name, float(operation_s(cluster.gpu, parts.profile, peak, o)[0])) for o in ops] + list(more)
        total = sum(t for _, t in seconds) or 1.0
        return tuple(Kernel(name=n, share=t / total) for n, t in seconds if t > 0)

    return {"lead": named(ends[0]), "layer": named(layer, extra), "tail": named(ends[1])}


def _local(parts: StepParts, stage: int, *, forward: bool) -> dict[str, Shares]:
    """TP and CP messages of each segment, with their shares of its own communication."""
    table, comm, t = parts.table, parts.comm, parts.traffic
    tp = group(parts, "tp", table.tp[0], ("tp",), stage)
    cp = group(parts, "cp", table.cp[0], ("cp",), stage)
    pp = Group(name="pp", size=2, first_rank=0)
    sp, size = bool(table.sequence_parallel[0]), float(t.tp_bytes[0])

    def exchange(gathers: int, all_reduces: int) -> list[tuple[Message, float]]:
        if sp:
            kinds = ("all_gather", "reduce_scatter")
            return [
                (Message(collective=kinds[i % 2], group=tp, message_bytes=size, dtype="bf16"), float(comm.tp_gather[0]))
                for i in range(gathers)
            ]
        return [
            (Message(collective="all_reduce", group=tp, message_bytes=size, dtype="bf16"), float(comm.tp_all_reduce[0]))
        ] * all_reduces

    ring = bool(table.cp_method[0] == CP_METHODS.index("ring"))
    times = 1 if forward else 2
    if ring:
        kv = [
            (
                Message(collective="send_recv", group=cp, message_bytes=float(t.cp_bytes[0]), dtype="bf16"),
                float(comm.cp_send[0]),
            )
        ] * (times * (int(table.cp[0]) - 1))
    else:
        names = ("all_gather",) if forward else ("all_gather", "reduce_scatter")
        kv = [
            (
                Message(collective=n, group=cp, message_bytes=float(t.cp_bytes[0]), dtype="bf16"),
                float(comm.cp_gather[0]),
            )
            for n in names
        ]
    send = [
        (
            Message(collective="send_recv", group=pp, message_bytes=float(t.pp_bytes[0]), dtype="bf16"),
            float(parts.profile.p2p_overlap_frac * comm.pp_send[0]),
        )
    ]
    again = 2 if not forward and table.recompute[0] == RECOMPUTES.index("full") else 1
    loss = [
        (
            Message(collective="all_reduce", group=tp, message_bytes=4.0 * float(table.micro_tokens[0]), dtype="fp32"),
            float(comm.tp_loss[0]),
        )
    ] * 3
    layer = _normal([*exchange(4, 2) * again, *kv, *send])
    if forward:
        return {"lead": _normal(exchange(1, 1)), "layer": layer, "tail": _normal([*exchange(1, 0), *loss])}
    return {"lead": _normal(exchange(1, 1)), "layer": layer, "tail": _normal(exchange(1, 0))}


def _normal(messages: list[tuple[Message, float]]) -> Shares:
    total = float(np.sum([seconds for _, seconds in messages]))
    return tuple((m, seconds / total) for m, seconds in messages if seconds > 0) if total > 0 else ()
