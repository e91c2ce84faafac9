"""Which published runs are of a job's kind, which are like it, and what of the job they had not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from knee.arrays import Bools, Floats
from knee.specs.catalog import entry_names
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.notes import Note
from knee.specs.plan import SHARDING_FAMILIES
from knee.specs.profile import Profile
from knee.trust.catalog_differences import Entry, entry_of
from knee.trust.error_table import Errors, micro_tokens, tokens_per_gpu

ENOUGH = 8
"""Runs that make a job validated, and that a band is taken from."""
FAR = 4.0
"""Beyond so many times the range of the runs of its kind, all sizes together, a job is not near them."""
ALIKE_WORK = 16.0
"""Runs whose layers have up to so many times more or less work on a GPU say something about it: small ones wait for
the host, and err by that."""
GATHERED_GPUS = 1024
"""The largest all-gather of ``catalog/validation/collectives.csv``."""
VENDOR = "NVIDIA"
"""Of the GPUs of all published runs."""
RATINGS = ("arch", "sms", "fp16_flop_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "hbm_bytes_per_s")
"""What makes it another GPU where it is changed."""


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
    Size(column="seq_len", words="tokens a sequence", close=4.0, of=lambda job: job.seq_len),
    Size(column="tokens_per_gpu", words="tokens a GPU and step", close=8.0, of=tokens_per_gpu),
)
NETWORK = Size(
    column="nic_bytes_per_s",
    words="Gbit/s of network a GPU",
    close=2.0,
    of=lambda job: job.cluster.fabric.nic_bytes_per_s,
    shown=8e-9,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityLevel:
    """Runs that have some things in common with a job."""

    like: str
    chosen: Bools
    of_stack: bool
    """They are of the job's own stack, and its profile was fitted on others of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """A job's place among the published runs."""

    stack: str
    """Name of its profile, or of the catalogue's entry with the same values."""
    kind: SimilarityLevel
    """Runs with its GPU, its stack or kernel set, and its kinds of parallelism."""
    like: Bools
    """Those of them that are close in every size, and alike in recomputation and in crossing nodes."""
    levels: tuple[SimilarityLevel, ...]
    """Sets to take a band from: those of its kind first, all runs last."""
    memory_levels: tuple[SimilarityLevel, ...]
    """The same for memory, of which the stack says more than the GPU."""
    absent: tuple[str, ...]
    """What makes it extrapolated."""
    doubts: tuple[str, ...]
    """What else keeps it from being validated."""


def likeness_of(job: Job, given: Iterable[str], errors: Errors) -> Similarity:
    """Compare a job with every run; ``given`` are paths of values that someone wrote."""
    return _Comparison(job, list(given), errors).result()


def kind_words(job: Job) -> str:
    """The parallelism that is at work: ``FSDP + TP``."""
    plan = job.plan
    words = [SHARDING_FAMILIES[plan.sharding]] if plan.dp > 1 else []
    words += [axis.upper() for axis in ("tp", "pp", "cp") if getattr(plan, axis) > 1]
    return " + ".join(words) or "one GPU alone"


class _Comparison:
    """One job beside all runs."""

    def __init__(self, job: Job, given: list[str], errors: Errors):
        self.job, self.errors = job, errors
        self.cluster: Entry[Cluster] = entry_of("cluster", job.cluster, given)
        self.profile: Entry[Profile] = entry_of("profile", job.profile, given)
        # a renamed entry is that entry
        self.gpu = job.cluster.gpu.name if self._other_gpu() else self.cluster.spec.gpu.name
        self.stack = job.profile.name if self.profile.changed else self.profile.spec.name
        self.on_gpu, self.of_plan = errors.is_("gpu", self.gpu), _of_plan(job, errors)
        self.own, self.kernels = errors.is_("profile", self.stack), errors.is_("kernels", job.profile.kernels)
        mine, self.others = self._level(True, self.own, gpu=True), self._level(False, self.kernels, gpu=True)
        self.kind = mine if mine.chosen.any() else self.others
        # sizes that other stacks with its kernels had are known too
        self.around = mine.chosen | self.others.chosen

    def result(self) -> Similarity:
        """All of it."""
        alike = self._alike_in_work()
        like = self._like() & alike
        absent = tuple(self._absent())
        every = SimilarityLevel(like="", chosen=np.ones(len(self.errors), dtype=np.bool_), of_stack=False)
        kind = [self.kind, self.others] if self.kind.of_stack else [self.kind]
        same = self._level(False, self.kernels)
        mixed = (self._level(False, self.on_gpu), self._level(False, every.chosen))
        stacked = (self._level(True, self.own), self._level(True, self.own, plan=False))
        # what no run had is judged by all of them; other kernels with its parallelism say no more than those
        wider = [same] if absent else [same, *mixed]
        return Similarity(
            stack=self.stack,
            kind=self.kind,
            like=like,
            levels=tuple(_narrowed(level, alike) for level in (*kind, *wider, every)),
            memory_levels=(self.kind, *stacked, self.others, same, *mixed, every),
            absent=absent,
            doubts=(*self._given_values(), *self._other_stack(), *(() if absent else self._apart(like))),
        )

    def _level(self, of_stack: bool, chosen: Bools, *, gpu: bool = False, plan: bool = True) -> SimilarityLevel:
        """Some runs, on this GPU only, with this parallelism only."""
        words = [self.gpu] if gpu or chosen is self.on_gpu else []
        if chosen is self.own:
            words.append(self.stack)
        if chosen is self.kernels:
            words.append(f"{self.job.profile.kernels} kernels")
        if plan:
            words.append(kind_words(self.job))
            chosen = chosen & self.of_plan
        return SimilarityLevel(like=", ".join(words), chosen=chosen & self.on_gpu if gpu else chosen, of_stack=of_stack)

    def _alike_in_work(self) -> Bools:
        """Runs whose layers are not far larger or smaller."""
        work, mine = _work_of_runs(self.errors), _work(self.job)
        return (work >= mine / ALIKE_WORK) & (work <= mine * ALIKE_WORK)

    def _sizes(self) -> tuple[Size, ...]:
        return (*SIZES, NETWORK) if _crosses(self.job) else SIZES

    def _close(self, size: Size) -> Bools:
        values, mine = self.errors.numbers[size.column], size.of(self.job)
        return np.isnan(values) | ((values >= mine / size.close) & (values <= mine * size.close))

    def _like(self) -> Bools:
        like = self.kind.chosen & self._recomputes() & self._crosses_too()
        for size in self._sizes():
            like &= self._close(size)
        return like

    def _recomputes(self) -> Bools:
        """Selective recomputation costs next to nothing: it goes with none."""
        full = self.errors.is_("recompute", "full")
        return full if self.job.plan.recompute == "full" else ~full

    def _crosses_too(self) -> Bools:
        across: Bools = self.errors.numbers["nodes"] > 1
        return across if _crosses(self.job) else ~across

    def _absent(self) -> Iterator[str]:
        plan, errors = self.job.plan, self.errors
        if self.gpu not in errors.words["gpu"]:
            yield Note("no-run-of-gpu", f"no published run used {self.gpu}")
        elif self._other_gpu():
            yield Note("own-gpu", f"a GPU of your own: {_listed(self._other_gpu())}")
        if plan.precision not in errors.words["precision"]:
            yield Note("no-run-of-precision", f"no published run computed in {plan.precision}")
        if plan.pp > 1 and not (errors.is_("schedule", plan.schedule) & (errors.numbers["pp"] > 1)).any():
            yield Note("no-run-of-schedule", f"no published run had the {plan.schedule} schedule")
        if plan.sync_every > 1:
            yield Note(
                "no-run-of-sync-every", f"no published run had replicas that exchange every {plan.sync_every:,} steps"
            )
        if self.job.plan.dp_shard > GATHERED_GPUS:
            text = f"no all-gather over more than {GATHERED_GPUS:,} GPUs was measured: its latency is extrapolated"
            yield Note("large-gather", text)
        if self.around.any():
            yield from self._too_far()
        elif self.gpu in errors.words["gpu"]:
            yield Note("no-run-of-kind", f"no published run is of its kind: {self.kind.like}")

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

    def _outside(self, size: Size, low: float, high: float) -> str:
        mine, low, high = (size.shown * value for value in (size.of(self.job), low, high))
        had = f"{low:,.6g}" if low == high else f"{low:,.6g} to {high:,.6g}"
        return Note("outside-range", f"{mine:,.6g} {size.words}: published runs of its kind had {had}")

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
                yield Note("own-values", f"values of your own{own}: {_listed(changed)}")

    def _other_stack(self) -> Iterator[str]:
        """Runs of other stacks stand for one that no run used."""
        kernels = self.job.profile.kernels
        if self.stack == kernels or self.stack not in entry_names("profile") or not self.around.any():
            return
        if not self.kind.of_stack:
            text = f"no published run of the stack of {self.stack} is of its kind: runs of others with {kernels} "
            yield Note("other-stack", text + "kernels stand for it")

    def _apart(self, like: Bools) -> Iterator[str]:
        """Why too few runs are like it."""
        errors, runs = self.errors, int(np.count_nonzero(like))
        stacks = set(errors.of("profile", self.around))
        if not self.kind.of_stack and len(stacks) == 1:
            yield Note("one-stack", f"all runs of its kind are of one stack, {stacks.pop()}")
        yield from self._other_words()
        if runs >= ENOUGH:
            return
        outside = list(self._outside_ranges())
        yield from outside
        of_kind = int(np.count_nonzero(self.kind.chosen))
        if of_kind < ENOUGH:
            few = "one published run is" if of_kind == 1 else f"only {of_kind} published runs are"
            yield Note("few-of-kind", f"{few} of its kind: {self.kind.like}")
        elif not outside:
            text = f"{'only ' if runs else ''}{runs or 'none'} of {of_kind} published runs of its kind "
            yield Note("few-like-it", text + f"{'is' if runs == 1 else 'are'} like it{self._in_what()}")

    def _outside_ranges(self) -> Iterator[str]:
        for size in self._sizes():
            low, high = self._range(size)
            if size.of(self.job) > high or size.of(self.job) < low:
                yield self._outside(size, low, high)

    def _in_what(self) -> str:
        """The sizes in which few are close, each by itself."""
        checks: list[tuple[str, Bools]] = [(size.words, self._close(size)) for size in self._sizes()]
        checks += [("recomputation", self._recomputes()), ("crossing nodes", self._crosses_too())]
        few = [words for words, close in checks if np.count_nonzero(close & self.kind.chosen) < ENOUGH]
        return f" in {' and in '.join(few)}" if few else " in all its sizes at once"

    def _other_words(self) -> Iterator[str]:
        """What other published runs had, and none of its kind."""
        job, errors = self.job, self.errors
        asked: list[tuple[str, str, str]] = [("precision", job.plan.precision, f"computed in {job.plan.precision}")]
        if job.plan.pp > 1:
            asked.append(("schedule", job.plan.schedule, f"had the {job.plan.schedule} schedule"))
        if _crosses(job):
            asked.append(("fabric", job.cluster.fabric.kind, f"was over {job.cluster.fabric.kind}"))
        for column, word, words in asked:
            if not (errors.is_(column, word) & self.around).any():
                yield Note("none-of-kind", f"no published run of its kind {words}")


def _crosses(job: Job) -> bool:
    return job.gpus > job.cluster.node.gpus


def _narrowed(level: SimilarityLevel, alike: Bools) -> SimilarityLevel:
    """Without runs whose layers are far larger or smaller, where enough are left."""
    chosen = level.chosen & alike
    if np.count_nonzero(chosen) < ENOUGH or np.count_nonzero(chosen) == np.count_nonzero(level.chosen):
        return level
    words = f"layers of 1/{ALIKE_WORK:.0f} to {ALIKE_WORK:.0f} times the work"
    return SimilarityLevel(
        like=f"{level.like}, {words}" if level.like else words, chosen=chosen, of_stack=level.of_stack
    )


def _work(job: Job) -> float:
    """What a layer's kernels have to do on one GPU, up to a factor."""
    return micro_tokens(job) * job.model.hidden**2 / job.plan.tp


def _work_of_runs(errors: Errors) -> Floats:
    n = errors.numbers
    tokens = np.where(np.isnan(n["micro_tokens"]), n["seq_len"] / n["cp"], n["micro_tokens"])
    return np.asarray(tokens * n["hidden"] ** 2 / n["tp"], dtype=np.float64)


def _of_plan(job: Job, errors: Errors) -> Bools:
    """Runs that use the same kinds of parallelism, whatever their degrees."""
    plan = job.plan
    family = [name for name, other in SHARDING_FAMILIES.items() if other == SHARDING_FAMILIES[plan.sharding]]
    chosen = errors.is_("sharding", *family) if plan.dp > 1 else np.ones(len(errors), dtype=np.bool_)
    for axis in ("dp", "tp", "pp", "cp"):
        chosen &= (errors.numbers[axis] > 1) == (getattr(plan, axis) > 1)
    return chosen


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
