"""Suggested runs: variations of those that were made, and of these the one that leaves least uncertainty."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from knee.specs.profile_parameters import PARAMETERS
from knee.trust.profile_fit import next_runs
from knee.trust.profile_fit.next_runs import _variations, suggest_runs
from knee.trust.profile_fit.stack_fit import NOISE
from knee.trust.validation.run_to_job import RunJob
from tables import job

FREE = [p for p in PARAMETERS if p.path in ("profile.launch_s", "profile.stream_scale", "profile.hop_scale")]


def test_variations_double_and_halve_one_size_each() -> None:
    made = job(dp_shard=8, tp=2, pp=2, micro_batch=2, microbatches=4)
    found = {words: other for other, words in _variations(made)}
    plans = {
        words: (o.gpus, o.global_batch, o.plan.dp_shard, o.plan.tp, o.plan.pp, o.plan.micro_batch)
        for words, o in found.items()
    }
    assert plans == {
        "gpus 64": (64, 128, 16, 2, 2, 2),
        "micro_batch 4": (32, 64, 8, 2, 2, 4),
        "tp 4": (32, 64, 4, 4, 2, 2),
        "pp 4": (32, 64, 4, 2, 4, 2),
        "gpus 16": (16, 32, 4, 2, 2, 2),
        "micro_batch 1": (32, 64, 8, 2, 2, 1),
        "tp 1": (32, 64, 16, 1, 2, 2),
        "pp 1": (32, 64, 16, 2, 1, 2),
    }
    assert all(
        replace(o, plan=made.plan, gpus=made.gpus, global_batch=made.global_batch) == made for o in found.values()
    )
    replicas = {words for _, words in _variations(job(dp_replicate=2, sharding="ddp", microbatches=1))}
    assert replicas == {"gpus 4", "tp 2", "pp 2", "gpus 1", "micro_batch 1"}  # the last was made, and is not suggested


def test_the_next_run_leaves_the_least_uncertainty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every choice tried: the sum over runs of the variance of their predictions."""
    draw = np.random.default_rng(0)
    made = [job(dp_shard=8, micro_batch=n) for n in (1, 2)]
    slopes: dict[Any, np.ndarray] = {}

    def slopes_of(cases: list[Any], parameters: list[Any], _values: object) -> np.ndarray:
        jobs = [asked.job for case in cases for asked in case.asked]
        return np.array([slopes.setdefault(next_runs._key(j), draw.normal(0.0, 0.1, len(parameters))) for j in jobs])

    monkeypatch.setattr(next_runs, "_slopes", slopes_of)
    run: Any = SimpleNamespace(memory_bytes=None)
    asked: list[Any] = [(run, RunJob(job=j, stack="", notes=())) for j in made]
    chosen = suggest_runs(asked, [*FREE, *(p for p in PARAMETERS if p.path == "profile.context_bytes")], {}, 3)
    known = np.array([slopes[next_runs._key(j)] for j in made])
    others = {key: line for key, line in slopes.items() if key not in {next_runs._key(j) for j in made}}
    targets = np.vstack([known, *others.values()])
    evidence = known.T @ known / NOISE**2 + np.eye(3)

    def variance(e: np.ndarray) -> np.ndarray:
        return np.einsum("ij,jk,ik->i", targets, np.linalg.inv(e), targets)

    assert len(chosen) == 3
    for suggestion in chosen:
        left = {key: variance(evidence + np.outer(s, s) / NOISE**2).sum() for key, s in others.items()}
        best = min(left, key=left.__getitem__)
        assert (suggestion.gpus, suggestion.seq_len, suggestion.global_batch) == best[2:5]
        after = evidence + np.outer(others[best], others[best]) / NOISE**2
        assert suggestion.spread_before_frac == pytest.approx(np.sqrt(variance(evidence)).mean())
        assert suggestion.spread_after_frac == pytest.approx(np.sqrt(variance(after)).mean())
        before_left, after_left = (np.sqrt(np.diag(np.linalg.inv(e))) for e in (evidence, after))
        told = int(np.argmin(after_left / before_left))
        assert suggestion.tells == FREE[told].path.removeprefix("profile.")
        assert suggestion.uncertainty_before_frac == pytest.approx(before_left[told])
        assert suggestion.uncertainty_after_frac == pytest.approx(after_left[told])
        del others[best]
        evidence = after


def test_candidates_are_spread_over_the_runs_and_no_more_than_forty() -> None:
    """Of eight runs' variations every second one that fits; of two runs' all of them."""
    run: Any = SimpleNamespace(memory_bytes=None)
    shapes = ((8, 2, 1, 1), (8, 1, 2, 2), (16, 2, 2, 1), (16, 4, 1, 2))
    shapes += ((32, 2, 1, 4), (32, 1, 1, 2), (64, 2, 2, 2), (64, 1, 1, 1))
    made: list[Any] = [
        (run, RunJob(job=job(dp_shard=d, tp=t, pp=p, micro_batch=b, microbatches=4), stack="", notes=()))
        for d, t, p, b in shapes
    ]
    for some in (made, made[:2]):
        cases, words = next_runs._candidates(some, {})
        keys = [next_runs._key(asked.job) for case in cases for asked in case.asked]
        fitting = [key for key in words if key in set(keys)]
        assert len(keys) == len(set(keys)) == len(fitting) <= 40
        assert not set(keys) & {next_runs._key(asked.job) for _, asked in some}
        first = next(words[key] for key in words)
        assert words[keys[0]] == first  # in the order of the runs
