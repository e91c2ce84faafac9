"""What the simulator has a rank of each stage issue in one step, held against the trainer's own trace.

Read from the passes and scripts that the timeline walks, not from formulas of its own. Where the trainer is known to
differ, a rule says how exactly and why (``RULES``); beyond the rules the two are equal or one of
them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from knee.engine.cost.compute_costs import shapes_of
from knee.engine.events import DTYPE_BYTES, Collective, StageWork
from knee.engine.simulator import EvaluatedStep, evaluate
from knee.engine.timeline.segment_events import scripts_of
from knee.engine.timeline.step_events import Message, Script, record_action, stage_rank
from knee.engine.timeline.step_parts import StepParts
from knee.engine.workload import operations as op
from knee.engine.workload.layers_per_stage import blocks_recomputed, chunk_layers, stage_layers
from knee.engine.workload.parameters import layer_tensors
from knee.engine.workload.projections import layer_kinds
from knee.engine.workload.traffic import input_of, wide_weights
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
        every, sparse = int(w.actions.rows.layers[row]), int(w.actions.rows.expert_layers[row])
        held = [every] if w.parts.kinds is None else [every - sparse, sparse]  # by kind
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
    rank, collectives = stage_rank(w.parts, stage), {c: n for c, n in found.items() if n}
    return StageWork(stage=stage, rank=rank, product_flop=products, attention_flop=attention, collectives=collectives)


def kinds_of_layers(w: EvaluatedStep) -> list[tuple[Model, StepParts]]:
    """The kinds of layers: of a model that has both, those without experts and those with them."""
    models, parts = layer_kinds(w.model), w.parts.kinds
    if models is None or parts is None:
        return [(w.model, w.parts)]
    return [(models[0], parts.dense), (models[1], parts.sparse)]


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


Change = Callable[[Job, StageWork], StageWork]
"""What the simulator says of a stage -> what the trainer then does."""
RULES: list[tuple[str, Change]] = []
"""Every way in which the trainer differs from the simulator on purpose: why, and how, in the order of application."""


def _rule(why: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        RULES.append((why, change))
        return change

    return add


def as_trained(job: Job, simulated: StageWork) -> tuple[StageWork, list[str]]:
    """The simulator's work under all rules, and the reasons of those that changed it."""
    work, reasons = simulated, []
    for why, change in RULES:
        changed = change(job, work)
        if changed != work:
            reasons.append(why)
        work = changed
    return work, reasons


def _with(work: StageWork, changes: dict[Collective, int]) -> StageWork:
    calls = Counter(work.collectives)
    calls.update(changes)
    return replace(work, collectives={c: n for c, n in calls.items() if n})


@_rule("the simulator counts a transfer between stages once, at the receiver; the trainer also counts the send")
def _sends(job: Job, work: StageWork) -> StageWork:
    received = {c: n for c, n in work.collectives.items() if c.collective == "recv"}
    del job
    # every chunk that receives an activation sends its gradient back, and the other way round
    return _with(work, {c._replace(collective="send"): n for c, n in received.items()})


@_rule("the all-reduce of the gradient norm also carries the loss: 8 bytes instead of 4")
def _norm_with_loss(job: Job, work: StageWork) -> StageWork:
    del job
    norm = {c: n for c, n in work.collectives.items() if c.group == "world"}
    return _with(work, {c: -n for c, n in norm.items()} | {c._replace(message_bytes=8): n for c, n in norm.items()})


@_rule(
    "the parallel loss sends its two sums in one message: all-reduces of 4 and 8 bytes per token instead of "
    "three of 4 bytes"
)
def _loss_in_two(job: Job, work: StageWork) -> StageWork:
    if job.plan.tp == 1 or work.stage != job.plan.pp - 1:
        return work
    m, tokens = job.microbatches, job.plan.micro_batch * job.seq_len // job.plan.cp
    one = Collective("all_reduce", "tp", job.plan.tp, 4 * tokens, "fp32")
    return _with(work, {one: -2 * m, one._replace(message_bytes=8 * tokens): m})


def _in_fp8(job: Job) -> list[str]:
    if job.plan.precision != "fp8":
        return []
    tensors = [t for t in layer_tensors(job.model) if t.cols > 1]
    wide = wide_weights(tensors, np.array([job.plan.tp]), job.profile.fp8_smallest)
    return [t.name for t in tensors if not wide[input_of(t)][0]]


@_rule(
    "with sequence parallelism, the trainer also reduces the gradients of the norms over the tp group, in one "
    "small message per step, and those of the router with them; those of norms of heads always"
)
def _norm_gradients(job: Job, work: StageWork) -> StageWork:
    plan = job.plan
    of_heads = 2 if job.model.qk_norm == "head" else 0
    if plan.tp == 1 or not (plan.sequence_parallel or of_heads):
        return work
    layers = stage_layers(job.model.layers, plan.pp, plan.virtual_stages)[work.stage]
    norms = 2 * layers + (work.stage == plan.pp - 1) if plan.sequence_parallel else 0
    shards = 1 if plan.sharding == "ddp" else plan.dp_shard * plan.cp
    # of the stage's first rank
    own = norms * -(-job.model.hidden // shards) + of_heads * layers * -(-job.model.head_dim // shards)
    if job.model.experts is not None and plan.sequence_parallel:
        routers = _expert_layers(job, work.stage)  # each rank routes its own tokens
        own += routers * -(-job.model.experts.count // shards) * job.model.hidden
    width = DTYPE_BYTES[plan.state_dtype]
    return _with(work, {Collective("all_reduce", "tp", plan.tp, own * width, plan.state_dtype): 1})


@_rule("once per step, the ranks that shard fp8 weights reduce the largest element of each: 4 bytes per weight")
def _fp8_scales(job: Job, work: StageWork) -> StageWork:
    plan, shards = job.plan, job.plan.dp_shard * job.plan.cp
    weights = _in_fp8(job) if plan.fp8_recipe == "tensorwise" and plan.sharding != "ddp" and shards > 1 else []
    if not weights:
        return work
    layers = stage_layers(job.model.layers, plan.pp, plan.virtual_stages)[work.stage]
    return _with(work, {Collective("all_reduce", "dp_shard", shards, 4 * round(layers) * len(weights), "fp32"): 1})


@_rule("the router's weights travel with the tokens, in all-to-alls of 4 bytes for each token and expert")
def _router_weights(job: Job, work: StageWork) -> StageWork:
    """Of each microbatch and layer with experts, there and back again."""
    found = {c: n for c, n in work.collectives.items() if c.group in ("ep", "etp")}
    width = job.model.hidden * DTYPE_BYTES["bf16"]
    backward = _expert_layers(job, work.stage) * job.microbatches
    # tokens go there and back in each pass, weights there alone; their gradients are reduced, never gathered
    weights = {}
    for c, n in found.items():
        count = {"all_to_all": n // 2, "all_gather": n - backward, "reduce_scatter": backward}[c.collective]
        weights[c._replace(message_bytes=4 * c.message_bytes // width, dtype="fp32")] = count
    return _with(work, weights)


def _layers_here(job: Job, stage: int) -> list[range]:
    plan = job.plan
    dealt = chunk_layers(job.model.layers, plan.pp * plan.virtual_stages)
    ends = list(accumulate(dealt))
    return [range(ends[n] - dealt[n], ends[n]) for n in range(stage, len(dealt), plan.pp)]


def _expert_layers(job: Job, stage: int) -> int:
    return sum(_has_experts(job, layer) for chunk in _layers_here(job, stage) for layer in chunk)


def _has_experts(job: Job, layer: int) -> bool:
    return job.model.experts is not None and job.model.experts.has_experts(layer)


def _recomputed_here(job: Job, stage: int) -> list[tuple[list[int], list[int]]]:
    """(layers, how many of them the trainer recomputes) of each chunk of a stage, without experts and with them; only
    one number of each where layers are alike."""
    again = blocks_recomputed(job.plan.recompute_frac, job.model.layers)
    alike = layer_kinds(job.model) is None
    kinds = (None,) if alike else (False, True)
    found = []
    for chunk in _layers_here(job, stage):
        own = [[n for n in chunk if kind is None or _has_experts(job, n) == kind] for kind in kinds]
        found.append(([len(layers) for layers in own], [sum(again[n] for n in layers) for layers in own]))
    return found


@_rule("the simulator recomputes the given share of layers on every stage; the trainer recomputes whole blocks")
def _whole_blocks(job: Job, work: StageWork) -> StageWork:
    plan = job.plan
    if plan.recompute_frac == 1:
        return work
    chunks = _recomputed_here(job, work.stage)
    layers, again = ([sum(kind) for kind in zip(*columns, strict=True)] for columns in zip(*chunks, strict=True))
    w = evaluate(job.model, job.cluster, job.profile, table_of([job]), fold=False)
    products, attention = flop_of(w, layers, work.stage == plan.pp - 1, again)
    changed = replace(work, product_flop=products, attention_flop=attention)
    scripts = [scripts_of(model, w.cluster, parts, w.actions, work.stage) for model, parts in kinds_of_layers(w)]
    kinds = w.actions.layout(0).kinds
    calls: Counter[Collective] = Counter()
    for (counts, repeats), chunk in zip(chunks, range(work.stage, len(kinds), plan.pp), strict=True):
        row = int(w.actions.row_of[kinds[chunk], 0])
        for count, repeated, script in zip(counts, repeats, scripts, strict=True):
            simulated = count - round((1 - plan.recompute_frac) * count)
            for message, _ in script["F", row].local["layer"]:
                if message.group.name != "pp":
                    calls[collective_of(message)] += (repeated - simulated) * job.microbatches
    return _with(changed, dict(calls))


@_rule(
    "torch stops recomputing a block once the backward pass has all its inputs, so it skips the down "
    "projection and what follows it, unless that is in fp8"
)
def _stops_early(job: Job, work: StageWork) -> StageWork:
    plan = job.plan
    if plan.recompute not in ("blocks", "full") or "w2" in _in_fp8(job):
        return work
    repeats = [repeated for _, repeated in _recomputed_here(job, work.stage)]
    again, *sparse = (sum(kind) * job.microbatches for kind in zip(*repeats, strict=True))
    tokens = plan.micro_batch * job.seq_len // plan.cp
    if job.model.experts is not None and not sparse:
        return _stops_before_combine(job, work, again)
    work = _stops_before_combine(job, work, sparse[0]) if sparse else work
    down = 2 * tokens * job.model.hidden * job.model.ffn // plan.tp
    less = replace(work, product_flop=work.product_flop - again * down)
    if plan.tp == 1:
        return less
    last = "reduce_scatter" if plan.sequence_parallel else "all_reduce"
    return _with(less, {Collective(last, "tp", plan.tp, 2 * tokens * job.model.hidden, "bf16"): -again})


def _stops_before_combine(job: Job, work: StageWork, again: int) -> StageWork:
    """The same of layers with experts: what they put out is not sent back again."""
    plan, experts = job.plan, job.model.experts
    assert experts is not None
    size = plan.micro_batch * job.seq_len // (plan.cp * plan.tp) * experts.top_k * job.model.hidden * 2
    calls = {Collective("all_to_all", "ep", plan.ep, size, "bf16"): -again} if plan.ep > 1 else {}
    if plan.etp > 1:
        calls[Collective("reduce_scatter", "etp", plan.etp, size * plan.etp, "bf16")] = -again
    return _with(work, calls)


@_rule("the simulator labels every 16-bit type as bf16")
def _named_type(job: Job, work: StageWork) -> StageWork:
    if job.plan.precision != "fp16":
        return work
    calls = {c._replace(dtype="fp16") if c.dtype == "bf16" else c: n for c, n in work.collectives.items()}
    return replace(work, collectives=calls)
