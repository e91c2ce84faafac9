"""One real run as a value: what a worker is handed as JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, get_args

from knee.base.errors import SpecError, argument, out_of_range
from knee.specs.check import build_exact, validate
from knee.specs.choices import Device
from knee.specs.defaults import FP8_SMALLEST, LEARNING_RATE, TIMEOUT_S
from knee.specs.legality import PlanRule, check
from knee.specs.model import Model
from knee.specs.model.decoder import departures
from knee.specs.model.split_rules import (
    check_divided,
    check_experts,
    check_fills,
    check_microbatches,
    check_reduce_dtype,
    check_sequence,
    check_stages,
    splits_tokens,
)
from knee.specs.plan import Plan, only_simulated
from knee.specs.schedules import schedule_of

Dtype = Literal["fp32", "bf16", "fp16"]
AttentionChoice = Literal["auto", "flash", "cudnn", "math"]
Routing = Literal["learned", "balanced"]
LrSchedule = Literal["constant", "linear", "cosine", "wsd"]
AUTO = "auto"
"""Resume from the newest checkpoint of the run's own folder, if there is one."""

MOST_STEPS = 10**9
"""More than anybody trains; what is beyond it no longer multiplies with a time."""
LONGEST_TIMEOUT_S = 1e6
WIDTHS = 8
"""Rows of torch's grouped products start at multiples of 16 bytes."""


# What the simulator takes and the trainer does not: a table of rules for a ``TrainJob``.

SPLITS_EXPERTS = (2, 12)
"""Release of torch whose Functions have the ``_input_metadata`` that a split backward asks them for; 2.11 has not."""


def torch_release() -> tuple[int, ...]:
    """(major, minor) of the installed torch, which is not imported for it; of the newest where there is none."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (sys.maxsize,)


def _untrained(job: Any) -> dict[str, str]:
    """Fields of the model that the trainer's decoder does not have, and what is said of each."""
    model = job.model
    trained = {"experts", "latent_attention", "attention_output_bias"}
    trained |= {"qk_norm"} if model.qk_norm == "head" else set()
    trained |= {"qkv_bias"} if model.latent_attention is None else set()
    trained |= {"mlp_bias"} if model.experts is None else set()
    return {name: shown for name, shown in departures(model, job.seq_len).items() if name not in trained}


def not_trained(field: str, breaks: Callable[[Any], Any], text: str | Callable[[Any], str], hint: str) -> PlanRule:
    """One thing that the trainer does not do."""
    return PlanRule(field, breaks, text, hint, "not-trained")


def model_rule(job: Any) -> PlanRule:
    """The rule of the model's decoder, which names the first field that breaks it."""
    other = _untrained(job)
    return not_trained(
        f"model.{next(iter(other), '')}",
        lambda _: other,
        lambda job: (
            f"{job.model.name} has {', '.join(other.values())}: the trainer trains Llama decoders (swiglu, "
            "rmsnorm, rope, no windows), also with biases of linear layers, experts, latent attention or norms of heads"
        ),
        "simulate it, or train a Llama model of its size",
    )


MTP = not_trained(
    "model.mtp_layers",
    lambda job: job.model.mtp_layers,
    "model.mtp_layers of {model.name} is {model.mtp_layers}; the trainer predicts one token",
    "use {--overrides} model.mtp_layers=0",
)
RULES = (
    # types of numbers
    not_trained(
        "plan.precision",
        lambda job: job.plan.precision == "fp4",
        "fp4 matrix products can be simulated but not trained",
        "use {--precision} fp8 or bf16",
    ),
    not_trained(
        "plan.precision",
        lambda job: job.plan.precision == "fp8" and (job.model.experts or job.model.latent_attention),
        lambda job: (
            f"{job.model.name} has {'experts' if job.model.experts else 'latent attention'}, whose fp8 products "
            "can be simulated but not trained"
        ),
        "use {--precision} bf16",
    ),
    not_trained(
        "dtype",
        lambda job: job.plan.precision == "fp8" and job.dtype == "fp16",
        "fp8 products read and write bf16, not fp16",
        "use {--dtype} bf16",
    ),
    not_trained(
        "plan.state_dtype",
        lambda job: job.dtype == "fp16" and job.plan.state_dtype == "bf16",
        "fp16 training keeps fp32 parameters",
        "use {--state-dtype} fp32",
    ),
    # data and context parallelism, recomputation
    not_trained(
        "plan.sharding",
        lambda job: job.plan.sharding in ("zero1", "zero2"),
        "{plan.sharding} can be simulated but not trained: FSDP2 has no mode with unsharded 16-bit parameters",
        "use {--sharding} fsdp_no_reshard, which shards gradients too, or ddp",
    ),
    not_trained(
        "plan.sharding",
        lambda job: (
            job.plan.sharding == "fsdp_no_reshard"
            and job.plan.dp_replicate > 1
            and job.plan.dp_shard * job.plan.cp == 1
        ),
        "nothing is sharded: dp_shard and cp are 1",
        "use {--sharding} ddp",
    ),
    not_trained(
        "plan.recompute",
        lambda job: job.plan.recompute == "ops",
        "recompute ops can be simulated but not trained",
        "use {--recompute} blocks or full",
    ),
    *only_simulated("{words} can be simulated but not trained", "leave {argument} out", code="not-trained"),
    not_trained(
        "plan.cp_method",
        lambda job: job.plan.cp > 1 and job.plan.cp_method == "ring",
        "ring attention can be simulated but not trained",
        "use {--cp-method} allgather",
    ),
    # pipelines
    not_trained(
        "plan.schedule",
        lambda job: job.plan.pp > 1 and not schedule_of(job.plan.schedule).trained,
        "{plan.schedule} can be simulated but not trained: torch's pipelines have one copy of each stage",
        "use {--schedule} zero_bubble or 1f1b",
    ),
    not_trained(
        "plan.schedule",
        lambda job: _splits_backward(job.plan) and job.plan.recompute in ("blocks", "full"),
        "{plan.schedule} with {--recompute} {plan.recompute} can be simulated but not trained: torch's split backward "
        "would recompute a block once for every weight",
        "use {--schedule} 1f1b, or {--recompute} attention or none",
    ),
    not_trained(
        "plan.schedule",
        lambda job: _splits_backward(job.plan) and job.plan.ep > 1 and torch_release() < SPLITS_EXPERTS,
        "this torch cannot split the backward of layers whose tokens go to experts on other ranks",
        f"install torch {'.'.join(map(str, SPLITS_EXPERTS))} or later, or use {{--schedule}} 1f1b",
    ),
    not_trained(
        "plan.pp",
        lambda job: job.plan.pp > 1 and job.model.tied_embeddings,
        "{model.name} ties its output projection to its embedding, but a pipeline puts them on different ranks",
        "use pp 1, or an untied model",
    ),
    not_trained(
        "attention",
        lambda job: job.device == "cpu" and job.attention in ("flash", "cudnn"),
        "attention {attention} is a kernel for GPUs",
        "use {--attention} auto on a CPU",
    ),
)
EXPERT_RULES = (
    not_trained(
        "plan.etp",
        lambda job: job.plan.ep * job.plan.etp % job.plan.tp,
        "ep {plan.ep} * etp {plan.etp} is not a multiple of tp {plan.tp}: tensor-parallel ranks would hold copies of "
        "the same experts",
        "use {--etp} {plan.tp}, or an ep that is a multiple of {plan.tp}",
    ),
)


def _splits_backward(plan: Plan) -> bool:
    return plan.pp > 1 and schedule_of(plan.schedule).splits_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """Everything a worker needs to know; valid or refused, like every spec."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    model: Model
    plan: Plan
    gpus: int
    """Processes of the run: GPUs, or CPU processes."""
    global_batch: int
    """Sequences per optimizer step, over all processes."""
    seq_len: int
    steps: int = 60
    """Optimizer steps in all, those of the warm-up included."""
    warmup: int = 10
    """First steps that are run and not reported."""
    seed: int = 0
    device: Device = "cpu"
    dtype: Dtype = "fp32"
    """Type of the products. The plan's ``state_dtype`` says how parameters and moments are kept."""
    compile: bool = False
    """torch.compile of every block and of the loss."""
    attention: AttentionChoice = "auto"
    fp8_smallest: int = FP8_SMALLEST
    """With fp8, weights that are narrower in either direction keep 16-bit products: casts would cost more than they
    gain."""
    deterministic: bool = False
    """The same seed gives the same losses, bit by bit, on the same devices."""
    lr: float = LEARNING_RATE
    """Highest learning rate."""
    lr_schedule: LrSchedule = "constant"
    """How the learning rate falls after its warm-up."""
    lr_warmup: int = 0
    """First steps in which the learning rate rises."""
    lr_min_frac: float = 0.0
    """Learning rate at the end of a schedule, over the highest."""
    lr_decay_frac: float = 0.2
    """Share of the steps after the warm-up in which the schedule wsd falls."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 does not clip (the norm is reported all the same)."""
    routing: Routing = "learned"
    """``balanced`` sends tokens to experts in turn, whatever the router says."""
    capacity_factor: float = 0.0
    """Most tokens of a sequence that an expert takes, over those of balanced routing; 0 drops no token."""
    balance_loss: float = 0.0
    """Coefficient of the loss for unequal use of the experts; the reported loss is without it."""
    balance_rate: float = 1e-3
    """How far a router's bias moves per step, where the model has one that balances its experts."""
    trace_steps: int = 0
    """Steps after the last reported one that run under the profiler."""
    data: dict[str, Any] = field(default_factory=dict)
    """Where tokens come from; empty is synthetic tokens."""
    valid_data: dict[str, Any] = field(default_factory=dict)
    """Where held-out tokens come from; empty is synthetic tokens of another seed."""
    valid_every: int = 0
    """Steps between computations of the validation loss; 0 computes none."""
    valid_batches: int = 10
    """Global batches of held-out data for one validation loss."""
    weights: str = ""
    """Folder of the first weights: Hugging Face safetensors or a checkpoint; empty draws them from the seed."""
    checkpoint_every: int = 0
    """Steps between checkpoints, which are also written after the last step; 0 writes none."""
    keep: int = 2
    """Newest checkpoints that are kept; 0 keeps all."""
    resume: str = ""
    """Checkpoint to go on from, or "auto"; empty starts anew."""
    log_to: tuple[str, ...] = ()
    """Programs that are told the metrics of steps: tensorboard, wandb."""
    out: str = ""
    """Folder of the records; empty writes none."""
    timeout_s: float = TIMEOUT_S
    """A collective that waits longer ends the run."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Passed through into the record: names, sources, versions, what the command line was."""

    def __post_init__(self) -> None:
        self._check_numbers()
        check((MTP, model_rule(self), *RULES), self)
        check_reduce_dtype(self.plan, self.dtype)
        check_fills(self.plan, self.gpus, unit="processes", shown=str(self.gpus))
        self._check_split_of_model()
        self._check_batch()

    @property
    def microbatches(self) -> int:
        """Microbatches that each data-parallel rank runs in one step."""
        return self.global_batch // (self.plan.dp * self.plan.micro_batch)

    @property
    def local_sequences(self) -> int:
        """Sequences of one data-parallel rank and step."""
        return self.global_batch // self.plan.dp

    @property
    def tokens(self) -> int:
        """Tokens of one step, over all processes."""
        return self.global_batch * self.seq_len

    def as_json(self) -> dict[str, Any]:
        """Plain data; ``from_json`` makes the same job of it."""
        plain = asdict(self)
        for name in ("placement", "recompute_modules"):
            plain["plan"][name] = list(getattr(self.plan, name))
        return plain | {"log_to": list(self.log_to)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TrainJob:
        """The job of plain data, or SpecError with all its mistakes. Only mistakes need pydantic: workers have none."""
        job: TrainJob | None = build_exact(cls, plain)
        return validate(cls, plain, "job") if job is None else job

    def _check_numbers(self) -> None:
        amounts = ("lr", "clip_norm", "capacity_factor", "balance_loss", "balance_rate")
        counts = ("trace_steps", "seed", "lr_warmup", "valid_every", "checkpoint_every", "keep")
        longest = f"it must be positive and at most {LONGEST_TIMEOUT_S:,.0f}"
        rules: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
            (("gpus", "global_batch", "seq_len", "steps"), lambda number: number >= 1, "it must be at least 1"),
            (("warmup",), lambda number: number >= 0, "it must be at least 0"),
            (("steps", "trace_steps"), lambda number: number <= MOST_STEPS, f"it must be at most {MOST_STEPS:,}"),
            ((*amounts, *counts), lambda number: not number < 0, "it cannot be negative"),
            (amounts, math.isfinite, "it must be a finite number"),
            (("lr_min_frac",), lambda share: 0 <= share <= 1, "it must be between 0 and 1"),
            (("lr_decay_frac",), lambda share: 0 < share <= 1, "it must be more than 0 and at most 1"),
            (("valid_batches",), lambda number: number >= 1 or not self.valid_every, "it must be at least 1"),
            (("seed",), lambda number: number < 1 << 31, f"it must be less than {1 << 31:,}"),
            (("timeout_s",), lambda seconds: 0 < seconds <= LONGEST_TIMEOUT_S, longest),
        )
        for name, holds, rule in ((name, holds, rule) for names, holds, rule in rules for name in names):
            value = getattr(self, name)
            if not holds(value):
                raise out_of_range(name, value if name in amounts or isinstance(value, int) else f"{value:g}", rule)
        if self.warmup >= self.steps:
            raise SpecError(
                f"warmup {self.warmup} leaves no step to measure, because the run has only {self.steps} steps",
                hint=f"give {argument('steps')} more than {argument('warmup')}",
                code="contradiction",
                field="warmup",
            )
        choices = {"device": Device, "dtype": Dtype, "attention": AttentionChoice, "routing": Routing}
        for name, known in (choices | {"lr_schedule": LrSchedule}).items():
            if getattr(self, name) not in get_args(known):
                text = f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(known))}"
                raise SpecError(text, code="unknown-choice", field=name)

    def _check_split_of_model(self) -> None:
        model, plan = self.model, self.plan
        for what, size in (
            ("heads", model.heads),
            ("key-value heads", model.kv_heads),
            ("MLP columns", model.ffn),
            ("columns of shared experts", model.experts.shared_ffn if model.experts else 0),
            ("tokens in its vocabulary", model.vocab),
        ):
            check_divided(model, size, what, plan.tp)
        check_experts(model, plan)
        self._check_experts()
        check_stages(model, plan, own_stages=0)
        check_sequence(self.seq_len, plan.cp)
        if not splits_tokens(self.seq_len, plan.cp, plan.tp):
            raise SpecError(
                f"a sequence of {self.seq_len // plan.cp} tokens is not divisible by tp {plan.tp}",
                hint="use a sequence length that tp x cp divides",
                code="does-not-divide",
                field="plan.tp",
            )

    def _check_experts(self) -> None:
        experts, plan = self.model.experts, self.plan
        if experts is None:
            return
        check(EXPERT_RULES, self)
        for what, width in (("hidden", self.model.hidden), ("experts.ffn", experts.ffn)):
            own = width // (plan.etp if what == "experts.ffn" else 1)
            if own % WIDTHS:
                raise SpecError(
                    f"grouped products need widths that are multiples of {WIDTHS}, but {what} is {own} on each rank",
                    hint=f"change {what} to a multiple of {WIDTHS * (plan.etp if what == 'experts.ffn' else 1)}",
                    code="not-trained",
                    field=f"model.{what}",
                )
        rows = plan.micro_batch * self.seq_len // (plan.cp * plan.tp) * experts.top_k
        if self.routing == "balanced" and not self.capacity_factor and rows % experts.count:
            raise SpecError(
                f"balanced routing deals {rows:,} rows of a rank's microbatch (tokens * top_k) to {experts.count} "
                "experts, which does not divide evenly",
                hint="change the sequence length or the microbatch",
                code="does-not-divide",
                field="routing",
            )

    def _check_batch(self) -> None:
        plan = self.plan
        if self.global_batch % (plan.dp * plan.micro_batch):
            raise SpecError(
                f"global_batch {self.global_batch} is not a multiple of dp_replicate({plan.dp_replicate}) * "
                f"dp_shard({plan.dp_shard}) * micro_batch({plan.micro_batch})",
                hint=f"change {argument('micro_batch')} or the batch, or raise tp, pp or cp",
                code="does-not-divide",
                field="global_batch",
            )
        check_microbatches(plan, self.microbatches)


def activation_dtype(precision: str, device: str) -> Dtype:
    """What products read and write under a plan: fp8 ones read bf16, and CPUs compute in fp32."""
    kinds: dict[str, Dtype] = {"fp16": "fp16"}
    return "fp32" if device == "cpu" else kinds.get(precision, "bf16")


def learning_rate(job: TrainJob, step: int) -> float:
    """The learning rate of step ``step``, counted from 0. It depends on nothing else, so a resumed run goes on alike.

    Formula: lr * (step + 1) / warm-up in the warm-up; then lr * (min + (1 - min) * f(t)), where t goes from 0 to 1
             linear f = 1 - t, cosine f = (1 + cos(pi t)) / 2, wsd f = min(1, (1 - t) / decay)
    Source:  cosine: Loshchilov and Hutter, SGDR (arXiv 1608.03983); WSD: Hu et al., MiniCPM (arXiv 2404.06395)
    """
    if step < job.lr_warmup:
        return job.lr * (step + 1) / job.lr_warmup
    done = min(1.0, (step - job.lr_warmup) / max(1, job.steps - job.lr_warmup))
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": (1.0 + math.cos(math.pi * done)) / 2,
        "wsd": min(1.0, (1.0 - done) / job.lr_decay_frac),
    }[job.lr_schedule]
    return job.lr * (job.lr_min_frac + (1.0 - job.lr_min_frac) * shape)
