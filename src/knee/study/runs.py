"""The paper's configurations, run on the simulator under its own software profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from knee.errors import SpecError
from knee.record.measurement import Measurement
from knee.simulator import evaluate
from knee.single import simulate
from knee.specs.hardware import Cluster
from knee.specs.job import Job
from knee.specs.load import load_cluster, load_model, load_profile, make_job
from knee.specs.model import Model
from knee.specs.profile import Profile
from knee.specs.table import table_of

DEGREES = (1, 2, 4, 8, 16)
PLACEMENT = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
"""The paper calls groups of more than 8 "across multiple nodes", pipelines included: model parallelism is innermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulated point."""

    job: Job
    result: Measurement

    @property
    def exposed_frac(self) -> float:
        """Exposed share of the step as a trace shows it: a stage in a bubble sits in a receive kernel."""
        return (self.result.exposed_comm_s + self.result.bubble_s) / self.result.step_s

    @property
    def exposed_s(self) -> float:
        """The same in seconds."""
        return self.result.exposed_comm_s + self.result.bubble_s


@dataclass(slots=True)
class Bench:
    """Simulates on demand and remembers. ``overrides`` changes specs, for fits and what-ifs."""

    clusters: dict[str, Cluster] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    done: dict[tuple[object, ...], Run] = field(default_factory=dict)

    def cluster(self, name: str) -> Cluster:
        """A cluster of the catalogue, loaded once."""
        if name not in self.clusters:
            self.clusters[name] = load_cluster(name).spec
        return self.clusters[name]

    def profile(self, name: str) -> Profile:
        """A profile of the catalogue, loaded once."""
        if name not in self.profiles:
            self.profiles[name] = load_profile(name).spec
        return self.profiles[name]

    def model(self, name: str) -> Model:
        """A model of the catalogue, loaded once."""
        if name not in self.models:
            self.models[name] = load_model(name).spec
        return self.models[name]

    def job(
        self,
        *,
        model: str = "llama2-7b",
        cluster: str = "dgx-h100",
        profile: str = "paper",
        gpus: int,
        global_batch: int,
        seq_len: int = 4096,
        **plan: object,
    ) -> Job:
        """A job, model-parallel groups innermost; SpecError where the plan cannot be."""
        return make_job(
            self.model(model),
            self.cluster(cluster),
            self.profile(profile),
            gpus=gpus,
            global_batch=global_batch,
            seq_len=seq_len,
            plan_options={"placement": PLACEMENT} | plan,
        )[0]

    def run(self, *, gpus: int, global_batch: int, **options: object) -> Run:
        """Simulate one point."""
        key = (gpus, global_batch, *sorted(options.items()))
        if key not in self.done:
            job = self.job(gpus=gpus, global_batch=global_batch, **options)  # type: ignore[arg-type]
            self.done[key] = Run(job=job, result=simulate(job))
        return self.done[key]

    def weak(self, gpus: int, **options: object) -> Run:
        """A point of the paper's weak scaling: local batch 2, pure FSDP unless said otherwise."""
        return self.run(gpus=gpus, global_batch=2 * gpus, **options)

    def pipelines(self, pp: int, per_rank: int, layers: int) -> Iterable[dict[str, object]]:
        """Schedules and micro-batches that a pipeline of ``pp`` stages can run."""
        for micro in (m for m in (1, 2, 4, 8) if per_rank % m == 0):
            yield {"pp": pp, "schedule": "1f1b", "micro_batch": micro}
            yield {"pp": pp, "schedule": "zero_bubble", "micro_batch": micro}
            for virtual in (2, 4, 8):
                if pp * virtual <= layers and per_rank // micro % pp == 0:
                    yield {"pp": pp, "schedule": "interleaved", "virtual_stages": virtual, "micro_batch": micro}

    def candidates(
        self,
        *,
        gpus: int,
        global_batch: int,
        tp: Iterable[int] = DEGREES,
        pp: Iterable[int] = DEGREES,
        **options: object,
    ) -> list[Job]:
        """Every TP x PP plan of the paper's sweep that is valid, pipelines with all their schedules."""
        jobs = []
        for t in tp:
            for p in pp:
                ranks = gpus // (t * p)
                if ranks == 0 or gpus % (t * p) or global_batch % ranks:
                    continue
                per_rank = global_batch // ranks
                layers = self.model(str(options.get("model", "llama2-7b"))).layers
                plans = [{}] if p == 1 else self.pipelines(p, per_rank, layers)
                for plan in plans:
                    try:
                        jobs.append(self.job(gpus=gpus, global_batch=global_batch, tp=t, **plan, **options))  # type: ignore[arg-type]
                    except SpecError:
                        continue
        return jobs

    def best(self, *, gpus: int, global_batch: int, **options: object) -> Run:
        """The fastest plan of the sweep that fits."""
        key = ("best", gpus, global_batch, *sorted((k, str(v)) for k, v in options.items()))
        if key not in self.done:
            jobs = self.candidates(gpus=gpus, global_batch=global_batch, **options)  # type: ignore[arg-type]
            first = jobs[0]
            r = evaluate(first.model, first.cluster, first.profile, table_of(jobs)).results
            order = sorted(range(len(jobs)), key=lambda i: (not bool(r.fits[i]), float(r.step_s[i])))
            winner = jobs[order[0]]
            self.done[key] = Run(job=winner, result=simulate(winner))
        return self.done[key]
