"""How a tuning stands, as plain data: what is known, what runs, what is next. ``standing.json`` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from knee.base.errors import InputError
from knee.base.files import write_text
from knee.commands.tune.loop import Progressed, Stage, standing
from knee.commands.tune.posterior import Outcome
from knee.training.launch.run_status import Status
from knee.training.launch.sweep_folder import Sweep
from knee.training.run.run_record import read_object

STANDING = "standing.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateState:
    """One plan: what was predicted, and what is believed now."""

    plan: str
    predicted_tokens_per_s_per_gpu: float
    low_tokens_per_s_per_gpu: float
    """Exceeded with 90% probability."""
    mean_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Exceeded with 10% probability."""
    first_low_tokens_per_s_per_gpu: float
    """The same before any run."""
    first_high_tokens_per_s_per_gpu: float
    fits_frac: float
    """Probability that it fits in memory."""
    measured_tokens_per_s_per_gpu: float | None = None
    end: str | None = None
    """How its run ended: ok, oom, failed; None where it was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One run of the folder."""

    id: str
    stage: str
    plan: str
    state: str
    cause: str
    words: str
    attempts: int
    gpu_h: float
    tokens_per_s_per_gpu: float | None
    memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """What was known after some runs."""

    runs: int
    gpu_h: float
    best_plan: str | None
    best_tokens_per_s_per_gpu: float | None
    expected_gain_frac: float | None
    bound_frac: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedState:
    """The whole state of a tuning, as ``knee tune status`` shows it."""

    job: dict[str, Any]
    """What is tuned, in plain names and numbers."""
    within_frac: float
    max_gpu_h: float | None
    stage: str
    why: str
    """Why it stopped; empty while it goes on."""
    gpu_h: float
    best_run: str | None
    best_plan: str | None
    best_tokens_per_s_per_gpu: float | None
    expected_gain_frac: float | None
    bound_frac: float | None
    next_plan: str | None
    space_plans: int
    """Valid plans of the space."""
    candidate_plans: int
    """Plans among the candidates; the others are settings of the best plan."""
    beyond_frac: float | None
    """Predicted throughput of the best plan that is no candidate, over that of the best one; None if there is none."""
    not_run: dict[str, int]
    candidates: tuple[CandidateState, ...]
    runs: tuple[RunState, ...]
    steps: tuple[StepState, ...]
    full_gpu_h: float | None = None
    """GPU-hours that the same runs would have taken at full size, by simulation; None if they have it."""
    transfer_error_frac: float | None = None
    """Standard deviation of a plan's throughput at full size around what a smaller run tells."""
    notes: tuple[str, ...] = ()
    profile_file: str | None = None
    train_words: tuple[str, ...] = ()
    """What the best run had that its job file has not: variables and options of `knee train`."""


def candidate_states(stage: Stage, words: Sequence[str], now: Progressed) -> tuple[CandidateState, ...]:
    """Every candidate, as it stands and as it stood before any run."""
    first = standing(stage.beliefs, stage.known)
    after = now.standing
    told = {o.plan: o for o in now.outcomes}
    rates = stage.beliefs.candidates.tokens_per_s_per_gpu[stage.beliefs.goal :]
    return tuple(
        CandidateState(
            plan=words[row],
            predicted_tokens_per_s_per_gpu=float(rates[row]),
            low_tokens_per_s_per_gpu=float(after.low[row]),
            mean_tokens_per_s_per_gpu=float(after.mean[row]),
            high_tokens_per_s_per_gpu=float(after.high[row]),
            first_low_tokens_per_s_per_gpu=float(first.low[row]),
            first_high_tokens_per_s_per_gpu=float(first.high[row]),
            fits_frac=float(after.fits[row]),
            measured_tokens_per_s_per_gpu=told[row].tokens_per_s_per_gpu if row in told else None,
            end=told[row].end if row in told else None,
        )
        for row in range(len(words))
    )


def run_states(stages: Mapping[str, str], words: Mapping[str, str], now: Progressed) -> tuple[RunState, ...]:
    """Every run of the folder; ``stages`` and ``words``: key of a candidate -> its stage, and its plan in words."""
    return tuple(
        run_state(run.id, stages.get(run.plan, ""), words.get(run.plan, run.name), run.status, run.outcome)
        for run in now.made
    )


def run_state(id: str, stage: str, plan: str, status: Status, outcome: Outcome | None = None) -> RunState:
    """A run as plain data: its stage, its plan in words, how it stands, and what it has measured."""
    return RunState(
        id=id,
        stage=stage,
        plan=plan,
        **{name: getattr(status, name) for name in ("state", "cause", "words", "attempts", "gpu_h")},
        tokens_per_s_per_gpu=outcome.tokens_per_s_per_gpu if outcome else None,
        memory_bytes=outcome.memory_bytes if outcome else None,
    )


def with_new_runs(state: TunedState, sweep: Sweep, statuses: Mapping[str, Status]) -> TunedState:
    """The state with runs that were started after it was written."""
    known = {run.id for run in state.runs}
    new = tuple(
        run_state(entry.id, state.stage, entry.name, statuses[entry.id])
        for entry in sweep.entries
        if entry.id not in known
    )
    return replace(state, runs=(*state.runs, *new))


def step_states(
    stage: Stage, words: Sequence[str], now: Progressed, known: dict[int, StepState]
) -> tuple[StepState, ...]:
    """What was known after each run that has ended, in the order in which they were chosen. ``known`` keeps steps from
    call to call: what was known then does not change."""
    made = [run for run in now.made if run.outcome is not None and run.plan in stage.rows]
    outcomes, spent = list(stage.known), 0.0
    for count in range(len(made) + 1):
        if count:
            outcomes += stage.told_by(made[count - 1])
            spent += made[count - 1].status.gpu_h
        if count not in known:
            after = now.standing if count == len(made) else standing(stage.beliefs, outcomes)
            known[count] = StepState(
                runs=count,
                gpu_h=spent,
                best_plan=None if after.best is None else words[after.best],
                best_tokens_per_s_per_gpu=after.best_tokens_per_s_per_gpu,
                expected_gain_frac=after.expected_gain_frac,
                bound_frac=after.bound_frac,
            )
    return tuple(known[count] for count in range(len(made) + 1))


def later(steps: Sequence[StepState], after: StepState, already: int) -> list[StepState]:
    """Steps of a stage that follows another; its first runs were made there, and are counted there."""
    first = steps[already]
    return [
        replace(step, runs=step.runs - already + after.runs, gpu_h=step.gpu_h - first.gpu_h + after.gpu_h)
        for step in steps[already + 1 :]
    ]


def write_state(folder: Path, state: TunedState) -> None:
    """Replace the file."""
    write_text(folder / STANDING, json.dumps(asdict(state), indent=1) + "\n")


def read_state(folder: Path) -> TunedState:
    """What a tuning last wrote; refused where it has written nothing that can be read."""
    plain = read_object(folder / STANDING)
    parts: dict[str, type[CandidateState | RunState | StepState]] = {
        "candidates": CandidateState,
        "runs": RunState,
        "steps": StepState,
    }
    try:
        values = {f.name: plain[f.name] for f in fields(TunedState) if f.name in plain}
        made = {name: tuple(kind(**one) for one in values[name]) for name, kind in parts.items()}
        words = {name: tuple(values.get(name, ())) for name in ("notes", "train_words")}
        return TunedState(**{**values, **made, **words})
    except (KeyError, TypeError):
        text = f"{folder} has no {STANDING} that can be read: `knee tune` has not chosen a run there"
        hint = "`knee tune JOB --out DIR` starts or continues a tuning"
        raise InputError(text, hint=hint, code="no-file", field="folder") from None
