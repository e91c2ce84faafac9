"""What the exports to other programs share: recorded option names, a launch, and words for what cannot be run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import knee
from knee.base.errors import InputError
from knee.engine.workload.layers_per_stage import chunk_layers
from knee.engine.workload.parameters import head_layers
from knee.specs.catalog import ROOT, read_toml
from knee.specs.job import Job
from knee.specs.legality import PlanRule, first_broken
from knee.specs.plan import Plan, only_simulated, plan_words

LARGEST_HOST = 16
"""More GPUs than this in what knee calls a node are a rack of hosts."""
RACK_HOST = 4
"""GPUs of one host of a GB200 NVL72 rack."""


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """``catalog/exports.toml``: by program, its options and where and when they were read."""
    return read_toml(ROOT / "exports.toml")


def cannot(tool: str, field: str, what: str, hint: str) -> InputError:
    """The plan, or a part of it, is nothing that this program does; ``field`` is what stands in the way."""
    called = recorded()[tool]["called"]
    return InputError(f"{called} cannot run this plan: {what}", hint=hint, code="cannot-run", field=field)


@dataclass(slots=True, kw_only=True)
class LaunchCommand:
    """A command under construction. An option that is not recorded cannot be added."""

    tool: str
    notes: list[str] = field(default_factory=list)
    """Sentences that become comments: where the program means something else than knee."""
    lines: list[str] = field(default_factory=list)

    def option(self, name: str, value: object = None, *, of: str | None = None) -> None:
        """Add an option, with its value quoted for the shell; a tuple is several values."""
        self._check(name, of)
        values = () if value is None else value if isinstance(value, tuple) else (value,)
        self.lines.append(" ".join((name, *(shlex.quote(str(v)) for v in values))))

    def options(self, table: Mapping[str, object]) -> None:
        """Add options in order: True is one without a value, None and False leave one out."""
        for name, value in table.items():
            if value is not None and value is not False:
                self.option(name, None if value is True else value)

    def shell_option(self, name: str, text: str, *, of: str | None = None) -> None:
        """Add an option whose value the shell fills in."""
        self._check(name, of)
        self.lines.append(f'{name} "{text}"')

    def text(self, job: Job, *, before: str = "") -> str:
        """The whole script: comments, what has to be there ``before``, the command."""
        entry = recorded()[self.tool]
        called = f"{entry['called']} {entry['version']}"
        head = f"knee {knee.__version__}: {about(job)}; options of {called}, checked {entry['checked']}"
        comments = [head, f"plan: {plan_words(job.plan)}", *self.notes]
        # what stands in a comment ends with its line
        said = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
        return said + before + " \\\n  ".join(self.lines) + "\n"

    def _check(self, name: str, of: str | None) -> None:
        if name not in recorded()[of or self.tool]["options"]:
            raise LookupError(f"{name} is not recorded as an option of {of or self.tool}")


def about(job: Job) -> str:
    """One line about a job."""
    return (
        f"{job.model.name} on {job.gpus:,} GPUs of {job.cluster.name}, {job.global_batch:,} sequences of "
        f"{job.seq_len:,} tokens per step"
    )


def add_torchrun(launch: LaunchCommand, job: Job) -> None:
    """torchrun on as many hosts as the job fills."""
    per_host = job.cluster.node.gpus
    if per_host > LARGEST_HOST:
        per_host = RACK_HOST
        launch.notes.append(f"a rack of {job.cluster.name} is assumed to consist of hosts with {RACK_HOST} GPUs")
    per_host = min(per_host, job.gpus)
    if job.gpus % per_host:
        raise cannot(
            launch.tool,
            "gpus",
            f"torchrun starts the same number of processes on every host, but {job.gpus} GPUs do not fill "
            f"whole hosts of {per_host} GPUs",
            f"use a multiple of {per_host} GPUs",
        )
    hosts = job.gpus // per_host
    launch.lines.append("torchrun")
    launch.option("--nnodes", hosts, of="torchrun")
    launch.option("--nproc-per-node", per_host, of="torchrun")
    if hosts == 1:
        launch.option("--standalone", of="torchrun")
        return
    launch.notes.append(f"run this on each of the {hosts:,} hosts; set HEAD_NODE to the address of one of them")
    launch.option("--rdzv-backend", "c10d", of="torchrun")
    launch.shell_option("--rdzv-endpoint", "$HEAD_NODE:29500", of="torchrun")


def refuse_processors(launch: LaunchCommand, job: Job) -> None:
    """Runs on a CPU are knee's own."""
    if job.cluster.gpu.arch == "cpu":
        hint = "export to knee, whose trainer also runs on CPUs"
        raise cannot(launch.tool, "cluster.gpu", f"{job.cluster.name} has no GPUs", hint)


NEAREST = "the nearest plan that it can run has"


def refuse(tool: str, rules: Iterable[PlanRule], job: Job) -> None:
    """Refuse a job that breaks a rule of this program's table."""
    if (rule := first_broken(rules, job)) is not None:
        assert rule.field is not None
        raise cannot(tool, rule.field, *rule.words(job))


PREFETCHES = PlanRule(
    "plan.prefetch",
    lambda job: (
        job.plan.prefetch != 1
        and job.plan.sharding in ("fsdp", "fsdp_no_reshard", "hsdp")
        and job.plan.dp_shard * job.plan.cp > 1
    ),
    "it has no option to prefetch {plan.prefetch} layers",
    f"{NEAREST} --prefetch 1",
)
"""Neither program has an option for how far FSDP gathers ahead."""
ONLY_SIMULATED = only_simulated(
    "it has no known option for: {words}", f"{NEAREST} no {{option}}; an export to knee can be simulated"
)
"""What no recorded option of either program does."""


def placed(plan: Plan, order: tuple[str, ...]) -> bool:
    """Whether the axes that the plan uses lie in this order, innermost first."""
    return [a for a in plan.placement if getattr(plan, a) > 1] == [a for a in order if getattr(plan, a) > 1]


def layers_per_chunk(job: Job) -> tuple[int, ...]:
    """Layers of each chunk of the pipeline, as knee's answer had them."""
    by_cost = head_layers(job.model) if job.profile.deals_by_cost else 0.0
    return chunk_layers(job.model.walked_layers, job.plan.pp * job.plan.virtual_stages, by_cost)


def tp_overlap_frac(job: Job) -> float:
    """Share of tensor-parallel communication that the plan, or its profile, hides."""
    given = job.plan.tp_overlap_frac
    return job.profile.tp_overlap_frac if given is None else given


def routing_note(plan: Plan, forcing: str) -> str:
    """Which load of experts knee assumed; ``forcing`` is the program's option for benchmarks."""
    if plan.imbalance is not None:
        assumed = f"that the busiest rank has {plan.imbalance:g} times the mean number of tokens"
    else:
        assumed = f"{plan.routing} routing"
    only = f"; to measure balanced routing, add {forcing}, but never in training" if plan.routing == "balanced" else ""
    return f"knee assumed {assumed}; in training, the router decides{only}"
