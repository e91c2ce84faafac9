"""From what stands on the command line to a job: names, or a job file with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.errors import InputError
from knee.specs import Job
from knee.specs.catalog import read_toml
from knee.specs.load import (
    DEFAULT_PROFILE,
    Loaded,
    Source,
    catalog_entries,
    load_cluster,
    load_job,
    load_model,
    load_profile,
    make_job,
    split_overrides,
)

SIZES = ("gpus", "global_batch", "local_batch", "seq_len")
_JOB_KEYS = ("model", "cluster", "profile", "plan", *SIZES)
_EXAMPLE = "knee simulate llama2-7b --cluster dgx-h100 --gpus 8 --local-batch 2"

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job, and what it was made from."""

    job: Job
    sources: dict[str, Source]
    """Dotted field path, such as ``cluster.gpu.hbm_bytes``, to where its value comes from."""
    assumptions: tuple[str, ...]
    plan_options: dict[str, Any]
    """Options of the plan that were given; the rest of the plan is filled in."""

    @property
    def given(self) -> list[str]:
        """Paths of what is not the catalogue's: set on the command line, or in a file without another source."""
        return [path for path, source in self.sources.items() if source.kind == "user"]

    def with_options(self, **changes: Any) -> Job:
        """The job as if these options of the plan had been given as well."""
        job = self.job
        changed, _ = make_job(
            job.model,
            job.cluster,
            job.profile,
            gpus=job.gpus,
            global_batch=job.global_batch,
            seq_len=job.seq_len,
            plan_options=self.plan_options | changes,
        )
        return changed


def ask(
    model: str,
    *,
    cluster: str | None,
    profile: str | None,
    sizes: Mapping[str, Any],
    plan: Mapping[str, Any],
    sets: Pairs,
) -> Asked:
    """The job that the command line describes. A size or plan option of None was not given."""
    _refuse_sizes_in_sets(sets)
    sizes = {name: value for name, value in sizes.items() if value is not None}
    plan = {name: value for name, value in plan.items() if value is not None}
    if is_job_file(model):
        return _from_file(Path(model), cluster, profile, sizes, plan, sets)
    return _from_names(model, cluster, profile, sizes, plan, sets)


def parse_sets(texts: Sequence[str]) -> list[tuple[str, str]]:
    """``key=value`` texts as pairs."""
    pairs = []
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise InputError(
                f"--set {text!r} is not key=value", hint="for example --set fabric.nic_bytes_per_s=200Gbit/s"
            )
        pairs.append((key, value))
    twice = {key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1}
    if twice:
        raise InputError(f"--set {min(twice)} is given twice", hint="give it once")
    return pairs


def _refuse_sizes_in_sets(sets: Pairs) -> None:
    """Sizes and names have options of their own; --set changes a value inside the specs they stand for."""
    for key, _ in sets:
        if key in SIZES or key in ("cluster", "profile"):
            other = "; the size of a node is --set node.gpus=..." if key == "gpus" else ""
            raise InputError(
                f"--set {key}: the job's {key} is an option of its own", hint=f"use --{key.replace('_', '-')}{other}"
            )
        if key == "model":
            raise InputError("--set model: the model is the command's argument", hint=f"for example {_EXAMPLE}")


def is_job_file(ref: str) -> bool:
    """Whether this is a whole job as a TOML file, and not a model's."""
    if not ref.endswith(".toml"):
        return False
    return any(key in read_toml(Path(ref)) for key in _JOB_KEYS)


def _from_names(
    model: str, cluster: str | None, profile: str | None, sizes: dict[str, Any], plan: dict[str, Any], sets: Pairs
) -> Asked:
    if cluster is None or "gpus" not in sizes or not {"global_batch", "local_batch"} & sizes.keys():
        raise _missing(cluster, sizes)
    _refuse_both_batches(sizes)
    for_model, for_cluster, for_profile, for_plan = split_overrides(sets)
    parts: dict[str, Loaded[Any]] = {
        "model": load_model(model_ref(model), for_model),
        "cluster": load_cluster(cluster, for_cluster),
        "profile": load_profile(DEFAULT_PROFILE if profile is None else profile, for_profile),
    }
    options = _join(plan, for_plan)
    job, notes = make_job(**{kind: part.spec for kind, part in parts.items()}, **sizes, plan_options=options)
    sources = {f"{kind}.{path}": source for kind, part in parts.items() for path, source in part.sources.items()}
    unsaid = [f"profile {DEFAULT_PROFILE} was not given"] if profile is None else []
    return Asked(
        job=job, sources=sources | _said(sizes, plan, for_plan), assumptions=(*unsaid, *notes), plan_options=options
    )


def _from_file(
    path: Path, cluster: str | None, profile: str | None, sizes: dict[str, Any], plan: dict[str, Any], sets: Pairs
) -> Asked:
    """What the command line says replaces or completes what the file says; the whole is checked once."""
    _refuse_both_batches(sizes)
    for_plan = split_overrides(sets)[3]
    changes = _join(plan, for_plan)
    names = {"cluster": cluster, "profile": profile, "plan": plan or None}
    loaded = load_job(path, sets, given=sizes | {key: value for key, value in names.items() if value is not None})
    return Asked(
        job=loaded.spec,
        sources=loaded.sources | _said(sizes, plan, for_plan),
        assumptions=loaded.assumptions,
        plan_options={**read_toml(path).get("plan", {}), **changes},
    )


def _missing(cluster: str | None, sizes: Mapping[str, Any]) -> InputError:
    missing = [] if cluster else ["--cluster"]
    missing += [] if "gpus" in sizes else ["--gpus"]
    if not {"global_batch", "local_batch"} & sizes.keys():
        missing.append("--local-batch (or --global-batch)")
    return InputError(f"missing: {', '.join(missing)}", hint=f"for example {_EXAMPLE}")


def _refuse_both_batches(sizes: Mapping[str, Any]) -> None:
    if {"global_batch", "local_batch"} <= sizes.keys():
        raise InputError(
            f"--local-batch {sizes['local_batch']:g} and --global-batch {sizes['global_batch']} are both given",
            hint="give one of them: the global batch is the local batch times the number of GPUs",
        )


def model_ref(ref: str) -> str:
    """A folder with a config.json needs no slash, unless the catalogue has that name."""
    if not ref.strip():
        raise InputError("no model was named", hint=f"for example {_EXAMPLE}")
    if ref and "/" not in ref and ref not in catalog_entries("model") and Path(ref).is_dir():
        return f"./{ref}"
    return ref


def _join(plan: dict[str, Any], changes: Pairs) -> dict[str, Any]:
    for key, value in changes:
        if key in plan:
            raise InputError(
                f"{key} is given twice: {flag(key)} {plan[key]} and --set {key}={value}", hint="give it once"
            )
    return {**plan, **dict(changes)}


def flag(name: str) -> str:
    """The option that sets a field of the plan."""
    return "--" + name.removesuffix("_frac").replace("_", "-")


def _said(sizes: Mapping[str, Any], plan: Mapping[str, Any], sets: Pairs) -> dict[str, Source]:
    """Sources of what stands on the command line itself."""
    said = {name: Source(value=value, kind="user", text=flag(name)) for name, value in sizes.items()}
    said |= {f"plan.{name}": Source(value=value, kind="user", text=flag(name)) for name, value in plan.items()}
    return said | {f"plan.{name}": Source(value=value, kind="user", text="--set") for name, value in sets}
