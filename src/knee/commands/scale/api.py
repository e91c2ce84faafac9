"""``knee.scale``: what more GPUs buy, and where adding them stops paying off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from knee.base.arrays import extreme_values
from knee.base.errors import InputError, argument
from knee.base.progress import Progress, silent
from knee.commands.job_request import ClusterLike, ModelLike, Overrides, ProfileLike, count_of, pairs_of
from knee.commands.scale.result import ScaleQuestion, Scaling, shown
from knee.engine.energy import grid as grid_of
from knee.engine.training_cost import bill_of, checked_pue
from knee.search.knee import check_batch, checked_counts, knees_of, parse_counts, with_failures
from knee.specs.argument_types import checked_arguments, checked_plan, not_in_range, require
from knee.specs.choices import OBJECTIVES, Objective
from knee.specs.defaults import DEFAULT_CONVENTION, DEFAULT_GRID, KEEP_FRAC, THRESHOLD
from knee.trust.trust import doubling_band, trust_of


@extreme_values()
@checked_arguments
def scale(
    model: ModelLike | Sequence[ModelLike],
    *,
    cluster: ClusterLike | Sequence[ClusterLike] | None = None,
    gpus: str | Sequence[int] | None = None,
    local_batch: float | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    profile: ProfileLike | None = None,
    overrides: Overrides = (),
    best: bool = False,
    objective: Objective = "tokens_per_s",
    threshold: float = THRESHOLD,
    keep: float = KEEP_FRAC,
    tokens: str | float | None = None,
    grid: str = DEFAULT_GRID,
    pue: float | None = None,
    flop_convention: str = DEFAULT_CONVENTION,
    progress: Progress | None = None,
    **plan: Any,
) -> Scaling:
    """Show what more GPUs bring, and where adding GPUs stops paying off.

    ``gpus`` is a list of counts, or text such as ``"8..2048"`` (doublings). With ``local_batch`` the batch grows with
    the GPUs (weak scaling), with ``global_batch`` it stays the same (strong scaling). All counts use the same plan, and
    data parallelism fills the GPUs. With ``best``, each count uses its own best plan; plan fields that are given stay
    fixed. Several models or clusters give several curves. If a count cannot be used, its entry in
    ``curves[i].curve.points`` has the reason; ``check_usable`` raises if no count can be used.

    >>> import knee
    >>> s = knee.scale("llama2-7b", cluster="dgx-h100", gpus=[8, 64, 512], local_batch=2)
    >>> [point.gpus for point in s.only.curve.points]
    [8, 64, 512]
    """
    given = {"gpus": gpus, "local_batch": local_batch, "global_batch": global_batch}
    require(given, ("gpus", "local_batch"), shown())
    assert gpus is not None
    if not 1 < threshold <= 2:
        hint = "with 1.5, each added GPU must do at least 50% of the work of the first ones; with 1.9, 90%"
        raise not_in_range("threshold", f"{threshold:g}", "it must be above 1 and at most 2", hint=hint)
    if not 0 < keep <= 1:
        raise not_in_range("keep", f"{keep:g}", "it must be above 0 and at most 1", hint="for example 0.9")
    counts = parse_counts(gpus) if isinstance(gpus, str) else checked_counts(gpus)
    check_batch(local_batch, global_batch, counts[-1])
    plan = checked_plan({name: value for name, value in plan.items() if value is not None})
    if not best and objective != OBJECTIVES[0]:
        text = f"{argument('objective')} is used only in a search for the best plan"
        raise InputError(text, hint=f"add {argument('best')}", code="contradiction", field="objective")
    if best and "recompute_frac" in plan:
        text = f"{argument('recompute_frac')} is not part of the search"
        hint = f"leave it out, or leave {argument('best')} out"
        raise InputError(text, hint=hint, code="contradiction", field="recompute_frac")
    asked = ScaleQuestion(
        counts=counts,
        best=best,
        objective=objective,
        plan=plan,
        sizes={"local_batch": local_batch, "global_batch": global_batch, "seq_len": seq_len},
        profile=profile,
        overrides=pairs_of(overrides),
        convention=flop_convention,
        progress=progress or silent,
    )
    require({"model": model or None}, ("model",), 'for example knee.scale("llama2-7b", ...)')
    # a job file names its own cluster
    places = _several(cluster) or [None]
    curves = [asked.curve(one, place) for one in _several(model) for place in places]
    wanted = count_of("tokens", tokens)
    site, site_pue, band = grid_of(grid), checked_pue(pue), doubling_band()
    done = []
    for one in curves:
        users = one.request.given if one.request else []
        trusts = {p.gpus: trust_of(p.job, users) for p in one.curve.points if p.job is not None}
        known = all(trust.low_frac is not None for trust in trusts.values())
        bills = {}
        for count, measured in one.curve.usable if wanted is not None else []:
            bills[count] = bill_of(measured, wanted or 0.0, grid=site, pue=site_pue, band=trusts[count].band)
        rule: dict[str, Any] = {"threshold": threshold, "keep_frac": keep, "band": band if known else None}
        found = with_failures(one.curve, bills, **rule) | {"knees": knees_of(one.curve, **rule), "band": rule["band"]}
        done.append(replace(one, trusts=trusts, bills=bills, **found))
    points = [point for one in done for point in one.curve.points]
    # the same mistake at every count is one of the question, not of a count
    if len(points) > 1 and all(point.job is None for point in points) and len({one.reason for one in points}) == 1:
        raise InputError(str(points[0].reason), hint=points[0].hint or shown(), code=points[0].code)
    return Scaling(
        curves=tuple(done),
        local_batch=local_batch,
        global_batch=global_batch,
        threshold=threshold,
        keep_frac=keep,
        objective=objective,
        tokens=wanted,
        grid=site,
        pue=site_pue,
        question=asked,
    )


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value]
    return list(dict.fromkeys(value))
