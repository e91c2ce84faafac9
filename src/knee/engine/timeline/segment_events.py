"""Names and shares of what runs inside a segment, for the trace of one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.engine.cost.compute_costs import half_column, product_column, shapes_of
from knee.engine.cost.kernel_cost import operation_s
from knee.engine.timeline.step_actions import Actions
from knee.engine.timeline.step_events import Kernel, Message, Script, expert_groups, group, neighbours, script_of
from knee.engine.timeline.step_parts import StepParts, gathers_kv_again
from knee.engine.workload import operations as op
from knee.engine.workload import tp_messages
from knee.engine.workload.projections import expert_share
from knee.engine.workload.recomputed_modules import operations_of
from knee.specs.hardware import Cluster
from knee.specs.model import Model
from knee.specs.plan import CP_METHODS, RECOMPUTES

Timed = list[tuple[Message, float]]
Shares = tuple[tuple[Message, float], ...]


def scripts_of(
    model: Model, cluster: Cluster, parts: StepParts, a: Actions, stage: int, *, whole_layers: bool = False
) -> dict[tuple[str, int], Script]:
    """A script for every action of every chunk kind of plan 0, with groups as stage ``stage`` sees them.

    ``whole_layers`` shows a layer's compute as one kernel, which takes a tenth of the time.
    """
    scripts = {}
    for action in a.walked:
        for row in range(len(a.rows)):
            own, chunk = _of_chunk(model, parts, a, row)
            forward = action[0] == "F"
            receives = not (a.rows.embedding[row] if forward else a.rows.head[row]) and action[0] != "W"
            send = _hidden_send(parts, stage, int(a.rows.layers[row]), forward) if receives else []
            local = _local(chunk, own, stage, send, forward=forward)
            kernels = _whole_layers(action) if whole_layers else _kernels(chunk, cluster, own, action)
            scripts[(action, row)] = script_of(own, kernels, local, row, a, stage, action)
    return scripts


def _whole_layers(action: str) -> dict[str, tuple[Kernel, ...]]:
    names = ("embedding", "layer", "head") if action[0] == "F" else ("head", "layer", "embedding")
    words = {"F": "forward", "B": "backward", "W": "weight gradients"}[action[0]]
    return {
        segment: (Kernel(name=f"{name} {words}", share=1.0),)
        for segment, name in zip(("lead", "layer", "tail"), names, strict=True)
    }


def _of_chunk(model: Model, parts: StepParts, a: Actions, row: int) -> tuple[StepParts, Model]:
    """Parts and model of one chunk kind, where layers are not alike: a model of its layers."""
    if parts.kinds is None or model.experts is None or a.rows.layers[row] == 0:
        return parts, model
    layers, sparse = int(a.rows.layers[row]), int(a.rows.expert_layers[row])
    experts = replace(model.experts, dense_layers=layers - sparse, every=1) if sparse else None
    chunk = replace(model, layers=layers, mtp_layers=0, experts=experts)
    return parts.at(float(a.rows.expert_share[row])), chunk


def _kernels(model: Model, cluster: Cluster, parts: StepParts, action: str) -> dict[str, tuple[Kernel, ...]]:
    """The operations of each segment, with their shares of its compute."""
    one = parts.table.rows(slice(0, 1))
    s, kinds = shapes_of(model, one, parts.profile), parts.profile.kernels
    products = product_column(one)
    forward = op.layer_forward(model, s, kinds)
    back = op.layer_backward_input(model, s, kinds)
    weight = op.layer_backward_weight(model, s, kinds)
    split = bool(one.splits_backward[0])
    layer = {"F": forward, "B": back if split else [*back, *weight], "W": weight}[action[0]]
    policy, unfused = RECOMPUTES[one.recompute[0]], parts.profile.attention == "unfused"
    again = op.recomputed_ops(model, s, kinds, attention=unfused) if policy == "ops" else forward
    again = [o for o in again if policy != "attention" or isinstance(o, op.Attention)] if action[0] == "B" else []
    if policy == "modules":
        parts_again = frozenset[str]().union(*(operations_of(m) for m in one.plan(0).recompute_modules))
        again = [o for o in again if o.name in parts_again]
    share = 1.0 if policy in ("attention", "ops", "modules") else float(one.repeats_frac[0])
    ends = (op.embedding_forward(model, s), op.head_forward(model, s, kinds, loss_parallel=parts.profile.loss_parallel))
    if action[0] != "F":
        ends = (
            op.head_backward(model, s, kinds, loss_parallel=parts.profile.loss_parallel),
            op.embedding_backward(model, s),
        )
    copies = {"F_first": ("copy_out", 0), "B_last": ("copy_in", 1), "W_last": ("copy_in", 1)}
    reshards = bool(parts.modes.reshards[0])
    if reshards:  # every microbatch gathers and reduces
        copies |= dict.fromkeys(("F", "F_fill"), copies["F_first"]) | dict.fromkeys(("B", "B_late"), copies["B_last"])
    extra = []
    if action in copies and not (split and action == "B_last"):
        name, which = copies[action]
        seconds = [float(x[0]) for x in parts.copies()]
        extra = [(name, seconds[which])] + ([("copy_out", seconds[0])] if reshards and action[0] == "B" else [])

    def seconds_of(o: op.Operation, types: Ints) -> float:
        return float(operation_s(cluster.gpu, parts.profile, types, o, float(parts.compute.clock_frac[0]))[0])

    extra = [(o.name, share * seconds_of(o, products)) for o in again] + extra

    def named(ops: Sequence[op.Operation], types: Ints, more: Sequence[tuple[str, float]] = ()) -> tuple[Kernel, ...]:
        seconds = [(o.name, seconds_of(o, types)) for o in ops] + list(more)
        total = sum(t for _, t in seconds) or 1.0
        return tuple(Kernel(name=n, share=t / total) for n, t in seconds if t > 0)

    half, forward_first = half_column(one), action[0] == "F"
    weights = (parts.traffic.embedding, parts.traffic.head)
    which, name = (0, "copy_out") if forward_first else (1, "copy_in")
    more = [
        [(name, float(parts.root_copies(part)[which][0]))] for part in (weights if forward_first else weights[::-1])
    ]
    return {
        "lead": named(ends[0], half, more[0]),
        "layer": named(layer, products, extra),
        "tail": named(ends[1], half, more[1]),
    }


def _hidden_send(parts: StepParts, stage: int, layers: int, forward: bool) -> Timed:
    """A layer's part of the transfer that hides beside the chunk."""
    stages = int(parts.table.pp[0])
    pair = neighbours(parts, stage, (stage - 1 if forward else stage + 1) % stages)
    share = parts.profile.p2p_overlap_frac / max(layers, 1)
    size = float(parts.traffic.pp_bytes[0]) * share
    message = Message(collective="send_recv", group=pair, message_bytes=size, dtype="bf16")
    return [(message, float(parts.comm.pp_send[0]) * share)]


def _local(model: Model, parts: StepParts, stage: int, send: Timed, *, forward: bool) -> dict[str, Shares]:
    """TP and CP messages of each segment, with their shares of its own communication."""
    table, comm = parts.table, parts.comm
    tp = group(parts, "tp", ("tp",), stage)
    sp, size = bool(table.sequence_parallel[0]), float(parts.traffic.tp_bytes[0])

    def message(collective: str, message_bytes: float, dtype: str = "bf16") -> Message:
        return Message(collective=collective, group=tp, message_bytes=message_bytes, dtype=dtype)

    def exchange(of: tp_messages.TpMessages, eight: Floats | None = None, saved: Floats | None = None) -> Timed:
        sums = [(message("all_reduce", 4.0 * float(table.micro_tokens[0]), "fp32"), float(comm.tp_sum[0]))] * of.sums
        if not sp:
            return _times(message("all_reduce", size), float(comm.tp_all_reduce[0]), of.all_reduces) + sums
        seconds = float(comm.tp_gather[0])
        in_fp8, saved_s = (0.0 if x is None else float(x[0]) for x in (eight, saved))
        gathers = _times(message("all_gather", size), seconds, of.gathers - in_fp8)
        scale, scale_s = message("all_reduce", 4.0, "fp32"), float(comm.tp_scale[0])
        shorter = seconds - saved_s / max(in_fp8, 1.0) - scale_s
        gathers += _times(message("all_gather", size / 2.0, "uint8"), shorter, in_fp8) + _times(scale, scale_s, in_fp8)
        return gathers + _times(message("reduce_scatter", size), seconds, of.scatters) + sums

    kv = [*_keys_and_values(parts, stage, forward), *_routed(model, parts, stage)]
    there = (parts.traffic.fp8.tp_forward, comm.tp_forward_saved)
    back = (parts.traffic.fp8.tp_backward, comm.tp_backward_saved)
    if forward:
        one, times = message("all_reduce", 4.0 * float(table.micro_tokens[0]), "fp32"), tp_messages.LOSS_ALL_REDUCES
        if not parts.profile.loss_parallel:
            one, times = message("all_gather", float(parts.traffic.logits_bytes[0])), 1
        loss = [(one, float(comm.tp_loss[0]))] * times
        return {
            "lead": _normal(exchange(tp_messages.EMBEDDING_FORWARD)),
            "layer": _normal([*exchange(tp_messages.layer_forward(model), *there), *kv, *send]),
            "tail": _normal([*exchange(tp_messages.HEAD_FORWARD), *loss]),
        }
    share = float(table.repeats_frac[0])
    again = [*exchange(tp_messages.layer_forward(model), *there), *_keys_and_values(parts, stage, True)]
    repeated = [(m, share * s) for m, s in (*again, *_routed(model, parts, stage))]
    if table.recomputes_module("moe")[0]:
        repeated += _routed(model, parts, stage)
    if table.recomputes("ops")[0]:
        repeated = exchange(tp_messages.ops_again(model), *there)
    return {
        "lead": _normal(exchange(tp_messages.HEAD_BACKWARD)),
        "layer": _normal([*repeated, *exchange(tp_messages.layer_backward(model, parts.profile), *back), *kv, *send]),
        "tail": _normal(exchange(tp_messages.EMBEDDING_BACKWARD)),
    }


def _times(message: Message, seconds: float, times: float) -> Timed:
    """So many; a part of one where only some layers have it."""
    whole = int(times)
    return [(message, seconds)] * whole + [(message, (times - whole) * seconds)] * (times > whole)


def _routed(model: Model, parts: StepParts, stage: int) -> Timed:
    """Tokens to their experts and back, in a layer that has them."""
    share = expert_share(model)
    if not share:
        return []
    (ep, etp), size = expert_groups(parts, stage), float(parts.traffic.routed_bytes[0])
    sent = Message(collective="all_to_all", group=ep, message_bytes=size, dtype="bf16")
    whole, spread_s = size * etp.size, share * float(parts.comm.etp_gather[0])
    return [
        (sent, share * float(parts.comm.dispatch[0])),
        (Message(collective="all_gather", group=etp, message_bytes=whole, dtype="bf16"), spread_s),
        (Message(collective="reduce_scatter", group=etp, message_bytes=whole, dtype="bf16"), spread_s),
        (sent, share * float(parts.comm.combine[0])),
    ]


def _keys_and_values(parts: StepParts, stage: int, forward: bool) -> Timed:
    """CP's messages of a layer: ring steps, or gathers (and the scatter of their gradients)."""
    table, comm = parts.table, parts.comm
    cp, size = group(parts, "cp", ("cp",), stage), float(parts.traffic.cp_bytes[0])
    if table.cp_method[0] == CP_METHODS.index("ring"):
        send = Message(collective="send_recv", group=cp, message_bytes=size, dtype="bf16")
        return [(send, float(comm.cp_send[0]))] * ((1 if forward else 2) * (int(table.cp[0]) - 1))
    again = gathers_kv_again(parts.profile, table)[0] > 0
    names = ("all_gather",) if forward else ("all_gather", "reduce_scatter") if again else ("reduce_scatter",)
    return [
        (Message(collective=name, group=cp, message_bytes=size, dtype="bf16"), float(comm.cp_gather[0]))
        for name in names
    ]


def _normal(messages: list[tuple[Message, float]]) -> Shares:
    total = float(np.sum([seconds for _, seconds in messages]))
    return tuple((m, seconds / total) for m, seconds in messages if seconds > 0) if total > 0 else ()
