"""Fits in a world whose answers are straight lines, where every result has a closed form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.profile_parameters import Parameter
from knee.trust.profile_fit import calibration, stack_fit
from knee.trust.profile_fit.calibration import (
    OwnProfile,
    _covering,
    _warnings,
    held_away,
    held_out_runs,
    surely_better,
    written,
)
from knee.trust.profile_fit.stack_fit import NOISE, UNTOLD, Estimate, calibrate, free_of, problem_of
from knee.trust.validation.run_errors import Predicted

NAMES = ("stream_scale", "attention_scale", "gemm_scale", "bandwidth_scale_frac", "hop_scale")
PARAMETERS = tuple(
    Parameter(path=f"profile.{name}", low=0.1, high=3.0, spread=0.3, meaning=name, is_share=name.endswith("_frac"))
    for name in NAMES
)
PROFILE = SimpleNamespace(**dict.fromkeys(NAMES, 1.0), launch_s=5e-6)
BASE = 1000.0


def world(
    monkeypatch: pytest.MonkeyPatch, lines: np.ndarray, log_errors: np.ndarray, sources: list[str] | None = None
) -> tuple[list[Any], tuple[Parameter, ...]]:
    """Runs whose log tokens/s are lines over positions of parameters, and which the profile misses by these errors."""
    parameters = PARAMETERS[: lines.shape[1]]
    names = sources or [str(i) for i in range(len(lines))]
    rates = BASE * np.exp(-log_errors)
    runs = [
        SimpleNamespace(tokens_per_s_per_gpu=rate, memory_bytes=None, setting=SimpleNamespace(source=name))
        for rate, name in zip(rates.tolist(), names, strict=True)
    ]
    cluster = SimpleNamespace(gpu=SimpleNamespace(hbm_bytes=80e9), node=None, fabric=None)

    def predicted(_cases: object, values: dict[str, float]) -> Predicted:
        away = [p.scaled(values.get(p.path, 1.0)) - p.scaled(1.0) for p in parameters]
        ones = np.ones(len(lines))
        return Predicted(tokens_per_s_per_gpu=BASE * np.exp(lines @ away), memory_bytes=40e9 * ones, fits=ones > 0)

    monkeypatch.setattr(stack_fit, "predicted", predicted)
    return [SimpleNamespace(job=SimpleNamespace(profile=PROFILE, cluster=cluster), runs=runs)], parameters


def ridge(lines: np.ndarray, log_errors: np.ndarray) -> np.ndarray:
    """Where squares of errors over the noise, and of the way from the prior, are least."""
    return -np.linalg.solve(lines.T @ lines / NOISE**2 + np.eye(lines.shape[1]), lines.T @ log_errors / NOISE**2)


def positions(parameters: tuple[Parameter, ...], values: dict[str, float]) -> np.ndarray:
    return np.array([p.scaled(values[p.path]) - p.scaled(1.0) for p in parameters])


LINES = np.random.default_rng(0).normal(0.0, 0.2, (12, 3))
SMALL = np.random.default_rng(1).normal(0.0, 0.004, 12)


def test_errors_and_slopes_are_in_standard_deviations(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, parameters = world(monkeypatch, LINES, SMALL)
    problem = problem_of(cases, parameters)
    errors = problem.errors(parameters, {p.path: p.value(p.scaled(1.0) + 0.5) for p in parameters})
    assert errors == pytest.approx([*((SMALL + LINES @ ([0.5] * 3)) / NOISE), 0.5, 0.5, 0.5])
    expected = np.vstack([LINES / NOISE, np.eye(3)])
    for x in (0.0, 3.5):  # at the upper bound, the step is a step down
        at = np.array([p.scaled(p.inside(p.value(p.scaled(1.0) + x))) for p in parameters])
        assert problem.slopes(parameters, at) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    left = np.sqrt(np.diag(np.linalg.inv(LINES.T @ LINES / NOISE**2 + np.eye(3))))
    assert list(problem.uncertainty(parameters, dict.fromkeys(problem.prior, 1.0)).values()) == pytest.approx(left)


def test_a_source_counts_as_thirty_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = np.full((121, 1), 0.1)
    cases, parameters = world(monkeypatch, lines, np.full(121, 0.01), ["many"] * 120 + ["few"])
    errors = problem_of(cases, parameters).errors(parameters, {parameters[0].path: 1.0})
    assert errors == pytest.approx([0.5 * 0.01 / NOISE] * 120 + [0.01 / NOISE, 0.0])


def test_small_errors_are_fitted_by_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, parameters = world(monkeypatch, LINES, SMALL)
    fit = calibrate(cases, parameters)
    expected = ridge(LINES, SMALL)
    assert positions(parameters, fit.values) == pytest.approx(expected, abs=0.02 * np.abs(expected).max())
    assert fit.runs == 12
    assert fit.throughput_before is not None
    assert fit.throughput_after is not None
    assert fit.throughput_before.median_frac == pytest.approx(np.median(np.abs(np.expm1(SMALL))))
    assert fit.throughput_after.median_frac == pytest.approx(
        np.median(np.abs(np.expm1(SMALL + LINES @ expected))), rel=0.05
    )
    assert fit.memory_before is fit.memory_after is None


def test_a_run_that_went_wrong_decides_little(monkeypatch: pytest.MonkeyPatch) -> None:
    log_errors = SMALL + LINES @ [0.3, -0.2, 0.1]
    log_errors[3] += 1.5
    cases, parameters = world(monkeypatch, LINES, log_errors)

    def loss(away: np.ndarray) -> float:
        errors = (log_errors + LINES @ away) / NOISE
        return float(np.sum(2.0 * (np.sqrt(1.0 + errors**2) - 1.0)) + away @ away)

    problem = problem_of(cases, parameters)
    away = np.array([0.1, 0.2, 0.3])
    errors = problem.errors(
        parameters, {p.path: p.value(p.scaled(1.0) + d) for p, d in zip(parameters, away, strict=True)}
    )
    assert problem.loss(errors) == pytest.approx(loss(away))
    least = minimize(loss, np.zeros(3)).x
    found = positions(parameters, calibrate(cases, parameters).values)
    assert loss(found) < loss(least) + 0.02 * (loss(np.zeros(3)) - loss(least))
    assert found == pytest.approx([-0.3, 0.2, -0.1], abs=0.1)


def test_each_run_is_left_out_of_its_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, parameters = world(monkeypatch, LINES, SMALL)
    fit = {p.path: p.value(p.scaled(1.0) + d) for p, d in zip(parameters, ridge(LINES, SMALL), strict=True)}
    for left, values in enumerate(problem_of(cases, parameters).left_out_values(parameters, fit)):
        others = np.arange(12) != left
        expected = ridge(LINES[others], SMALL[others])
        assert positions(parameters, values) == pytest.approx(expected, abs=1e-3)


def test_what_no_run_depends_on_keeps_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slope of s standard deviations leaves 1 / sqrt(1 + s^2): 0.8 is too much to be determined."""
    lines = np.diag([0.5, 0.75 * NOISE, 0.0, 0.5])
    cases, parameters = world(monkeypatch, lines, np.array([0.1, 0.02, 0.03, 0.1]))
    fit = calibrate(cases, parameters)
    assert [e.determined for e in fit.estimates] == [True, False, False, True]
    assert [e.uncertainty for e in fit.estimates] == pytest.approx([0.0995, 0.8, 1.0, 0.0995], rel=1e-3)
    assert [e.after for e in fit.estimates[1:3]] == [1.0, 1.0]
    assert all(e.before == 1.0 and e.confounded_with is None for e in fit.estimates)
    assert [e.marginal for e in fit.estimates] == pytest.approx([e.uncertainty for e in fit.estimates])
    assert set(calibrate(cases, parameters, undetermined=UNTOLD).values) == {parameters[i].path for i in (0, 1, 3)}


def test_parameters_that_runs_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three alike, with much evidence of their sum, two thirds of the variance stay: one is left at its value, and
    half stays of the others."""
    lines = np.hstack([np.full((4, 3), 2.0), np.zeros((4, 1))])
    lines[:, 3] = [0.5, -0.5, 0.5, -0.5]
    cases, parameters = world(monkeypatch, lines, np.full(4, 0.05))
    fit = calibrate(cases, parameters)
    alike = fit.estimates[:3]
    assert sorted(e.determined for e in alike) == [False, True, True]
    for e in alike:
        assert e.marginal == pytest.approx((2 / 3) ** 0.5, rel=1e-2)
        if e.determined:
            assert e.uncertainty == pytest.approx(0.5**0.5, rel=1e-2)
            assert e.confounded_with is None  # it grows by less than a quarter
        else:
            assert e.confounded_with in {p.path for p in parameters[:3]} - {e.parameter.path}
    assert fit.estimates[3].determined
    assert fit.estimates[3].confounded_with is None


def test_more_that_are_alike_make_a_fitted_one_vague(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five, two are fitted: with the others free, what is left of them grows by sqrt((4 / 5) / (1 / 2)) = 1.26."""
    cases, parameters = world(monkeypatch, np.full((4, 5), 2.0), np.full(4, 0.05))
    fitted = [e for e in calibrate(cases, parameters).estimates if e.determined]
    assert len(fitted) == 2
    for e in fitted:
        assert e.marginal / e.uncertainty == pytest.approx(1.6**0.5, rel=1e-3)
        assert e.confounded_with in {p.path for p in parameters} - {e.parameter.path}


def test_a_floor_is_tried_over_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes say nothing of a floor that is under something else."""
    floor = Parameter(path="profile.launch_s", low=1e-6, high=150e-6, spread=1.0, meaning="", is_floor=True)
    cases, _ = world(monkeypatch, np.zeros((6, 1)), np.log(BASE * 60e-6) * np.ones(6))

    def predicted(_cases: object, values: dict[str, float]) -> Predicted:
        ones = np.ones(6)
        rates = ones / np.maximum(30e-6, values.get("profile.launch_s", 5e-6))
        return Predicted(tokens_per_s_per_gpu=rates, memory_bytes=ones, fits=ones > 0)

    monkeypatch.setattr(stack_fit, "predicted", predicted)
    for run in cases[0].runs:
        run.tokens_per_s_per_gpu = 1 / 60e-6
    grid = np.geomspace(150e-6, 1e-6, 20)
    scanned = problem_of(cases, [floor]).scanned([floor])["profile.launch_s"]
    assert scanned == pytest.approx(grid[np.argmin(np.abs(np.log(grid / 60e-6)))])
    assert calibrate(cases, [floor]).values["profile.launch_s"] == pytest.approx(60e-6, rel=0.02)


@pytest.mark.parametrize(
    ("memory_bytes", "free"), [(40e9, np.log(2.0) / 0.1), (80e9, 0.0), (100e9, 0.0), (np.nan, 0.0)]
)
def test_a_run_that_was_out_of_memory_has_none_free(
    memory_bytes: float, free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, _ = world(monkeypatch, np.zeros((2, 1)), np.zeros(2))
    answer = Predicted(tokens_per_s_per_gpu=np.ones(2), memory_bytes=np.full(2, memory_bytes), fits=np.ones(2) > 0)
    monkeypatch.setattr(stack_fit, "predicted", lambda *_: answer)
    assert free_of(cases, {}).tolist() == pytest.approx([free, free])
    assert len(free_of((), {})) == 0


@pytest.mark.parametrize(
    ("gains", "is_better"),
    [
        ((1, 2, 3, 4), True),  # 10 of signed ranks; one standard deviation of four is 5.5
        ((-1, 2, 3, 4), True),
        ((1, -2, 3, 4), True),
        ((1, 2, -3, 4), False),
        ((1, 2, 3, -4), False),
        ((-1, -2, -3, -4), False),
        ((1, 2, 3), False),  # too few
        ((1, 2, 3, np.nan), False),
        ((1, 2, 3, 4, np.nan), True),
    ],
)
def test_better_by_signed_ranks(gains: tuple[float, ...], is_better: bool) -> None:
    """Errors of 5 before, and smaller by so much after; their signs do not matter."""
    assert surely_better(np.full(len(gains), -5.0), 5.0 - np.array(gains, dtype=np.float64)) is is_better


@pytest.mark.parametrize(("runs", "place"), [(3, None), (4, 4), (9, 8), (10, 9), (14, 12)])
def test_the_error_that_holds_four_of_five_new_runs(runs: int, place: int | None) -> None:
    sizes = np.arange(1, runs + 1) / 100.0
    found = _covering(np.append(np.random.default_rng(runs).permutation(np.log1p(sizes)), np.nan))
    assert found == (None if place is None else pytest.approx(place / 100.0))


def test_runs_are_held_back_by_job_where_there_are_several() -> None:
    keys = [i // 4 for i in range(24)]
    away = held_away(keys, 0.25)
    assert sum(away) == 8  # one job is 4, which is less than was asked for; two are not much more
    assert all(len({out for key, out in zip(keys, away, strict=True) if key == job}) == 1 for job in range(6))
    assert sum(held_away([i // 8 for i in range(24)], 0.25)) == 6  # three jobs are too few: single runs
    assert sum(held_away([*range(4), *[9] * 20], 0.25)) == 4  # a job of most runs is never held back
    assert sum(held_away(list(range(24)), 0.0)) == 0


@pytest.mark.parametrize(
    ("fitted", "kept", "is_held_out", "error_frac"),
    [
        (("launch_s", "context_bytes"), (), True, 0.1),
        (("launch_s",), (), False, None),
        (("context_bytes",), (), True, None),  # it says nothing of speed
        (("launch_s", "context_bytes"), ("launch_s",), True, None),
    ],
)
def test_the_checked_error_is_that_of_values_of_speed_that_are_taken(
    fitted: tuple[str, ...], kept: tuple[str, ...], is_held_out: bool, error_frac: float | None
) -> None:
    fit: Any = SimpleNamespace(values={f"profile.{name}": 1.0 for name in fitted})
    held: Any = SimpleNamespace(error_frac=0.1) if is_held_out else None
    own = OwnProfile(fit=fit, left={}, held_out=held, kept_base={f"profile.{n}": "" for n in kept}, warnings=())
    assert own.checked_error_frac == error_frac
    assert set(own.values) == {f"profile.{name}" for name in set(fitted) - set(kept)}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("launch_s", 12.345678e-6, "12.35 us"),
        ("step_overhead_s", 1e-3, "1 ms"),
        ("context_bytes", 1.23456e9, "1.235 GB"),
        ("gemm_scale", 0.987654, 0.9877),
    ],
)
def test_four_digits_are_written(field: str, value: float, text: object) -> None:
    assert written(field, value) == text


def residuals(median_frac: float, bias_frac: float = 0.0, points: int = 9) -> Residuals:
    return Residuals(
        points=points, median_frac=median_frac, p90_frac=median_frac, worst_frac=median_frac, bias_frac=bias_frac
    )


def estimate(after: float, **other: Any) -> Estimate:
    plain: dict[str, Any] = {"before": 1.0, "determined": True, "uncertainty": 0.1, "marginal": 0.2}
    return Estimate(parameter=PARAMETERS[0], after=after, **(plain | other))


STILL = "the error after the fit is still 20%:"


def warned(*, runs: int = 20, held_frac: float = 0.25, is_held_out: bool = True, **changes: Any) -> list[str]:
    """First words of what is said of a fit that is as it should be, but for these changes."""
    fit = {"estimates": (estimate(1.5),), "throughput_after": residuals(0.05), "values": {"profile.stream_scale": 1.5}}
    read = {"simulated": 0, "differ": 1.0, "pairs": (None,) * runs}
    fit |= {name: value for name, value in changes.items() if name in fit}
    read |= {name: value for name, value in changes.items() if name in read}
    held: Any = SimpleNamespace() if is_held_out else None
    return _warnings(SimpleNamespace(**read), SimpleNamespace(**fit), held, held_frac)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        ({"simulated": 3}, ("3 of the records are simulated",)),
        ({"differ": 1.25}, ()),
        ({"differ": 1.3}, ("repeats of one setting differ by up to 30%",)),
        ({"values": {}}, ("the runs determine none",)),
        ({"throughput_after": residuals(0.15)}, ()),
        ({"throughput_after": residuals(0.2)}, (f"{STILL} the runs contradict",)),
        (
            {"throughput_after": residuals(0.2, 0.19)},
            (f"{STILL} all runs have a similar",),
        ),
        (
            {"throughput_after": residuals(0.2, 0.2, 1)},
            (f"{STILL} the fitted parameters",),
        ),
        ({"throughput_after": None}, ()),
        ({"estimates": (estimate(3.0),)}, ("stream_scale is at the limit",)),
        ({"estimates": (estimate(0.1),)}, ("stream_scale is at the limit",)),
        ({"estimates": (estimate(3.0, before=3.0),)}, ()),  # it was there before
        ({"estimates": (estimate(3.0, determined=False),)}, ()),
        ({"is_held_out": False, "held_frac": 0.0}, ("not tested: no runs were held out",)),
        ({"is_held_out": False, "runs": 7}, ("not tested: 7 runs are too few to hold some out (8 are needed)",)),
        ({"is_held_out": False, "runs": 1}, ("not tested: 1 run is too few",)),
        (
            {"estimates": (estimate(1.5, confounded_with="profile.launch_s"),)},
            ("stream_scale and launch_s cannot be distinguished by these runs: stream_scale is fitted on",),
        ),
    ],
)
def test_what_is_said_of_a_fit(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    said = warned(**changes)
    assert len(said) == len(words)
    for sentence, begin in zip(said, words, strict=True):
        assert sentence.startswith(begin)


@pytest.mark.parametrize(("runs", "share", "how"), [(7, 0.25, None), (8, 0.25, 7), (23, 0.25, 22), (24, 0.25, "group")])
def test_few_runs_are_left_out_one_by_one_and_fewer_not_at_all(
    monkeypatch: pytest.MonkeyPatch, runs: int, share: float, how: object
) -> None:
    monkeypatch.setattr(calibration, "_before", lambda pairs, _own: np.full((2, len(pairs)), 0.2))
    monkeypatch.setattr(calibration, "left_out_errors", lambda pairs, _fit: np.full((2, len(pairs)), 0.1))
    monkeypatch.setattr(calibration, "_in_a_group", lambda *_: "group")
    pairs, fit = [SimpleNamespace()] * runs, SimpleNamespace()
    found: Any = held_out_runs(pairs, fit, (), share, pairs)  # type: ignore[arg-type]
    if isinstance(how, int):
        assert (found.runs, found.fitted_runs, found.one_by_one) == (runs, how, True)
        assert (found.throughput_better, found.memory_better) == (True, True)
        assert found.throughput_before.median_frac == pytest.approx(np.expm1(0.2))
        assert found.throughput_after.median_frac == pytest.approx(np.expm1(0.1))
        assert found.error_frac == pytest.approx(np.expm1(0.1))
    else:
        assert found == how
    assert held_out_runs(pairs, fit, (), 0.0, pairs) is None  # type: ignore[arg-type]
