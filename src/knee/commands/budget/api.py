"""``knee.budget``: the best model that a budget can train; ``knee.budget_check``: how well published runs are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from knee.base.arrays import extreme_values
from knee.base.errors import DoesNotFit, InputError, argument, example
from knee.base.progress import Progress, silent
from knee.base.units import short
from knee.commands.budget import frontier as fr
from knee.commands.budget.model_family import LEAST_PARAMS, MOST_PARAMS, Family, family_of
from knee.commands.budget.published_budgets import published_runs
from knee.commands.budget.result import Budget, BudgetCheck
from knee.commands.budget.scaling_laws import assumed_mfu, law_of
from knee.commands.budget.scaling_laws import batch_law as batch_law_of
from knee.commands.budget.search import BudgetLimits, Problem, even_sizes, flop_choice, rare_exchange
from knee.commands.budget.throughput import Rates
from knee.commands.job_request import (
    Amount,
    ClusterLike,
    ModelLike,
    Overrides,
    Pairs,
    ProfileLike,
    amount_of,
    count_of,
    is_job_file,
    named_cluster,
    named_model,
    named_profile,
    pairs_of,
    request,
)
from knee.engine.energy import grid as grid_of
from knee.engine.reliability.whole_run import interrupted_runs
from knee.engine.training_cost import checked_pue
from knee.engine.workload.parameters import parameter_count
from knee.specs import Cluster, Model, Profile
from knee.specs.argument_types import both_given, checked_arguments, not_in_range, require
from knee.specs.catalog import Source
from knee.specs.constants import constant_source
from knee.specs.defaults import DEFAULT_BATCH_LAW, DEFAULT_FAMILY, DEFAULT_GRID, DEFAULT_LAW, DEFAULT_SEQ_LEN
from knee.specs.fields import split_overrides
from knee.specs.load import Loaded, make_job
from knee.specs.model.split_rules import check_searched_exchanges
from knee.specs.plan import SyncDtype
from knee.trust.trust import trust_of


def check_dense(model: Model, law: str) -> None:
    """Refuse a mixture of experts: no law here says its loss, and that of a dense model of its size is another one."""
    if model.experts is not None:
        raise InputError(
            f"{model.name} is a mixture of experts, and {law} predicts the loss of dense models only",
            hint="a budget takes dense models; `knee simulate` and `knee plan` with --tokens give its days, "
            "cost and energy without a loss",
            code="not-modelled",
            field="model.experts",
        )


def checked_mfu(given: float | None) -> float:
    """The share of the peak that counting FLOP assumes: given, or the catalogue's."""
    mfu = given if given is not None else assumed_mfu()[0]
    if not 0 < mfu <= 1:
        raise not_in_range("mfu", f"{mfu:g}", "it must be above 0 and at most 1", hint="for example 0.4")
    return mfu


def check_limits(limits: BudgetLimits, cluster: Cluster) -> None:
    """Refuse what bounds nothing, or cannot be."""
    for name in ("days", "usd", "mwh", "tokens_max"):
        value = getattr(limits, name)
        # also false for nan
        if value is not None and not 0 < value < 1e30:
            hint = "leave it out if there is no limit"
            raise not_in_range(name, f"{value:g}", "it must be a finite number above 0", hint=hint)
    if limits.gpus < 1:
        hint = f"for example {argument('gpus')} 2048"
        raise not_in_range("gpus", str(limits.gpus), "it must be at least 1", hint=hint)
    if limits.gpus > cluster.max_gpus:
        rule = f"{cluster.name} is described only up to {cluster.max_gpus:,}"
        raise not_in_range("gpus", f"{limits.gpus:,}", rule, hint="use fewer")
    if limits.days is None and limits.usd is None and limits.mwh is None:
        only = f" ({argument('tokens_max')} limits the data, not the compute)" if limits.tokens_max is not None else ""
        text = f"no compute limit is given, so any model could be trained forever{only}"
        hint = f"give {argument('days')}, {argument('usd')} or {argument('mwh')}, or several"
        raise InputError(text, hint=hint, code="missing-argument", field="days")
    if limits.usd is not None and not cluster.usd_per_gpu_h:
        text = f"{argument('usd')} is given, but the price of {cluster.name} is unknown"
        hint = f"give {argument('overrides')} cluster.usd_per_gpu_h='2.5 USD/h'"
        raise InputError(text, hint=hint, code="no-rate", field="usd")


def refuse_nothing(problem: Problem, limits: BudgetLimits, counts: Sequence[int]) -> None:
    """Why there is no run at all."""
    ladder = problem.ladder()
    least = ladder[0]
    name = f"{least.name} ({short(parameter_count(least))} parameters)"
    what = name if problem.model is not None else f"the smallest shape of the family, {name}"
    affordable = max(problem.most_tokens(limits, least, gpus) for gpus in counts)
    priced = [rate for (model, _), rate in problem.rates.known.items() if model == least]
    if problem.tokens_per_param is not None and (affordable == 0.0 or any(priced)):
        text = f"{what} on {problem.tokens_per_param:g} tokens per parameter needs more than these limits allow"
        raise DoesNotFit(text, hint=f"raise a limit, or lower {argument('tokens_per_param')}", field="tokens_per_param")
    if priced and all(rate is None for rate in priced):
        gib = problem.rates.cluster.gpu.hbm_bytes / 2**30
        text = f"{what} does not fit under any plan on up to {limits.gpus:,} GPUs with {gib:.0f} GiB"
        hint = f"give more {argument('gpus')}, or a smaller {argument('params')}"
        raise DoesNotFit(text, hint=hint, code="no-plan-fits", field="gpus")
    seq_len = problem.rates.seq_len
    afford = f"these limits allow {what} at most {short(affordable)} tokens"
    if affordable < seq_len:
        hint = f"raise a limit, or give a shorter {argument('seq_len')}"
        raise DoesNotFit(f"{afford}, which is less than one sequence of {seq_len:,} tokens", hint=hint, field="seq_len")
    allowed = problem.allowed_batch_tokens(problem.least_loss(limits, least, max(counts)))
    raise DoesNotFit(
        f"{afford}, and a step may have at most {short(allowed)} tokens, less than one sequence of {seq_len:,} tokens",
        hint=f"raise a limit, give {argument('batch_max')}, or a shorter {argument('seq_len')}",
    )


MOST_GPUS = 16_384
"""Where ``gpus`` is left out."""


@extreme_values()
@checked_arguments
def budget(
    *,
    cluster: ClusterLike | None = None,
    gpus: int | None = None,
    days: float | None = None,
    usd: Amount | None = None,
    mwh: Amount | None = None,
    tokens_max: Amount | None = None,
    batch_max: Amount | None = None,
    family: str = DEFAULT_FAMILY,
    model: ModelLike | None = None,
    params: Amount | None = None,
    tokens_per_param: float | None = None,
    law: str = DEFAULT_LAW,
    batch_law: str = DEFAULT_BATCH_LAW,
    mfu: float | None = None,
    seq_len: int = DEFAULT_SEQ_LEN,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    grid: str = DEFAULT_GRID,
    pue: float | None = None,
    frontier: bool = False,
    sync_every: int = 1,
    sync_fragments: int = 1,
    sync_dtype: SyncDtype | None = None,
    progress: Progress | None = None,
) -> Budget:
    """Find the model with the lowest loss that a budget can train, communication included.

    ``gpus``, ``days``, ``usd``, ``mwh`` and ``tokens_max`` are limits; amounts may be text such as ``"2M"`` or
    ``"15T"``. ``model`` or ``params`` fixes the size; if ``model`` is a job file, it also sets the cluster and the
    profile. ``frontier`` adds the loss against each limit with its knee, which takes some seconds more. ``sync_every``
    adds the best run whose replicas exchange only every so many steps, with the loss that this costs by a published
    law.

    If nothing can be trained, ``DoesNotFit`` is raised with a hint on what would help.

    >>> import knee
    >>> b = knee.budget(cluster="dgx-h100", gpus=8, days=7, params="350M")
    >>> round(b.best.params / 1e6)
    348
    """
    pairs = pairs_of(overrides)
    if is_job_file(model):
        # the job's own sizes are no limits of a budget
        job = request(model or "", cluster=cluster, profile=profile, sizes={}, plan={}, overrides=pairs).job
        model, cluster, profile, pairs = job.model, cluster or job.cluster, profile or job.profile, []
    where, how = _specs(cluster, profile, pairs)
    most = min(MOST_GPUS, where.spec.max_gpus) if gpus is None else gpus
    limits = BudgetLimits(
        gpus=most,
        days=days,
        usd=amount_of("usd", usd),
        mwh=amount_of("mwh", mwh),
        tokens_max=count_of("tokens_max", tokens_max),
    )
    check_limits(limits, where.spec)
    assumed, members = checked_mfu(mfu), family_of(family)
    found_law, shape = law_of(law), _model(model, params, members)
    # also false for nan
    if tokens_per_param is not None and not 0 < tokens_per_param < 1e9:
        rule = "it must be above 0 and below 1e9"
        raise not_in_range("tokens_per_param", f"{tokens_per_param:g}", rule, hint="Chinchilla used 20")
    first = shape or members.ladder()[0]
    check_dense(first, found_law.name)
    # a job that every model has, to refuse what cannot be simulated in words
    fixed = make_job(first, where.spec, how.spec, gpus=1, global_batch=1, seq_len=seq_len)[0].plan
    problem = Problem(
        rates=Rates(cluster=where.spec, profile=how.spec, seq_len=seq_len, fixed=fixed),
        law=found_law,
        batch_law=batch_law_of(batch_law),
        family=members,
        pue=checked_pue(pue),
        batch_max_tokens=_batch_max(batch_max, seq_len),
        model=shape,
        tokens_per_param=tokens_per_param,
        progress=progress or silent,
    )
    ways = replace(problem.rates.fixed, sync_fragments=sync_fragments, sync_dtype=sync_dtype)
    check_searched_exchanges(ways, sync_every)
    site = grid_of(grid)
    # first, as the best is found sooner beside a good candidate
    flop = flop_choice(problem, limits, assumed)
    by_count = problem.by_count(limits)
    if not by_count:
        refuse_nothing(problem, limits, problem.counts(limits))
    best = min(by_count.values(), key=lambda run: run.loss)
    sources = {"cluster": where.sources, "profile": how.sources}
    given = [f"{kind}.{path}" for kind, own in sources.items() for path, one in own.items() if one.kind == "user"]
    trust = trust_of(problem.rates.job(best.model, best.rate), given)
    axes = [axis for axis in fr.AXES if axis != "usd" or best.cost_usd is not None] if frontier else []
    cells = fr.grid_of(problem, limits, best) if frontier else {}
    faster = "profile defaulted to eager; a faster software stack trains on more tokens in the same time"
    return Budget(
        limits=limits,
        problem=problem,
        grid=site,
        best=best,
        by_count=by_count,
        sizes=tuple(fr.sizes_around(problem, limits, best)),
        between=problem.between(limits, best) if problem.model is None else float(best.params),
        even=even_sizes(problem, limits, best),
        flop=flop,
        lost=None if flop.run is None else fr.lost_by(problem, limits, best, flop.run),
        marginals=tuple(fr.marginals(problem, limits, best, where.spec.max_gpus)),
        trust=trust,
        bands=fr.bands_of(problem, limits, best, trust.low_frac, trust.high_frac),
        frontiers=tuple(fr.frontier_of(problem, limits, best, axis, site.kg_co2e_per_j) for axis in axes),
        cells=cells,
        iso=tuple(fr.iso_losses(cells, best)),
        price=where.sources.get("usd_per_gpu_h") if where.spec.usd_per_gpu_h is not None else None,
        sync_every=sync_every,
        rare_exchange=rare_exchange(problem, limits, best, sync_every, ways) if sync_every > 1 else None,
        mfu_given=mfu is not None,
        notes=[
            *([] if profile else [faster]),
            *([] if gpus is not None else [f"gpus defaulted to at most {limits.gpus:,}"]),
        ],
        pue=pue_source(pue),
    )


def _specs(
    cluster: ClusterLike | None, profile: ProfileLike | None, overrides: Pairs
) -> tuple[Loaded[Cluster], Loaded[Profile]]:
    hint = example(
        'knee.budget(cluster="dgx-h100", gpus=2048, days=30)', "knee budget --cluster dgx-h100 --gpus 2048 --days 30"
    )
    require({"cluster": cluster}, ("cluster",), hint)
    assert cluster is not None
    for pair in overrides:
        for_model, _, _, for_plan = split_overrides([pair])
        if for_model or for_plan:
            fixing = f"{argument('model')} and {argument('params')} fix the size"
            raise InputError(
                f"{argument('overrides')} {pair[0]}: the search chooses model shapes and plans itself",
                hint=f"set values of the cluster or the profile; {fixing}",
                code="not-an-override",
                field=pair[0],
            )
    _, for_cluster, for_profile, _ = split_overrides(overrides)
    return named_cluster(cluster, for_cluster), named_profile(profile, for_profile)


def _model(model: ModelLike | None, params: Amount | None, family: Family) -> Model | None:
    if model is not None and params is not None:
        raise both_given("model", "params", hint="give only one of them: each fixes the model size")
    if model is not None:
        return named_model(model).spec
    count = count_of("params", params)
    if count is None:
        return None
    if not LEAST_PARAMS <= count <= MOST_PARAMS:
        rule = f"the sizes of the family are {short(LEAST_PARAMS)} to {short(MOST_PARAMS)}"
        raise not_in_range("params", str(params), rule, hint=f"for example {argument('params')} 8B")
    return family.shape(count)


def _batch_max(given: Amount | None, seq_len: int) -> float | None:
    most = count_of("batch_max", given)
    if most is not None and most < seq_len:
        text = f"{argument('batch_max')} is {given}, less than one sequence of {seq_len:,} tokens"
        hint = f"raise {argument('batch_max')}, or give a shorter {argument('seq_len')}"
        raise DoesNotFit(text, hint=hint, field="batch_max")
    return most


def pue_source(given: float | None) -> Source:
    """Where the site's PUE comes from."""
    text = argument("pue")
    return Source(value=given, kind="user", text=text) if given is not None else constant_source("site", "pue")


@checked_arguments
def budget_check() -> BudgetCheck:
    """Predict every training run whose cost was published, and show the errors.

    >>> import knee
    >>> all(abs(run.error_frac) < 0.25 for run in knee.budget_check().runs)
    True
    """
    return BudgetCheck(runs=tuple(published_runs()), interrupted=tuple(interrupted_runs()))
