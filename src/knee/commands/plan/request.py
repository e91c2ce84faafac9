"""What ``plan`` searches for: the model, the cluster, the stack and the sizes, with the data types of a job file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, get_args

from knee.base.errors import InputError, argument, example
from knee.commands.job_request import (
    ClusterLike,
    ModelLike,
    ProfileLike,
    is_job_file,
    named_cluster,
    named_model,
    named_profile,
    request,
)
from knee.search.space import Space
from knee.specs import Cluster, Model, Plan, Profile
from knee.specs.argument_types import require
from knee.specs.defaults import DEFAULT_SEQ_LEN
from knee.specs.fields import split_overrides
from knee.specs.load import global_batch_of
from knee.specs.plan import GIVEN, KNOBS, Knob, names_of

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedParts:
    """What is searched for, with every size known."""

    model: Model
    cluster: Cluster
    profile: Profile
    gpus: int
    global_batch: int
    seq_len: int
    types: dict[str, Any]
    """Fields that all plans have, as the job file says."""
    sync_every: int = 1

    def space(self, given: Mapping[str, Any], **more: Any) -> Space:
        """The plans that are searched.

        ``given`` has arguments of ``takes_search_arguments``. For what is None or missing, the job file's value or the
        default is taken.
        """
        degrees: dict[str, Any] = {f"max_{name}": given.get(f"max_{name}") for name in names_of(KNOBS, "limited")}
        types = {name: given[name] for name in GIVEN if given.get(name) is not None}
        return Space(
            model=self.model,
            gpus=self.gpus,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            fixed=Plan(**self.types | types),
            shardings=tuple(given.get("sharding", ())),
            schedules=tuple(given.get("schedule", ())),
            recomputes=tuple(given.get("recompute", ())),
            micro_batches=tuple(given.get("micro_batch", ())),
            modules=tuple(given.get("recompute_modules") or ()),
            attention_again=self.profile.attention == "unfused" or "attention" in given.get("recompute", ()),
            **degrees,
            **more,
        )


def takes_search_arguments(*kept: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Give the ``**searched`` of a function the names, types and defaults of what a search takes: fields of all plans
    (``kept``), the largest degrees, and lists of values to consider. Calls, ``help`` and the server's schema see them
    as if they stood in its signature."""
    found: dict[str, tuple[Any, Any]] = {name: (_given_type(KNOBS[name]) | None, None) for name in kept}
    found |= {f"max_{name}": (int | None, None) for name in names_of(KNOBS, "limited")}
    found |= {name: (Sequence[KNOBS[name].hint], ()) for name in names_of(KNOBS, "listed")}  # type: ignore[misc]

    def name_them(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for name, (hint, default) in found.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        function.__annotations__ |= {name: hint for name, (hint, _) in found.items()}
        return function

    return name_them


def _given_type(knob: Knob) -> Any:
    return Sequence[get_args(knob.hint)[0]] if knob.many else knob.hint  # type: ignore[misc]


def searched_parts(
    model: ModelLike,
    cluster: ClusterLike | None,
    profile: ProfileLike | None,
    sizes: dict[str, Any],
    overrides: Sequence[tuple[str, str]],
) -> SearchedParts:
    for_model, for_cluster, for_profile, for_plan = split_overrides(overrides)
    if for_plan:
        text = f"{argument('overrides')} {for_plan[0][0]}: the search chooses the plan itself"
        hint = f"limit the search with {argument('only')}"
        raise InputError(text, hint=hint, code="not-an-override", field=for_plan[0][0])
    if is_job_file(model):
        job = request(model, cluster=cluster, profile=profile, sizes=sizes, plan={}, overrides=overrides).job
        types = {name: getattr(job.plan, name) for name in GIVEN}
        return SearchedParts(
            model=job.model,
            cluster=job.cluster,
            profile=job.profile,
            gpus=job.gpus,
            global_batch=job.global_batch,
            seq_len=job.seq_len,
            types=types,
            sync_every=job.plan.sync_every,
        )
    require({"cluster": cluster, **sizes}, ("cluster", "gpus", "local_batch"), _example())
    assert cluster is not None
    shape = named_model(model, for_model).spec
    seq_len = sizes["seq_len"]
    return SearchedParts(
        model=shape,
        cluster=named_cluster(cluster, for_cluster).spec,
        profile=named_profile(profile, for_profile).spec,
        gpus=sizes["gpus"],
        global_batch=global_batch_of(
            sizes["gpus"], global_batch=sizes["global_batch"], local_batch=sizes["local_batch"]
        ),
        seq_len=min(DEFAULT_SEQ_LEN, shape.max_seq_len) if seq_len is None else seq_len,
        types={},
    )


def _example() -> str:
    return example(
        'knee.plan("llama2-7b", cluster="dgx-h100", gpus=256, global_batch=512)',
        "knee plan llama2-7b --cluster dgx-h100 --gpus 256 --global-batch 512",
    )
