"""Fit how errors of predictions go together between plans of a job: the spreads that `knee tune` starts from.

    python tools/fit_tuning.py [--write]

Run it after ``tools/fit_published.py --write``. Each source is predicted with constants that were fitted without it.
For sources with jobs that `knee tune --replay` plays, the spreads are fitted again without the source. --write puts
them into src/knee/catalog/validation/tuning.toml.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knee.base.arrays import Floats, Ints
from knee.commands.tune.posterior import TERMS, Quantity, Spreads, kernels
from knee.commands.tune.replay import LEAST_PLANS, WHATS, PublishedJob, fitted_spread, published_jobs, transfer_pairs
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.published_runs import PublishedRun

ASSUMED: dict[Quantity, dict[str, float]] = {
    "throughput": dict(zip(TERMS, (0.7, 0.12, 0.06, 0.06, 0.06, 0.06, 0.04, 0.03, 0.05, 0.06, 0.04), strict=True)),
    "memory": dict(zip(TERMS, (0.5, 0.05, 0.03, 0.04, 0.03, 0.05, 0.03, 0.02, 0.02, 0.04, 0.03), strict=True)),
}
"""Before any run was seen: means of the prior, by their logarithms."""
PRIOR = 0.7
"""Standard deviation of the logarithm of a spread around what was assumed."""
WEIGHT = 30.0
"""A source counts as no more runs than these."""
FRONT = 0.7
"""Throughput is fitted on plans that are, or are predicted, within so much of the best: others are not run."""
PART_OF_MEMORY = 0.25
"""Memory is fitted on plans that need at least so much of the GPU's."""
NOISE = {
    "hf_ultrascale": 0.10,
    "bloom_prequel": 0.05,
    "nvidia_dgxc_benchmarking": 0.05,
    "nvidia_megatron_bridge_perf_summary": 0.05,
}
"""Source -> standard deviation of a run's throughput around its plan's, which repeats and releases of the source show;
it is no error of a prediction. Others: 1%."""
QUIET = 0.01
STEPS = (2.0, 1.5, 1.25, 1.25)
LEAST, MOST = 0.005, 2.0
OUT = Path(__file__).parents[1] / "src" / "knee" / "catalog" / "validation" / "tuning.toml"
HEAD = """\
# How errors of predictions go together between plans of a job (src/knee/commands/tune/posterior.py): the standard
# deviation of the logarithm for each shared mechanism. Fitted by tools/fit_tuning.py on published jobs with several
# plans; [left_out.SOURCE] is the fit without a source, with which `knee tune --replay` plays its jobs. [transfer] is
# the error that each doubling of the GPUs or layers adds to the prediction of a run from a smaller one.
"""


@dataclass(frozen=True)
class Errors:
    """Of one job."""

    weight: float
    noise: float
    logs: Floats
    parts: dict[str, Floats]


def errors_of(job: PublishedJob, quantity: Quantity) -> tuple[Floats, Ints]:
    """Logarithms of measured over predicted, and the rows that they are of."""
    c = job.candidates
    if quantity == "throughput":
        measured = np.array([o.tokens_per_s_per_gpu or np.nan for o in job.outcomes])
        ran = np.isfinite(measured)
        near = (c.tokens_per_s_per_gpu >= FRONT * c.tokens_per_s_per_gpu[ran].max(initial=0.0)) | (
            measured >= FRONT * np.nanmax(measured, initial=0.0)
        )
        rows, predicted = np.flatnonzero(ran & near), c.tokens_per_s_per_gpu
    else:
        measured = np.array([o.memory_bytes or np.nan for o in job.outcomes])
        rows, predicted = np.flatnonzero(measured > PART_OF_MEMORY * c.hbm_bytes), c.memory_bytes
    return np.log(measured[rows] / predicted[rows]), rows


def columns_of(jobs: Sequence[PublishedJob], quantity: Quantity, without: str | None) -> list[Errors]:
    """Errors of all jobs but one source's, each source weighed."""
    used = [(job, *errors_of(job, quantity)) for job in jobs if job.source != without]
    used = [(job, logs, rows) for job, logs, rows in used if len(rows) >= (2 if quantity == "throughput" else 1)]
    counts: Counter[str] = Counter()
    for job, _, rows in used:
        counts[job.source] += len(rows)
    found = []
    for job, logs, rows in used:
        c = job.candidates.rows(rows)
        draws = c.log_rate_draws if quantity == "throughput" else c.log_memory_draws
        weight = min(1.0, WEIGHT / counts[job.source])
        noise = NOISE.get(job.source, QUIET) if quantity == "throughput" else QUIET
        found.append(Errors(weight=weight, noise=noise, logs=logs, parts=kernels(c.mechanisms, draws)))
    print(f"{quantity} without {without}: {dict(counts)}", file=sys.stderr)
    return found


def loss(columns: Sequence[Errors], spreads: Spreads, quantity: Quantity) -> float:
    """Less the logarithm of the likelihood and of the prior."""
    total = 0.0
    for job in columns:
        spread = sum(spreads[term] ** 2 * job.parts[term] for term in TERMS)
        root = np.linalg.cholesky(spread + job.noise**2 * np.eye(len(job.logs)))
        z = np.linalg.solve(root, job.logs)
        total += job.weight * (0.5 * float(z @ z) + float(np.log(np.diag(root)).sum()))
    away = [np.log(spreads[term] / ASSUMED[quantity][term]) for term in TERMS]
    return total + float(np.sum(np.square(away))) / (2 * PRIOR**2)


def fitted(columns: Sequence[Errors], quantity: Quantity) -> dict[str, float]:
    """One spread after another, by ever smaller factors."""
    best = dict(ASSUMED[quantity])
    least = loss(columns, best, quantity)
    for step in STEPS:
        for term in TERMS:
            best, least = _moved(best, least, term, step, lambda spreads: loss(columns, spreads, quantity))
    return {term: float(f"{value:.2g}") for term, value in best.items()}


def _moved(
    best: dict[str, float], least: float, term: str, step: float, of: Callable[[Spreads], float]
) -> tuple[dict[str, float], float]:
    for factor in (step, 1.0 / step):
        for _ in range(6):
            tried = best | {term: float(np.clip(best[term] * factor, LEAST, MOST))}
            if (value := of(tried)) >= least - 1e-6:
                break
            best, least = tried, value
    return best, least


def transfer_lines(runs: Sequence[PublishedRun]) -> list[str]:
    """The spread of each kind of transfer, from pairs of runs of one plan."""
    lines = ["[transfer]"]
    for what in WHATS:
        pairs = transfer_pairs(runs, what)
        sources = len({pair.source for pair in pairs})
        source = f'kind = "fitted", source = "tools/fit_tuning.py on {len(pairs)} pairs of runs of {sources} sources"'
        lines.append(f"{what} = {{ value = {fitted_spread(pairs):.2g}, {source} }}")
    return [*lines, ""]


def main(arguments: Sequence[str]) -> None:
    """Fit and write."""
    runs = carried_runs().runs
    jobs = published_jobs(runs, least_plans=2)
    played = sorted({job.source for job in jobs if sum(o.end == "ok" for o in job.outcomes) >= LEAST_PLANS})
    lines = [HEAD]
    for without in (None, *played):
        for quantity in ("throughput", "memory"):
            found = fitted(columns_of(jobs, quantity, without), quantity)
            lines.append(f"[{quantity}]" if without is None else f"[left_out.{without}.{quantity}]")
            for term, value in found.items():
                source = 'kind = "fitted", source = "tools/fit_tuning.py on published jobs with several plans"'
                lines.append(
                    f"{term} = {{ value = {value:g}, {source} }}" if without is None else f"{term} = {value:g}"
                )
            lines.append("")
    lines += transfer_lines(runs)
    text = "\n".join(lines)
    print(text)
    if "--write" in arguments:
        OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
