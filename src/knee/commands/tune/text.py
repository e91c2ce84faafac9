"""What ``knee tune`` prints: lines while it runs, the answer with its runs, and the table of a replay."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from knee.base.units import counted, show
from knee.show.terminal.table import print_heading, print_rows, print_table, seen

if TYPE_CHECKING:
    from knee.commands.tune.replay import TuneReplay
    from knee.commands.tune.result import Tuned
    from knee.commands.tune.tuned_state import TunedState
    from knee.training.launch.run_status import Status
    from knee.training.launch.sweep_folder import SweepRun

WHY = {
    "within": "no untried plan is expected to be faster by more than {within}",
    "budget": "the next run would exceed --max-gpu-hours",
    "runs": "--max-runs is reached",
    "all": "every candidate was tried",
    "none": "runs only failed",
    "interrupted": "the tuning was interrupted; the same command continues it",
    "": "the tuning is not finished; the same command continues it",
}


def run_words(entry: SweepRun, status: Status) -> str:
    """A line when a run starts or ends."""
    elapsed = status.elapsed_s()
    took = f" after {show(elapsed, 's')}" if status.over and elapsed is not None else ""
    words = f": {seen(status.words)}" if status.words and status.over else ""
    return f"  {seen(entry.name)}: {status.state}{took}{words}"


def print_step(state: TunedState) -> None:
    """On stderr, whenever something new is known."""
    made = sum(run.tokens_per_s_per_gpu is not None or run.state in ("oom", "failed") for run in state.runs)
    best = (
        "nothing measured yet"
        if state.best_tokens_per_s_per_gpu is None
        else f"best so far {state.best_tokens_per_s_per_gpu:,.0f} tokens/s per GPU ({seen(state.best_plan or '')}), "
        f"expected gain {_share(state.expected_gain_frac)}, bound {_share(state.bound_frac)}"
    )
    click.echo(f"{counted(made, 'run')}, {state.gpu_h:,.3f} GPU-hours: {best}", err=True)


def print_tuned(answer: Tuned) -> None:
    """The best plan, what could still be gained, and the runs."""
    state = answer.state
    job = state.job
    print_heading(
        f"{seen(str(job['model']))} on {counted(job['gpus'], 'GPU')} of {seen(str(job['cluster']))}, batch "
        f"{job['global_batch']:,} x {job['seq_len']:,} tokens"
    )
    if state.best_plan is not None:
        rows = [
            ["best plan", seen(state.best_plan)],
            ["tokens/s per GPU", _rate(state)],
            ["expected gain", _gain(state)],
            ["bound", f"{_share(state.bound_frac)}: with 90% probability no untried candidate is faster by more"],
        ]
        rows += [["job file", str(answer.job_file)]] if answer.job_file else []
        rows += [["train it with", shlex.join(answer.train_command)]] if answer.train_command else []
    else:
        rows = [["best plan", "no run has completed"]]
    running = [seen(run.plan) for run in state.runs if (now := answer.statuses.get(run.id)) and now.state == "running"]
    rows += [["running", plan] for plan in running]
    rows += [["next", seen(state.next_plan)]] if state.next_plan and not running else []
    rows += [["profile", state.profile_file]] if state.profile_file else []
    left = "" if state.beyond_frac is None else f"; the next plan is predicted at {state.beyond_frac:.0%} of the best"
    settings = len(state.candidates) - state.candidate_plans
    more = f" and {counted(settings, 'setting')}" if settings else ""
    rows += [
        ["cost", f"{counted(len(state.runs), 'run')}, {state.gpu_h:,.3f} GPU-hours"],
        ["stopped", WHY[state.why].format(within=_share(state.within_frac))],
        ["candidates", f"{state.candidate_plans:,} of {state.space_plans:,} plans{more}{left}"],
    ]
    print_rows([[f"  {name}", text] for name, text in rows])
    _print_runs(answer)
    for note in state.notes:
        click.echo(f"  note: {seen(note)}")


def _rate(state: TunedState) -> str:
    if state.transfer_error_frac is None:
        return f"{state.best_tokens_per_s_per_gpu:,.0f} (measured)"
    one = next(one for one in state.candidates if one.plan == state.best_plan)
    saved = "" if state.full_gpu_h is None else f"; {max(0.0, state.full_gpu_h - state.gpu_h):,.3g} GPU-hours saved"
    return (
        f"{one.mean_tokens_per_s_per_gpu:,.0f} at full size, from {one.low_tokens_per_s_per_gpu:,.0f} to "
        f"{one.high_tokens_per_s_per_gpu:,.0f} (from smaller runs, transfer error "
        f"{_share(state.transfer_error_frac)}{saved})"
    )


def _gain(state: TunedState) -> str:
    if state.expected_gain_frac is None:
        return "none: every candidate was tried"
    return f"{_share(state.expected_gain_frac)} from the most promising untried plan"


def _print_runs(answer: Tuned) -> None:
    state = answer.state
    if not state.runs:
        return
    predicted = {one.plan: one for one in state.candidates}
    rows = []
    for run in state.runs:
        one, now = predicted.get(run.plan), answer.statuses.get(run.id)
        expected, band = "", ""
        if one is not None:
            expected = f"{one.predicted_tokens_per_s_per_gpu:,.0f}"
            band = f"{one.first_low_tokens_per_s_per_gpu:,.0f} to {one.first_high_tokens_per_s_per_gpu:,.0f}"
        status = (now.state if now else run.state) + (f" ({run.cause})" if run.cause else "")
        measured = "" if run.tokens_per_s_per_gpu is None else f"{run.tokens_per_s_per_gpu:,.0f}"
        name = run.id.partition("-")[0]
        rows.append([name, seen(run.plan), status, measured, expected, band, f"{run.gpu_h:,.3f}"])
    head = ["run", "plan", "status", "measured", "predicted", "80% band before", "GPU-hours"]
    print_table("runs (tokens/s per GPU)", head, rows, right=(3, 4, 5, 6))


def print_replay(answer: TuneReplay) -> None:
    """How many runs each way to choose needs, and how the loop stops."""
    of = f"{counted(len(answer.jobs), 'job')} of {seen(answer.file)}"
    rows = [[m.method, f"{m.median:g}", f"{m.p90:.1f}", f"{m.mean:.1f}"] for m in answer.methods]
    title = f"runs until a plan within 2% of the best is found ({of})"
    print_table(title, ["method", "median", "p90", "mean"], rows, right=(1, 2, 3))
    plain = answer.to_dict()
    print_heading("how the loop stops")
    print_rows(
        [
            ["  runs until it stops", f"{plain['median_trials_to_stop']:g} (p90 {plain['p90_trials_to_stop']:.1f})"],
            ["  stops within 6 runs", f"{answer.few_trials_frac:.0%} of jobs"],
            ["  bound holds", f"{answer.bound_holds_frac:.0%} of jobs"],
            ["  GPU-hours", f"{answer.gpu_h_frac:.1%} of running every plan"],
        ]
    )
    if answer.transfers:
        rows = []
        for one in answer.transfers:
            errors = [_share(one.median_error_frac), _share(one.p90_error_frac)]
            within = "unknown" if one.band_holds_frac is None else f"{one.band_holds_frac:.0%} of pairs"
            what = {"gpus": "GPUs"}.get(one.what, one.what)
            rows.append([what, f"{one.pairs:,}", f"{one.sources:,}", *errors, within])
        title = "transfer from smaller runs (pairs of runs of one plan)"
        head = ["smaller in", "pairs", "sources", "median error", "p90", "within the 90% band"]
        print_table(title, head, rows, right=(1, 2, 3, 4, 5))
    rows = []
    for job in answer.jobs:
        trials = [f"{job.plans:,}", f"{job.trials_to_good}", f"{job.trials_to_stop}"]
        rows.append([seen(job.source), seen(job.name), *trials, _share(job.bound_frac), _share(job.missed_frac)])
    head = ["source", "job", "plans", "to 2%", "to stop", "bound", "missed"]
    print_table("jobs", head, rows, right=(2, 3, 4, 5, 6))
    if answer.small_jobs:
        click.echo(f"  {counted(answer.small_jobs, 'job')} with fewer measured plans were not played")
    for reason, count in answer.skipped.items():
        click.echo(f"  {counted(count, 'row')} cannot be used: {seen(reason)}")


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
