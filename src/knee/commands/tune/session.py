"""One tuning from its first run to its answer: the plans, then the settings of the best one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from knee.base.errors import DoesNotFit, InputError, argument
from knee.base.signals import catch_signals
from knee.commands.tune import tuned_state as states
from knee.commands.tune.loop import Limits, Progressed, Stage, Standing, Start, Why, run_stage
from knee.commands.tune.posterior import moved
from knee.commands.tune.searched_plans import SearchedPlans
from knee.commands.tune.stages import Knob, Planner, Refused, Smaller, Variant, stage_of_knobs, stage_of_plans, variants
from knee.commands.tune.tuning_folder import plan_key
from knee.specs.argument_types import not_in_range
from knee.specs.choices import Launcher
from knee.specs.job import Job
from knee.specs.plan import plan_words
from knee.specs.profile import Profile
from knee.specs.profile_parameters import applied
from knee.training.export.job_file import job_file
from knee.training.launch.run_status import Status
from knee.training.launch.site import Site
from knee.training.launch.supervisor import supervise
from knee.training.launch.sweep_folder import Sweep, SweepRun
from knee.training.sweeps import run_local as local
from knee.training.sweeps import slurm
from knee.training.sweeps.checks import LocalDevices
from knee.training.sweeps.job_for_trainer import PROCESSOR, RunSettings

# Start the runs that were chosen: one after another, or several at once where there is room.

OnRun = Callable[[SweepRun, Status], None]
Say = Callable[[str], None]
DEVICES = "CUDA_VISIBLE_DEVICES"


def start_runs(sweep: Sweep, site: Site, ids: Collection[str], *, at_once: int, on_run: OnRun, say: Say) -> int | None:
    """See these runs through; the signal that ended it. The caller holds the folder's lock."""
    if sweep.launcher == "slurm":
        slurm.submit_missing(sweep, site, wait=True, say=say, only=ids)
        return None
    if at_once == 1 or len(ids) == 1:
        return local.start_missing(sweep, site, only=ids, on_run=on_run)
    return _side_by_side(sweep, site, ids, at_once, on_run)


def _side_by_side(sweep: Sweep, site: Site, ids: Collection[str], at_once: int, on_run: OnRun) -> int | None:
    """Each run on its own GPUs or hosts. Signals reach the main thread, and the runs see them there."""
    with catch_signals() as stop:
        local.adopt_running(sweep, stop)
        statuses = sweep.statuses()
        entries = local.missing(sweep, statuses, only=ids)
        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(at_once):
            free.put(slot)

        def placed(entry: SweepRun) -> Status | None:
            slot = free.get()
            try:
                if stop.signal is not None:
                    return None
                hosts = site.hosts[slot * entry.nodes : (slot + 1) * entry.nodes]
                what = local.supervised_run(sweep, replace(site, hosts=hosts) if site.hosts else site, entry, stop)
                if not site.hosts:
                    devices = range(slot * entry.gpus, (slot + 1) * entry.gpus)
                    what.environment = {**what.environment, DEVICES: ",".join(map(str, devices))}
                on_run(entry, replace(statuses[entry.id], state="running"))
                return supervise(what)
            finally:
                free.put(slot)

        with ThreadPoolExecutor(at_once) as pool:
            ended = pool.map(placed, entries)
            for entry, status in zip(entries, ended, strict=True):
                if status is not None:
                    on_run(entry, status)
        return stop.signal


def check_room(job: Job, launcher: Launcher, site: Site, at_once: int) -> None:
    """Refuse more runs at once than there is room for; Slurm's queue holds what does not fit."""
    if at_once < 1:
        raise not_in_range("at_once", str(at_once), "it must be at least 1")
    if at_once == 1 or launcher == "slurm":
        return
    if launcher == "torchrun":
        nodes = -(-job.gpus // (site.gpus_per_node or job.cluster.node.gpus))
        room, where = len(site.hosts) // nodes, f"{len(site.hosts)} hosts have"
    elif job.cluster.gpu.vendor == PROCESSOR:
        room, where = 1, "one processor has"
    else:
        gpus = len(LocalDevices.here().gpus)
        room, where = gpus // job.gpus, f"{gpus} GPUs have"
    if at_once > room:
        text = f"{argument('at_once')} is {at_once}, but {where} room for {max(1, room)} at a time"
        raise InputError(text, hint=f"use {argument('at_once')} {max(1, room)}", code="out-of-range", field="at_once")


OnStep = Callable[[states.TunedState], None]
MOST_SEARCHES = 2
"""Times that the space is searched again with what the runs tell."""
MOST_MORE = 48
"""Plans at the head of such a search that become candidates, if they are none."""
MOST_ROUNDS = 4
"""Times that settings are varied around a new best run."""
OVER: tuple[Why, ...] = ("within", "all")
"""Ends of a stage after which the next one begins."""


@dataclass(slots=True, kw_only=True)
class Session:
    """What is tuned, and how."""

    job: dict[str, Any]
    """In plain names and numbers; a folder is continued only for the same."""
    plans: SearchedPlans
    settings: RunSettings
    limits: Limits
    planner: Planner
    refused: Refused
    start: Start
    search: Callable[[Profile], SearchedPlans]
    """The search of the space with another profile."""
    smaller: Smaller = field(default_factory=Smaller)
    knobs: tuple[Knob, ...] = ()
    at_once: int = 1
    on_step: OnStep = lambda _: None
    words: dict[str, str] = field(default_factory=dict)
    """Key of a candidate -> its words; of every stage so far."""
    stages: dict[str, str] = field(default_factory=dict)
    steps: dict[str, dict[int, states.StepState]] = field(default_factory=dict)
    """Stage -> number of its runs -> what was known then."""
    state: states.TunedState | None = None
    stage: Stage | None = None
    ended: states.TunedState | None = None
    """How the last stage that is over stood."""
    best: Variant | None = None
    """At full size."""
    tried: dict[str, Variant] = field(default_factory=dict)
    """Key -> what was run in the stages that are over: it tells about the settings that it shares."""

    def run(self, sweep: Sweep) -> Progressed:
        """Run the stages one after another. The caller holds the folder's lock."""
        done = self._plans(sweep)
        for _ in range(MOST_SEARCHES):
            if done.why not in OVER or not self._search_again(done):
                break
            done = self._plans(done.sweep)
        self.ended, at = self.state, done.standing.best
        if at is None:
            return done
        self.best = Variant(job=self.plans.jobs[at])
        if not self.knobs or self.smaller != Smaller() or done.why not in OVER:
            return done
        self._keep_tried([Variant(job=job) for job in self.plans.jobs], done)
        return self._settings(done, self.best)

    def _settings(self, done: Progressed, base: Variant) -> Progressed:
        for number in range(1, 1 + MOST_ROUNDS):
            rows = variants(base, self.knobs, self.refused)
            if len(rows) < 2:
                break
            here = {plan_key(one.question) for one in rows}
            rows += [one for key, one in self.tried.items() if key not in here]
            stage = stage_of_knobs(rows, self.settings, self.planner, f"settings {number}")
            done = self._stage(done.sweep, stage, [one.words for one in rows])
            self._keep_tried(rows, done)
            best = done.standing.best
            if done.why not in OVER or best is None or best == 0:
                break
            base = self.best = rows[best]
            self.ended = self.state
        return done

    def _plans(self, sweep: Sweep) -> Progressed:
        self.stage = stage_of_plans(self.plans.jobs, self.settings, self.planner, self.smaller)
        self.steps.pop(self.stage.name, None)
        return self._stage(sweep, self.stage, [plan_words(job.plan) for job in self.plans.jobs])

    def _search_again(self, done: Progressed) -> bool:
        """Search with what the runs tell about the stack; whether there are plans that were no candidates before."""
        assert self.stage is not None
        beliefs, first = self.stage.beliefs, self.plans.jobs[0]
        positions = beliefs.stack_positions(done.outcomes)
        values = moved(first.cluster, first.profile, beliefs.candidates.parameters, positions)
        _, profile = applied(first.cluster, first.profile, values)
        known = {job.plan for job in self.plans.jobs}
        try:
            found = [job for job in self.search(profile).jobs[:MOST_MORE] if job.plan not in known]
        except DoesNotFit:  # by what was measured, no plan of the whole space does
            return False
        more = tuple(replace(job, profile=first.profile) for job in found)
        self.plans = replace(self.plans, jobs=(*self.plans.jobs, *more))
        return bool(more)

    def _keep_tried(self, rows: Sequence[Variant], done: Progressed) -> None:
        self.tried |= {plan_key(rows[o.plan].question): rows[o.plan] for o in done.outcomes}

    def _stage(self, sweep: Sweep, stage: Stage, words: Sequence[str]) -> Progressed:
        fresh = {key: name for key, name in zip(stage.keys, words, strict=True) if key not in self.words}
        self.words |= fresh
        self.stages |= dict.fromkeys(fresh, stage.name)

        def told(now: Progressed) -> None:
            self.state = self.state_of(stage, words, now)
            states.write_state(now.sweep.folder, self.state)
            self.on_step(self.state)

        done = run_stage(sweep, stage, self.limits, start=self.start, at_once=self.at_once, told=told)
        self.state = self.state_of(stage, words, done)
        states.write_state(done.sweep.folder, self.state)
        return done

    def state_of(self, stage: Stage, words: Sequence[str], now: Progressed) -> states.TunedState:
        """All that is known: of this stage, and of those before it."""
        after, before, beliefs = now.standing, self.ended, stage.beliefs
        key = None if after.best is None else stage.keys[after.best]
        steps = states.step_states(stage, words, now, self.steps.setdefault(stage.name, {}))
        candidates = states.candidate_states(stage, words, now)
        if before is not None:
            made = [run for run in now.made if run.outcome is not None and run.plan in stage.rows]
            already = sum(self.stages[run.plan] != stage.name for run in made)
            steps = (*before.steps, *states.later(steps, before.steps[-1], already))
            candidates = tuple({one.plan: one for one in (*before.candidates, *candidates)}.values())
        return states.TunedState(
            job=self.job,
            within_frac=self.limits.within_frac,
            max_gpu_h=self.limits.max_gpu_h,
            stage=stage.name,
            # settings are soon all tried; what is left to gain is then that of the plans
            why=now.why if before is None or now.why != "all" else before.why,
            gpu_h=now.gpu_h,
            best_run=next((run.id for run in now.made if run.plan == key and run.outcome), None),
            best_plan=None if after.best is None else words[after.best],
            best_tokens_per_s_per_gpu=after.best_tokens_per_s_per_gpu,
            expected_gain_frac=after.expected_gain_frac,
            bound_frac=_bound(after, before),
            next_plan=None if after.next is None or now.why else words[after.next],
            space_plans=self.plans.space_plans,
            candidate_plans=len(self.plans.jobs),
            beyond_frac=self.plans.beyond_frac,
            not_run=self.plans.not_run,
            candidates=candidates,
            runs=states.run_states(self.stages, self.words, now),
            steps=steps,
            full_gpu_h=_full_gpu_h(stage, now) if beliefs.goal else None,
            transfer_error_frac=self.smaller.error_frac(self.plans.jobs[0]) if beliefs.goal else None,
        )

    def best_job(self) -> str | None:
        """The best plan at full size as a job file."""
        return None if self.best is None else job_file(self.best.job)

    def finish(self, notes: Sequence[str], profile_file: str | None) -> states.TunedState:
        """The last state, with what is only known at the end."""
        assert self.state is not None
        more = () if self.best is None else self.best.train_words
        self.state = replace(self.state, notes=tuple(notes), profile_file=profile_file, train_words=more)
        return self.state


def _full_gpu_h(stage: Stage, now: Progressed) -> float:
    beliefs = stage.beliefs
    rows = [run.outcome.plan for run in now.made if run.outcome is not None]
    return float(sum(beliefs.candidates.gpu_h[beliefs.goal + row] for row in rows))


def _bound(after: Standing, before: states.TunedState | None) -> float | None:
    """Of settings, and of the plans before them: another plan may gain by the same settings."""
    if before is None or before.bound_frac is None or after.bound_frac is None:
        return after.bound_frac
    return max(after.bound_frac, before.bound_frac)
