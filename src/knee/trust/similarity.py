"""Which published runs are of a job's kind, which are similar to it, and what the job has that none of them had."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from knee.base.arrays import Bools
from knee.base.units import list_words
from knee.specs.catalog import entry_names
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_profile
from knee.specs.notes import Note
from knee.specs.profile import MEGATRON_KERNELS, Kernels, Profile
from knee.trust.error_table import (
    GENERIC_PROFILES,
    Errors,
    layer_work,
    layer_work_of_runs,
    parallelism,
    parallelism_of_runs,
    tokens_per_gpu,
)

# What of a cluster or a profile is not the catalogue's: values are compared, not who wrote them.

NO_MATTER = (
    *("name", "max_gpus", "reliability", "usd_per_gpu_h", "checked_error_frac", "tdp_w", "idle_w", "comm_w"),
    *("cap_sharpness", "j_per_flop", "j_per_byte", "gemm_j_per_flop", "hbm_j_per_byte"),
)
"""Last words of paths that change neither time nor memory."""
Spec = TypeVar("Spec", Cluster, Profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[Spec]):
    """The catalogue's entry that a spec is, or is most like."""

    spec: Spec
    changed: tuple[str, ...]
    """Paths of values that are not the entry's, such as ``gpu.hbm_frac``; none: it is the entry, whatever its name."""


def entry_of(kind: Literal["cluster", "profile"], spec: Spec, given: Iterable[str]) -> Entry[Spec]:
    """The entry of its name, else the one with the fewest other values.

    ``given`` are paths such as ``cluster.gpu.hbm_frac`` of values that someone wrote: a spec with a name of the
    catalogue and none of them is the catalogue's.
    """
    names = entry_names(kind)
    if spec.name in names:
        if not any(path.startswith(f"{kind}.") for path in given):
            return Entry(spec=spec, changed=())
        names = [spec.name]
    load: Any = load_cluster if kind == "cluster" else load_profile
    found = (Entry(spec=entry, changed=tuple(_changed(spec, entry))) for entry in (load(name).spec for name in names))
    return min(found, key=lambda entry: len(entry.changed))


def _changed(mine: Any, entry: Any, path: str = "") -> Iterator[str]:
    if is_dataclass(mine) and type(mine) is type(entry):
        pairs = {field.name: (getattr(mine, field.name), getattr(entry, field.name)) for field in fields(mine)}
    elif isinstance(mine, dict) and isinstance(entry, dict):
        pairs = {key: (mine.get(key), entry.get(key)) for key in mine.keys() | entry.keys()}
    elif isinstance(mine, tuple) and isinstance(entry, tuple) and len(mine) == len(entry):
        pairs = {str(i): pair for i, pair in enumerate(zip(mine, entry, strict=True))}
    else:
        if not _same(mine, entry):
            yield path
        return
    for name, (a, b) in pairs.items():
        if name not in NO_MATTER:
            yield from _changed(a, b, f"{path}.{name}" if path else name)


def _same(a: Any, b: Any) -> bool:
    """Units are converted, so that equal rates may differ in the last digit."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


ENOUGH = 4
"""Runs that make a job validated."""
FAR = 4.0
"""Beyond so many times the range of the runs of its kind, all sizes together, a job is not near them."""
ALIKE_WORK = 16.0
"""Runs whose layers have up to so many times more or less work on a GPU are like it: small ones wait for the host, and
err by that."""
GATHERED_GPUS = 1024
"""The largest all-gather of ``catalog/validation/collectives.csv``."""
VENDOR = "NVIDIA"
"""Of the GPUs of nearly all published runs."""
RATINGS = ("arch", "sms", "fp16_flop_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "hbm_bytes_per_s")
"""What makes it another GPU where it is changed."""

OWN_GPU = "a GPU of your own"
"""Stands for the name of one that the catalogue has not: no run used it, whatever it is called."""


KERNEL_FAMILIES: tuple[tuple[Kernels, ...], ...] = (
    ("eager", "native", "fused_norm", "flash_attn"),
    ("compiled", "native_compiled"),
    MEGATRON_KERNELS,
)
"""Kernel sets whose runs tell of each other: eager PyTorch with some kernels of others is still that."""


def kernel_family(kernels: Kernels) -> tuple[Kernels, ...]:
    """The sets that a kernel set is one of, the plain one first."""
    return next(family for family in KERNEL_FAMILIES if kernels in family)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number in which runs can be like a job."""

    column: str
    words: str
    close: float
    """Runs with up to so many times more or less are like it."""
    of: Callable[[Job], float]
    shown: float = 1.0
    """On the screen it is this many times as large."""


SIZES = (
    Size(column="n_gpus", words="GPUs", close=4.0, of=lambda job: job.gpus),
    Size(column="layers", words="layers", close=4.0, of=lambda job: job.model.layers),
    Size(column="hidden", words="hidden size", close=2.0, of=lambda job: job.model.hidden),
    Size(column="seq_len", words="tokens per sequence", close=4.0, of=lambda job: job.seq_len),
    Size(column="tokens_per_gpu", words="tokens per GPU and step", close=8.0, of=tokens_per_gpu),
)
NETWORK = Size(
    column="nic_bytes_per_s",
    words="network Gbit/s per GPU",
    close=2.0,
    of=lambda job: job.cluster.fabric.nic_bytes_per_s,
    shown=8e-9,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """A job's place among the published runs."""

    gpu: str
    """Name of its GPU in the catalogue, or ``OWN_GPU``."""
    stack: str
    """Name of its profile, or of the catalogue's entry with the same values."""
    kind: Bools
    """Runs with its GPU, its stack or kernel set, and its kinds of parallelism."""
    kind_like: str
    """What these have in common."""
    like: Bools
    """Those of them that are close in every size, and alike in recomputation and in crossing nodes."""
    absent: tuple[str, ...]
    """What makes it extrapolated."""
    doubts: tuple[str, ...]
    """What else keeps it from being validated."""


def likeness_of(job: Job, given: Iterable[str], errors: Errors) -> Similarity:
    """Compare a job with every run; ``given`` are paths of values that someone wrote."""
    return _Comparison(job, list(given), errors).result()


class _Comparison:
    def __init__(self, job: Job, given: list[str], errors: Errors):
        self.job, self.errors = job, errors
        self.cluster: Entry[Cluster] = entry_of("cluster", job.cluster, given)
        self.profile: Entry[Profile] = entry_of("profile", job.profile, given)
        # a renamed entry is that entry
        self.gpu = job.cluster.gpu.name if self._other_gpu() else self.cluster.spec.gpu.name
        self.stack = job.profile.name if self.profile.changed else self.profile.spec.name
        kind = parallelism(job)
        self.of_plan = np.array([word == kind for word in parallelism_of_runs(errors)], dtype=np.bool_)
        of_gpu = self.of_plan & errors.is_("gpu", self.gpu)
        family = kernel_family(job.profile.kernels)
        own, others = of_gpu & errors.is_("profile", self.stack), of_gpu & errors.is_("kernels", *family)
        self.of_stack = self.stack not in GENERIC_PROFILES and bool(own.any())
        self.kind = own if self.of_stack else others
        self.like_words = f"{self.gpu}, {self.stack if self.of_stack else f'{family[0]} kernels'}, {kind}"
        # sizes that other stacks with its kernels had are known too; where none is of its kind, all of its parallelism
        self.of_kind = own | others
        self.around = self.of_kind if self.of_kind.any() else self.of_plan

    def result(self) -> Similarity:
        """Return the similar runs, and what the job has that they had not."""
        # runs whose layers are not far larger or smaller
        work, mine = layer_work_of_runs(self.errors), layer_work(self.job)
        like = self._like() & (work >= mine / ALIKE_WORK) & (work <= mine * ALIKE_WORK)
        absent = tuple(self._absent())
        return Similarity(
            gpu=OWN_GPU if self._other_gpu() else self.gpu,
            stack=self.stack,
            kind=self.kind,
            kind_like=self.like_words,
            like=like,
            absent=absent,
            doubts=(*self._given_values(), *self._other_stack(), *(() if absent else self._apart(like))),
        )

    def _sizes(self) -> tuple[Size, ...]:
        return (*SIZES, NETWORK) if _crosses(self.job) else SIZES

    def _close(self, size: Size) -> Bools:
        values, mine = self.errors.numbers[size.column], size.of(self.job)
        return np.isnan(values) | ((values >= mine / size.close) & (values <= mine * size.close))

    def _like(self) -> Bools:
        like = self.kind & self._recomputes() & self._crosses_too()
        for size in self._sizes():
            like &= self._close(size)
        return like

    def _recomputes(self) -> Bools:
        """Recomputing attention costs next to nothing: it goes with none, and all others with each other."""
        policies = ("ops", "blocks", "full")
        again = self.errors.is_("recompute", *policies)
        return again if self.job.plan.recompute in policies else ~again

    def _crosses_too(self) -> Bools:
        across: Bools = self.errors.numbers["nodes"] > 1
        return across if _crosses(self.job) else ~across

    def _absent(self) -> Iterator[str]:
        plan, errors = self.job.plan, self.errors
        if self.gpu not in errors.words["gpu"]:
            yield Note("no-run-of-gpu", f"no published run used the GPU {self.gpu}")
        elif self._other_gpu():
            yield Note("own-gpu", f"these values of the GPU are your own: {list_words(self._other_gpu(), most=3)}")
        if plan.precision not in errors.words["precision"]:
            yield Note("no-run-of-precision", f"no published run used precision {plan.precision}")
        if plan.pp > 1 and not (errors.is_("schedule", plan.schedule) & (errors.numbers["pp"] > 1)).any():
            yield Note("no-run-of-schedule", f"no published run used the {plan.schedule} schedule")
        if plan.sync_every > 1:
            text = f"no published run synchronized its replicas only every {plan.sync_every:,} steps"
            yield Note("no-run-of-sync-every", text)
        # of published mixtures of experts, GPT-OSS has a window
        slides = self.job.model.slides(self.job.seq_len) and self.job.model.experts is None
        if slides or self.job.model.attention_soft_cap:
            part = "a soft cap of its scores" if self.job.model.attention_soft_cap else "a sliding window"
            yield Note("no-run-of-attention", f"no published run had attention with {part}")
        if self.job.plan.dp_shard > GATHERED_GPUS:
            text = f"no all-gather over more than {GATHERED_GPUS:,} GPUs was ever measured"
            yield Note("large-gather", f"{text}, so its latency is extrapolated")
        if self.around.any():
            yield from self._too_far()
        else:
            yield Note("no-run-of-kind", f"no published run used this kind of parallelism: {parallelism(self.job)}")

    def _too_far(self) -> Iterator[str]:
        """Sizes outside of the range of the runs of its kind: how far in all, and in which."""
        far = 1.0
        for size in self._sizes():
            low, high = self._range(size)
            far *= max(size.of(self.job) / high, low / size.of(self.job), 1.0)
        if far > FAR:
            yield from self._outside_ranges()

    def _range(self, size: Size) -> tuple[float, float]:
        values = self.errors.numbers[size.column][self.around]
        known = values[np.isfinite(values)]
        return (float(known.min()), float(known.max())) if len(known) else (size.of(self.job), size.of(self.job))

    def _other_gpu(self) -> list[str]:
        return [path for path in self.cluster.changed if path.startswith("gpu.") and path.rpartition(".")[2] in RATINGS]

    def _given_values(self) -> Iterator[str]:
        """Clusters and profiles that have other values than the catalogue's."""
        other = self._other_gpu()
        cluster, profile = self.cluster, self.profile
        for kind, name, base, paths in (
            ("cluster", self.job.cluster.name, cluster.spec.name, cluster.changed),
            ("profile", self.job.profile.name, profile.spec.name, profile.changed),
        ):
            changed = [path for path in paths if path not in other]
            if changed:
                own = "" if name == base else f" in {kind} {name}"
                yield Note("own-values", f"these values{own} are your own: {list_words(changed, most=3)}")

    def _other_stack(self) -> Iterator[str]:
        """Runs of other stacks stand for one that no run used."""
        kernels = kernel_family(self.job.profile.kernels)[0]
        if self.of_stack or not self.of_kind.any():
            return
        others = f"published runs of {{}} with {kernels} kernels are used instead"
        if self.stack in GENERIC_PROFILES:
            text = f"profile {self.stack} does not describe a single software stack; {others.format('several stacks')}"
            yield Note("no-one-stack", text)
        elif self.stack in entry_names("profile"):
            text = f"no similar published run used the stack of profile {self.stack}; {others.format('other stacks')}"
            yield Note("other-stack", text)

    def _apart(self, like: Bools) -> Iterator[str]:
        """Why too few runs are like it."""
        if not self.of_kind.any():
            yield Note("none-of-kind", f"no published run is similar ({self.like_words})")
            return
        yield from self._other_words()
        runs = int(np.count_nonzero(like))
        if runs >= ENOUGH:
            return
        outside = list(self._outside_ranges())
        yield from outside
        of_kind = int(np.count_nonzero(self.kind))
        if of_kind < ENOUGH:
            few = "only one published run is" if of_kind == 1 else f"only {of_kind} published runs are"
            yield Note("few-of-kind", f"{few} similar ({self.like_words})")
        elif not outside:
            text = f"{'only ' if runs else ''}{runs or 'none'} of {of_kind} similar published runs "
            yield Note("few-like-it", text + f"{'are' if runs > 1 else 'is'} close to this job{self._in_what()}")

    def _outside_ranges(self) -> Iterator[str]:
        for size in self._sizes():
            mine, (low, high) = size.of(self.job), self._range(size)
            if mine > high or mine < low:
                mine, low, high = (size.shown * value for value in (mine, low, high))
                had = f"{low:,.6g}" if low == high else f"{low:,.6g} to {high:,.6g}"
                yield Note("outside-range", f"{size.words}: {mine:,.6g} here, {had} in similar published runs")

    def _in_what(self) -> str:
        """The sizes in which few are close, each by itself."""
        checks: list[tuple[str, Bools]] = [(size.words, self._close(size)) for size in self._sizes()]
        checks += [("recomputation", self._recomputes()), ("number of nodes", self._crosses_too())]
        few = [words for words, close in checks if np.count_nonzero(close & self.kind) < ENOUGH]
        return f" in {' and in '.join(few)}" if few else " in every size at once"

    def _other_words(self) -> Iterator[str]:
        """What other published runs had, and none of its kind."""
        job, errors = self.job, self.errors
        asked: list[tuple[str, str, str]] = [("precision", job.plan.precision, f"used precision {job.plan.precision}")]
        if job.plan.pp > 1:
            asked.append(("schedule", job.plan.schedule, f"used the {job.plan.schedule} schedule"))
        if _crosses(job):
            asked.append(("fabric", job.cluster.fabric.kind, f"used {job.cluster.fabric.kind}"))
        for column, word, words in asked:
            if not (errors.is_(column, word) & self.around).any():
                yield Note("none-of-kind", f"no similar published run {words}")


def _crosses(job: Job) -> bool:
    return job.gpus > job.cluster.node.gpus
