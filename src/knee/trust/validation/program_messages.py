"""What the simulator has a rank of each stage issue in one step, held against the trainer's own trace.

Read from the passes and scripts that the timeline walks, not from formulas of its own. Where the trainer is known to
differ, a rule says how exactly and why (``validation.trainer_rules``); beyond the rules the two are equal or one of
them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from knee.engine.cost.compute_costs import shapes_of
from knee.engine.issued_messages import Collective, StageWork
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.engine.timeline.rank_groups import stage_rank
from knee.engine.timeline.segment_events import scripts_of
from knee.engine.timeline.step_events import Message, Script, record_action
from knee.engine.timeline.step_parts import StepParts
from knee.engine.workload import operations as op
from knee.engine.workload.projections import layer_kinds
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.plan_table import table_of


def simulated_work(job: Job) -> list[StageWork]:
    """One step of each pipeline stage."""
    w = evaluate(job.model, job.cluster, job.profile, table_of([job]), fold=False)
    return [_stage(w, stage) for stage in range(job.plan.pp)]


def _stage(w: EvaluatedStep, stage: int) -> StageWork:
    p, v = int(w.table.pp[0]), int(w.table.virtual_stages[0])
    kinds = kinds_of_layers(w)
    scripts = [scripts_of(model, w.cluster, parts, w.actions, stage) for model, parts in kinds]
    layout = w.actions.layout(0)
    found: Counter[Collective] = Counter()
    layers, head = [0] * len(kinds), False
    for chunk in range(stage, p * v, p):
        row = int(w.actions.row_of[layout.kinds[chunk], 0])
        held = _layers_of_kinds(w, row)
        layers = [sum(pair) for pair in zip(layers, held, strict=True)]
        head |= bool(w.actions.rows.head[row])
        for action, times in _times(w).items():
            for message, count in _messages(w, scripts, held, action, row):
                found[collective_of(message)] += count * times
        receives = (chunk > 0) + (chunk < p * v - 1)
        if receives:
            size = round(float(w.traffic.pp_bytes[0]))
            found[Collective("recv", "pp", p, size, "bf16")] += receives * int(w.table.microbatches[0])
    gpus = int(w.table.gpus[0])
    if gpus > 1:
        found[Collective("all_reduce", "world", gpus, 4, "fp32")] += 1
    products, attention = flop_of(w, layers, head, [n * float(w.table.repeats_frac[0]) for n in layers])
    return StageWork(
        stage=stage,
        rank=stage_rank(w.parts, stage),
        product_flop=products,
        attention_flop=attention,
        collectives={c: n for c, n in found.items() if n},
    )


def kinds_of_layers(w: EvaluatedStep) -> list[tuple[Model, StepParts]]:
    """The kinds of layers: of a model that has both, those without experts and those with them."""
    models, parts = layer_kinds(w.model), w.parts.kinds
    if models is None or parts is None:
        return [(w.model, w.parts)]
    return [(models[0], parts.dense), (models[1], parts.sparse)]


def _layers_of_kinds(w: EvaluatedStep, row: int) -> list[int]:
    """Layers of a chunk, by kind."""
    rows = w.actions.rows
    layers, sparse = int(rows.layers[row]), int(rows.expert_layers[row])
    return [layers] if w.parts.kinds is None else [layers - sparse, sparse]


def _times(w: EvaluatedStep) -> dict[str, int]:
    """How often each action of a chunk is played."""
    more = int(w.table.microbatches[0]) - 1
    times = {"F_first": 1, "F": more, "B": more, "B_last": 1}
    return times | ({"W": more, "W_last": 1} if "W" in w.actions.walked else {})


def _messages(
    w: EvaluatedStep, scripts: Sequence[dict[tuple[str, int], Script]], layers: list[int], action: str, row: int
) -> Iterator[tuple[Message, int]]:
    """(message, how many) of one action; scripts and layers by kind of layer."""
    script = scripts[0][(action, row)]
    r = record_action(w.parts, w.actions, action, row)
    one = w.actions.walked[action].one(row)
    # what is gathered while the pipeline fills is no part of the pass, and counts with the first
    ahead = float(w.actions.filling_gather_s[row]) if action == "F_first" else 0.0
    filling = w.parts.at(float(w.actions.rows.expert_share[row])).comm.gather_layer
    root_ahead = ahead > r.layers * float(filling[0]) * (1.0 + 1e-9)
    yield script.root_gather, int(r.root_gather_s > 0 or root_ahead)
    queued = script.replicate_share > 0
    yield script.root_reduce, int(r.root_reduce_s > 0)
    yield script.root_replicate, int(r.root_replicate_s > 0 or (queued and r.root_reduce_s > 0))
    for segment in ("lead", "tail"):
        there = getattr(one, segment)
        if there.hidden_s[0] + there.blocking_s[0] > 0:
            yield from ((message, 1) for message, _ in script.local[segment])
    sent = {
        "gather": r.gather_s > 0 or ahead > 0,
        "reduce": r.reduce_s > 0,
        "replicate": r.replicate_s > 0 or (queued and r.reduce_s > 0),
        "local": bool(one.layer.hidden_s[0] + one.layer.blocking_s[0] > 0),
    }
    for kind, count in zip(scripts, layers, strict=True):
        yield from _layer_messages(w, kind, sent, count, action, row)


def _layer_messages(
    w: EvaluatedStep, scripts: dict[tuple[str, int], Script], sent: dict[str, bool], layers: int, action: str, row: int
) -> Iterator[tuple[Message, int]]:
    """Those of the layers of one kind; ``sent`` says which of them the action has."""
    script = scripts[(action, row)]
    for name in ("gather", "reduce", "replicate"):
        there = sent[name]
        group = w.groups.replicate if name == "replicate" else w.groups.shard
        alone = group.ranks[0] <= 1 and not w.modes.ddp[0]
        yield getattr(script, name), 0 if alone else int(layers * there)
        message = script.experts.get(name)
        if message is not None and message.group.size > 1:
            yield message, int(layers * there)
    for message, _ in script.local["layer"] if sent["local"] else ():
        if message.group.name != "pp" and message.group.size > 1:  # a hidden transfer is counted with the others
            yield message, layers
    again = float(w.table.repeats_frac[0])
    if action[0] == "B" and 0 < again < 1:  # the script has forward's messages whole, with a part of their time
        for message, _ in scripts[("F", row)].local["layer"]:
            if message.group.name != "pp":
                yield message, -round((1 - again) * layers)


def collective_of(m: Message) -> Collective:
    return Collective(m.collective, m.group.name, m.group.size, round(m.message_bytes), m.dtype)


def flop_of(w: EvaluatedStep, layers: Sequence[int], head: bool, again: Sequence[float]) -> tuple[int, int]:
    """Products and attention of a rank with so many layers of each kind, so many of them recomputed, and the head or
    not."""
    s, kernels = shapes_of(w.model, w.table, w.profile), w.profile.kernels
    attention_again, m = w.table.recomputes("attention")[0], float(w.table.microbatches[0])
    ends = [*op.head_forward(w.model, s, kernels), *op.head_backward(w.model, s, kernels)] if head else []
    products, attention = _gemm_flop(ends), 0.0
    for (model, _), count, more in zip(kinds_of_layers(w), layers, again, strict=True):
        forward, back = op.layer_forward(model, s, kernels), op.layer_backward_input(model, s, kernels)
        weight = op.layer_backward_weight(model, s, kernels)
        products += (count + more) * _gemm_flop(forward) + count * (_gemm_flop(back) + _gemm_flop(weight))
        attention += (count * (1.0 + attention_again) + more) * _attention_flop(forward) + count * _attention_flop(back)
    return round(m * products), round(m * attention)


def _gemm_flop(operations: list[op.Operation]) -> float:
    return sum(float(o.flop[0]) for o in operations if isinstance(o, op.Gemm | op.GroupedGemm))


def _attention_flop(operations: list[op.Operation]) -> float:
    return sum(float(o.flop[0]) for o in operations if isinstance(o, op.Attention))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line on which the two disagree beyond the rules."""

    stage: int
    what: str
    program: int
    simulated: int


def differences(program: StageWork, trained: StageWork) -> list[Difference]:
    """Where the trace and the simulator (under the rules) are not equal."""
    pairs = [
        ("product_flop", program.product_flop, trained.product_flop),
        ("attention_flop", program.attention_flop, trained.attention_flop),
    ]
    for key in dict.fromkeys((*program.collectives, *trained.collectives)):
        words = f"{key.collective} {key.group}({key.group_size}) {key.message_bytes} {key.dtype}"
        pairs.append((words, program.collectives.get(key, 0), trained.collectives.get(key, 0)))
    return [Difference(stage=program.stage, what=what, program=a, simulated=b) for what, a, b in pairs if a != b]
