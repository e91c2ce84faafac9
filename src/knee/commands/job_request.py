"""From names, amounts and keyword arguments, or a job file with changes, to a job: the same for every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from knee.base.errors import InputError, argument, example
from knee.engine.energy import grid as grid_of
from knee.engine.training_cost import TrainingQuestion, checked_pue, parse_tokens
from knee.specs import Cluster, Job, Model, Profile
from knee.specs.argument_types import SIZES, checked_plan, require
from knee.specs.catalog import Source, entry_names, read_layers, read_toml
from knee.specs.defaults import DEFAULT_PROFILE
from knee.specs.fields import split_overrides
from knee.specs.load import Loaded, default_profile_note, load_cluster, load_job, load_model, load_profile
from knee.specs.load import make_job as _make_job

_JOB_KEYS = ("model", "cluster", "profile", "plan", *SIZES)

Overrides = Mapping[str, object] | Sequence[tuple[str, str]]
"""Changed values by their key: ``{"fabric.nic_bytes_per_s": "200Gbit/s"}``, or the pairs of ``--set``."""
Pairs = Sequence[tuple[str, str]]
ModelLike = str | Path | Model
ClusterLike = str | Path | Cluster
ProfileLike = str | Path | Profile
Spec = TypeVar("Spec", Model, Cluster, Profile)
Amount = str | float
"""An amount as people write it: ``15T`` tokens, ``8B`` parameters, ``2M`` dollars, or a plain number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job, and what it was made from."""

    job: Job
    sources: dict[str, Source]
    """Dotted field path, such as ``cluster.gpu.hbm_bytes``, to where its value comes from."""
    assumptions: tuple[str, ...]
    plan_options: dict[str, Any]
    """Options of the plan that were given; the rest of the plan is filled in."""

    @property
    def given(self) -> list[str]:
        """Paths of what is not the catalogue's: given with the request, or in a file without another source."""
        return [path for path, source in self.sources.items() if source.kind == "user"]

    def with_options(self, **changes: Any) -> Job:
        """The job as if these options of the plan had been given as well."""
        job, options = self.job, self.plan_options | changes
        sizes = {"gpus": job.gpus, "global_batch": job.global_batch, "seq_len": job.seq_len}
        return _make_job(job.model, job.cluster, job.profile, **sizes, plan_options=options)[0]


def request(
    model: ModelLike | Job,
    *,
    cluster: ClusterLike | None = None,
    profile: ProfileLike | None = None,
    sizes: Mapping[str, Any],
    plan: Mapping[str, Any],
    overrides: Overrides = (),
) -> Request:
    """The job that the arguments describe. A size or plan option of None was not given."""
    pairs = pairs_of(overrides)
    _refuse_sizes_in_overrides(pairs)
    sizes = {name: value for name, value in sizes.items() if value is not None}
    plan = {name: value for name, value in plan.items() if value is not None}
    if isinstance(model, Job):
        if any(other is not None for other in (cluster, profile, *sizes, *plan, *pairs)):
            text = "a Job is complete, so it cannot be combined with other arguments"
            hint = "change the Job with dataclasses.replace, or give names instead of a Job"
            raise InputError(text, hint=hint, code="contradiction", field="model")
        return Request(job=model, sources={}, assumptions=(), plan_options=asdict(model.plan))
    in_file, names = is_job_file(model), {"cluster": cluster, "profile": profile}
    needed = () if in_file else ("cluster", "gpus", "local_batch")
    require(sizes if in_file else {"cluster": cluster, **sizes}, needed, _example())
    for_model, for_cluster, for_profile, for_plan = split_overrides(pairs)
    for key, value in for_plan:
        if key in plan:
            text = f"{key} is given twice: {argument(key)} {plan[key]} and {argument('overrides')} {key}={value}"
            raise InputError(text, hint="give it once", code="contradiction", field=key)
    own, options = _given_sources(sizes, plan, for_plan), {**plan, **dict(for_plan)}
    if in_file:
        # what is given besides replaces or completes what the file says; the whole is checked once
        path = Path(cast("str | Path", model))
        for name, spec in names.items():
            if isinstance(spec, (Cluster, Profile)):
                text = f"{path} is a job file, so its {name} can be replaced only by a name or a file, not by an object"
                hint = "give the model's name instead of the job file"
                raise InputError(text, hint=hint, code="contradiction", field=name)
        given = {name: str(spec) for name, spec in names.items() if spec is not None}
        loaded = load_job(path, pairs, given=sizes | given | ({"plan": plan} if plan else {}))
        return Request(
            job=loaded.spec,
            sources=loaded.sources | own,
            assumptions=loaded.assumptions,
            plan_options={**read_layers(path, anchored=lambda raw, _: raw).get("plan", {}), **options},
        )
    assert cluster is not None
    parts: dict[str, Loaded[Any]] = {
        "model": named_model(model, for_model),
        "cluster": named_cluster(cluster, for_cluster),
        "profile": named_profile(profile, for_profile),
    }
    job, notes = _make_job(**{kind: part.spec for kind, part in parts.items()}, **sizes, plan_options=options)
    sources = {f"{kind}.{path}": source for kind, part in parts.items() for path, source in part.sources.items()}
    defaulted = [default_profile_note()] if profile is None else []
    return Request(
        job=job,
        sources=sources | own,
        assumptions=(*defaulted, *(note for part in parts.values() for note in part.assumptions), *notes),
        plan_options=options,
    )


def make_job(
    model: ModelLike,
    cluster: ClusterLike,
    profile: ProfileLike | None = None,
    *,
    gpus: int,
    global_batch: int | None = None,
    local_batch: float | None = None,
    seq_len: int | None = None,
    plan_options: Mapping[str, Any] | None = None,
    **plan: Any,
) -> tuple[Job, tuple[str, ...]]:
    """A job from names, files or specs, and sentences about the defaults that completed it.

    >>> import knee
    >>> job, notes = knee.make_job("llama2-7b", "dgx-h100", gpus=16, local_batch=1, tp=2)
    >>> job.plan.dp_shard
    8
    """
    return _make_job(
        named_model(model).spec,
        named_cluster(cluster).spec,
        named_profile(profile).spec,
        gpus=gpus,
        global_batch=global_batch,
        local_batch=local_batch,
        seq_len=seq_len,
        plan_options={**(plan_options or {}), **checked_plan(plan)},
    )


def pairs_of(overrides: Overrides) -> list[tuple[str, str]]:
    """Values as text, as they stand in a file or behind ``--set``."""
    items = overrides.items() if isinstance(overrides, Mapping) else overrides
    return [(key, str(value)) for key, value in items]


def _refuse_sizes_in_overrides(overrides: Pairs) -> None:
    """Sizes and names have arguments of their own; overrides change a value inside the specs they stand for."""
    for key, _ in overrides:
        what = f"{argument('overrides')} {key}"
        if key in SIZES or key in ("cluster", "profile"):
            other = f"; the number of GPUs per node is {argument('overrides')} node.gpus=..." if key == "gpus" else ""
            text = f"{what}: {key} has its own option"
            raise InputError(text, hint=f"use {argument(key)}{other}", code="not-an-override", field=key)
        if key == "model":
            text = f"{what}: give the model as the first argument instead"
            raise InputError(text, hint=_example(), code="not-an-override", field=key)


def is_job_file(ref: object) -> bool:
    """Whether this is a whole job as a TOML file, and not a model's."""
    if not isinstance(ref, (str, Path)) or not str(ref).endswith(".toml"):
        return False
    raw = read_toml(Path(ref))
    base = raw.get("base")
    if isinstance(base, str) and base.endswith(".toml") and is_job_file(Path(ref).parent / base):
        return True
    return any(key in raw for key in _JOB_KEYS)


def named_model(model: ModelLike, overrides: Pairs = ()) -> Loaded[Model]:
    """A model by name, file or folder, or as it is."""
    if isinstance(model, Model):
        return _as_is("model", model, overrides)
    return load_model(_model_name(str(model)), overrides)


def named_cluster(cluster: ClusterLike, overrides: Pairs = ()) -> Loaded[Cluster]:
    """A cluster by name or file, or as it is."""
    if isinstance(cluster, Cluster):
        return _as_is("cluster", cluster, overrides)
    return load_cluster(str(cluster), overrides)


def named_profile(profile: ProfileLike | None, overrides: Pairs = ()) -> Loaded[Profile]:
    """A profile by name or file, or as it is; the default one where none is named."""
    if isinstance(profile, Profile):
        return _as_is("profile", profile, overrides)
    return load_profile(DEFAULT_PROFILE if profile is None else str(profile), overrides)


def _as_is(kind: str, spec: Spec, overrides: Pairs) -> Loaded[Spec]:
    if overrides:
        text = f"{argument('overrides')} {overrides[0][0]} changes a {kind} that was given as an object"
        hint = "change it with dataclasses.replace, or give its name"
        raise InputError(text, hint=hint, code="contradiction", field=overrides[0][0])
    return Loaded(spec=spec, sources={})


def _model_name(ref: str) -> str:
    """A folder with a config.json needs no slash, unless the catalogue has that name."""
    if not ref.strip():
        raise InputError("no model is given", hint=_example(), code="missing-argument", field="model")
    if "/" not in ref and ref not in entry_names("model") and Path(ref).is_dir():
        return f"./{ref}"
    return ref


def _given_sources(sizes: Mapping[str, Any], plan: Mapping[str, Any], overrides: Pairs) -> dict[str, Source]:
    given = {name: Source(value=value, kind="user", text=argument(name)) for name, value in sizes.items()}
    given |= {f"plan.{name}": Source(value=value, kind="user", text=argument(name)) for name, value in plan.items()}
    changed = argument("overrides")
    return given | {f"plan.{name}": Source(value=value, kind="user", text=changed) for name, value in overrides}


def _example() -> str:
    return example(
        'knee.simulate("llama2-7b", cluster="dgx-h100", gpus=8, local_batch=2)',
        "knee simulate llama2-7b --cluster dgx-h100 --gpus 8 --local-batch 2",
    )


def count_of(name: str, given: Amount | None) -> float | None:
    """Tokens or parameters: ``15T``, ``300B``, ``1.4e12``."""
    if given is None:
        return None
    try:
        return parse_tokens(str(given))
    except InputError:
        text = f"{argument(name)} {given!r} is not a number from 1 to 1e18"
        raise InputError(text, hint="for example 8B, 350M, 1.5T or 1.4e12", code="not-an-amount", field=name) from None


def training_of(tokens: Amount | None, grid: str, pue: float | None) -> TrainingQuestion | None:
    """What is asked of a whole run; None where no tokens are given."""
    wanted, site, factor = count_of("tokens", tokens), grid_of(grid), checked_pue(pue)
    return None if wanted is None else TrainingQuestion(tokens=wanted, grid=site, pue=factor)


def amount_of(name: str, given: Amount | None) -> float | None:
    """Dollars or MWh: a number, or one with k, M, B or T behind it; whether it can be a limit is asked later."""
    if given is None:
        return None
    with suppress(ValueError):
        return float(given)
    try:
        return parse_tokens(str(given))
    except InputError:
        text = f"{argument(name)} {given!r} is not a number"
        hint = "for example 500k, 2M, 2e6 or 1,000,000; k, M, B and T stand for 1e3, 1e6, 1e9 and 1e12"
        raise InputError(text, hint=hint, code="not-an-amount", field=name) from None
