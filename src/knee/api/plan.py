"""``knee.plan``: the best parallel plan of a job, out of all there are."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from knee.api.request import (
    ClusterLike,
    ModelLike,
    Overrides,
    ProfileLike,
    is_job_file,
    named_cluster,
    named_model,
    named_profile,
    pairs_of,
    request,
)
from knee.api.result import Result, flat
from knee.errors import DoesNotFit, InputError, argument, example
from knee.fidelity.trust import Trust, trust_of
from knee.search.best import Found, Objective, Progress, search
from knee.search.closest import no_plan, nothing_fits
from knee.search.export import export
from knee.search.front import Baseline, baseline, pareto, why
from knee.search.only import NUMBERS, WORDS
from knee.search.robust import Robust, robust
from knee.search.sensitivity import Bar, sensitivity
from knee.search.space import Space, whole_table
from knee.single import simulate as simulate_job
from knee.specs import Cluster, Job, Model, Plan, Profile
from knee.specs.load import DEFAULT_SEQ_LEN, split_overrides
from knee.specs.table import PlanTable

EXPORT_TRIES = 500
"""Plans of the ranking that are tried where a tool cannot run the recommended one."""
METRICS = ("tokens_per_s", "tokens_per_s_per_gpu", "mfu_frac", "step_s", "compute_s", "exposed_comm_s",
           "overlapped_comm_s", "bubble_s", "memory_bytes", "power_w_per_gpu", "tokens_per_j",
           "usd_per_mtoken")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan(Result):
    """One plan of a search, with its metrics and how it held up in the draws of the fitted parameters."""

    rank: int | None
    """Its place by the objective, from 1; None where it was not simulated within the search."""
    plan: Plan
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_frac: float
    step_s: float
    compute_s: float
    exposed_comm_s: float
    overlapped_comm_s: float
    bubble_s: float
    memory_bytes: float
    power_w_per_gpu: float | None
    tokens_per_j: float | None
    usd_per_mtoken: float | None
    exposed_frac: float
    bubble_frac: float
    headroom_bytes: float
    """Memory of a GPU that the plan leaves free."""
    good_frac: float | None
    """Share of draws in which it was within 2% of the best; None where it was not drawn."""
    fits_frac: float | None
    worst_frac: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data; every key carries its unit."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PlanSearch(Result):
    """All plans of a job that were considered, the best of them, and what stands behind the choice."""

    found: Found
    drawn: Robust
    top: int
    """Plans that are listed."""

    @cached_property
    def best(self) -> RankedPlan:
        """The recommended plan: the first, or the one that is near the best clearly more often."""
        return self.ranked(self.drawn.recommended)

    @cached_property
    def plans(self) -> tuple[RankedPlan, ...]:
        """The first of the ranking."""
        return tuple(self.ranked(row) for row in range(self.top))

    @cached_property
    def front(self) -> tuple[RankedPlan, ...]:
        """Simulated plans that no other beats in tokens/s, tokens/J and free memory at once."""
        rows = pareto(self.found.results, self.found.cluster.gpu.hbm_bytes).tolist()
        return tuple(self.ranked(row) for row in rows)

    @cached_property
    def job(self) -> Job:
        """The recommended plan as a job."""
        return self.found.job(self.drawn.recommended)

    @cached_property
    @np.errstate(all="ignore")
    def _plain_fsdp(self) -> Baseline | str:
        return baseline(self.found)

    @cached_property
    def baseline(self) -> RankedPlan | None:
        """The best plan of plain FSDP; None where it cannot be."""
        plain = self._plain_fsdp
        if isinstance(plain, str):
            return None
        if plain.row is not None:
            return self.ranked(plain.row)
        values = {name: getattr(plain.result, name) for name in METRICS}
        return self._ranked(None, plain.job.plan, values)

    @cached_property
    @np.errstate(all="ignore")
    def why(self) -> str:
        """What the recommended plan saves beside plain FSDP."""
        plain = self._plain_fsdp
        return plain if isinstance(plain, str) else why(self.job, simulate_job(self.job), plain)

    @cached_property
    @np.errstate(all="ignore")
    def sensitivity(self) -> tuple[Bar, ...]:
        """What a quarter more, and a quarter less, of each resource changes, with the plan chosen anew."""
        return tuple(sensitivity(self.found))

    @cached_property
    def trust(self) -> Trust:
        """Of the recommended plan."""
        return trust_of(self.job)

    def ranked(self, row: int) -> RankedPlan:
        """The plan of a row of the search, counted from 0."""
        values = {name: float(getattr(self.found.results, name)[row]) for name in METRICS}
        drawn = (self.drawn.good_frac, self.drawn.fits_frac, self.drawn.worst_frac)
        shares = [float(share[row]) if row < len(share) else None for share in drawn]
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        return self._ranked(row, self.found.table.plan(row), finite, *shares)

    def _ranked(self, row: int | None, plan: Plan, values: dict[str, Any], *shares: float | None) -> RankedPlan:
        good, fits, worst = shares or (None, None, None)
        return RankedPlan(
            rank=None if row is None else row + 1,
            plan=plan,
            **values,
            exposed_frac=values["exposed_comm_s"] / values["step_s"],
            bubble_frac=values["bubble_s"] / values["step_s"],
            headroom_bytes=self.found.cluster.gpu.hbm_bytes - values["memory_bytes"],
            good_frac=good,
            fits_frac=fits,
            worst_frac=worst,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee plan --json`` prints it."""
        found, drawn, space = self.found, self.drawn, self.found.space
        return {
            "schema_version": 1,
            "model": space.model.name,
            "cluster": found.cluster.name,
            "profile": found.profile.name,
            "gpus": space.gpus,
            "global_batch": space.global_batch,
            "seq_len": space.seq_len,
            "objective": found.objective,
            "counts": {
                "plans": found.plans,
                "too_large": found.too_large,
                "bounded": found.bounded,
                "simulated": len(found),
            },
            "plans": [plan.to_dict() for plan in self.plans],
            "recommended": self.best.to_dict(),
            "alike": [row + 1 for row in drawn.alike],
            "why": self.why,
            "baseline": None if self.baseline is None else self.baseline.to_dict(),
            "front": [plan.to_dict() for plan in self.front],
            "robustness": {
                "draws": drawn.draws,
                "within_frac": 0.02,
                "parameters": [
                    {"path": p.path, "spread": p.spread, "share": p.is_share, "meaning": p.meaning}
                    for p in drawn.parameters
                ],
            },
            "sensitivity": [asdict(bar) for bar in self.sensitivity],
            "trust": self.trust.as_json(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The listed plans, one a row."""
        return [flat(plan.to_dict()) for plan in self.plans]

    def export(self, to: str) -> str:
        """The recommended plan for a tool: a job file of knee's, or launch flags of torchtitan or Megatron."""
        return export(self.job, to)

    def export_first(self, to: str) -> tuple[str, int, InputError | None]:
        """The first plan that a tool can run, from the recommended one on: its text, its row, and why that one was
        refused where it was."""
        refused: InputError | None = None
        for row in dict.fromkeys((self.drawn.recommended, *range(min(EXPORT_TRIES, len(self.found))))):
            try:
                return export(self.found.job(row), to), row, refused
            except InputError as error:
                refused = refused or error
        assert refused is not None
        raise refused


@np.errstate(all="ignore")  # rates that nothing has are said by their answer
def plan(
    model: ModelLike,
    *,
    cluster: ClusterLike | None = None,
    gpus: int | None = None,
    global_batch: int | None = None,
    local_batch: float | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    precision: str | None = None,
    reduce_dtype: str | None = None,
    state_dtype: str | None = None,
    sync_every: int = 1,
    max_tp: int | None = None,
    max_pp: int | None = None,
    max_cp: int | None = None,
    sharding: Sequence[str] = (),
    schedule: Sequence[str] = (),
    recompute: Sequence[str] = (),
    micro_batch: Sequence[int] = (),
    only: str | None = None,
    objective: Objective = "tokens_per_s",
    top: int = 10,
    progress: Progress | None = None,
) -> PlanSearch:
    """Find the best parallel plan: every valid one is considered.

    ``model`` is what ``knee.simulate`` takes; of a job file the plan's types are kept and the rest of it is searched.
    ``sharding``, ``schedule``, ``recompute`` and ``micro_batch`` keep only the values they list; ``only`` is a
    condition such as ``"pp == 1 and tp <= 8"``. ``progress`` is called with what is being done and the share that is
    done; an exception that it raises ends the search.

    ``DoesNotFit`` is raised where no plan fits, with what is closest.

    >>> import knee
    >>> found = knee.plan("llama2-7b", cluster="dgx-h100", gpus=8, global_batch=16, max_pp=1, max_cp=1)
    >>> found.best.plan.tp in (1, 2, 4, 8)
    True
    """
    if top < 1:
        raise InputError(
            f"{argument('top')} is {top}; it must be at least 1",
            hint=f"for example {argument('top')} 10",
            code="out-of-range",
            field="top",
        )
    sizes = {"gpus": gpus, "global_batch": global_batch, "local_batch": local_batch, "seq_len": seq_len}
    parts = _parts(model, cluster, profile, sizes, pairs_of(overrides))
    types = {"precision": precision, "reduce_dtype": reduce_dtype, "state_dtype": state_dtype}
    space = Space(
        model=parts.model,
        gpus=parts.gpus,
        global_batch=parts.global_batch,
        seq_len=parts.seq_len,
        fixed=Plan(**parts.types | {name: value for name, value in types.items() if value is not None}),
        sync_every=sync_every,
        max_tp=max_tp,
        max_pp=max_pp,
        max_cp=max_cp,
        shardings=tuple(sharding),
        schedules=tuple(schedule),
        recomputes=tuple(recompute),
        micro_batches=tuple(micro_batch),
        selective=parts.profile.attention == "unfused",
    )
    found = search(space, parts.cluster, parts.profile, objective=objective, only=only, progress=progress or _silent)
    if not len(found):
        raise _none_fits(found, space, only)
    return PlanSearch(found=found, drawn=robust(found), top=min(top, len(found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is searched for, with every size known."""

    model: Model
    cluster: Cluster
    profile: Profile
    gpus: int
    global_batch: int
    seq_len: int
    types: dict[str, Any]


def _parts(
    model: ModelLike,
    cluster: ClusterLike | None,
    profile: ProfileLike | None,
    sizes: dict[str, Any],
    overrides: Sequence[tuple[str, str]],
) -> _Parts:
    for_model, for_cluster, for_profile, for_plan = split_overrides(overrides)
    if for_plan:
        raise InputError(
            f"{argument('overrides')} {for_plan[0][0]}: plans are what is searched",
            hint=f"limit them with {argument('only')}",
            code="not-an-override",
            field=for_plan[0][0],
        )
    if is_job_file(model):
        job = request(model, cluster=cluster, profile=profile, sizes=sizes, plan={}, overrides=overrides).job
        types = {name: getattr(job.plan, name) for name in ("precision", "reduce_dtype", "state_dtype")}
        return _Parts(
            model=job.model,
            cluster=job.cluster,
            profile=job.profile,
            gpus=job.gpus,
            global_batch=job.global_batch,
            seq_len=job.seq_len,
            types=types,
        )
    if cluster is None or sizes["gpus"] is None:
        name = "cluster" if cluster is None else "gpus"
        raise InputError(f"missing: {argument(name)}", hint=_shown(), code="missing-argument", field=name)
    shape = named_model(model, for_model).spec
    seq_len = sizes["seq_len"]
    return _Parts(
        model=shape,
        cluster=named_cluster(cluster, for_cluster).spec,
        profile=named_profile(profile, for_profile).spec,
        gpus=sizes["gpus"],
        global_batch=_batch(sizes),
        seq_len=min(DEFAULT_SEQ_LEN, shape.max_seq_len) if seq_len is None else seq_len,
        types={},
    )


def _batch(sizes: dict[str, Any]) -> int:
    whole, local, gpus = sizes["global_batch"], sizes["local_batch"], sizes["gpus"]
    if whole is None and local is None:
        raise InputError(
            f"missing: {argument('global_batch')} (or {argument('local_batch')})",
            hint=_shown(),
            code="missing-argument",
            field="global_batch",
        )
    if whole is not None and local is not None:
        raise InputError(
            f"{argument('global_batch')} and {argument('local_batch')} are both given",
            hint="give one of them",
            code="contradiction",
            field="global_batch",
        )
    if whole is not None:
        return int(whole)
    batch = local * gpus
    if not math.isfinite(batch) or batch != int(batch) or batch < 1:
        raise InputError(
            f"{argument('local_batch')} {local:g} times {gpus} GPUs is {batch:g} sequences, not a whole number",
            code="not-whole",
            field="local_batch",
        )
    return int(batch)


def _silent(what: str, done_frac: float) -> None:
    """Progress that nobody asked for."""


def _none_fits(found: Found, space: Space, only: str | None) -> DoesNotFit:
    if found.plans:
        words, hint = nothing_fits(found)
        return DoesNotFit(words, hint=hint, code="no-plan-fits")
    whole = replace(
        space, max_tp=None, max_pp=None, max_cp=None, shardings=(), schedules=(), recomputes=(), micro_batches=()
    )
    table = whole_table(whole)
    if len(table):
        return DoesNotFit(
            f"the limits leave none of {len(table):,} plans", hint=_values(table, only), code="limits-leave-no-plan"
        )
    words, hint = no_plan(whole)
    return DoesNotFit(words, hint=hint, code="no-valid-plan")


def _values(table: PlanTable, only: str | None) -> str:
    """What the columns of a condition can be."""
    given = set(re.findall(r"[a-z_]+", only or ""))
    named = [name for name in (*NUMBERS, *WORDS) if name in given]
    lines = []
    for name in named or ["tp", "pp", "cp", "sharding"]:
        values = np.unique(getattr(table, name)).tolist()
        words = [WORDS[name][v] if name in WORDS else f"{int(v):,}" for v in values]
        lines.append(f"{name} is one of {', '.join(words[:16])}{', ...' if len(words) > 16 else ''}")
    return "; ".join(lines)


def _shown() -> str:
    return example(
        'knee.plan("llama2-7b", cluster="dgx-h100", gpus=256, global_batch=512)',
        "knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512",
    )
