"""Fit what mixtures of experts cost a software stack on one release of it, and show the errors on all other runs.

    python tools/fit_moe_runs.py [--write]

Four parameters of the profile ``fused``, from which ``nemo`` inherits them, are fitted on the runs of one release of
one source (``RELEASE``), which has five GPUs. Nothing else of the profiles is changed. Of earlier releases, the profile
``megatron-core-2025`` (0.13) has a host time of its own.

Each run is then predicted three times: as shipped; with nothing of its source, and with nothing of its release, in any
fit ("unseen"); and with the host time of the newest release ("release unknown"). "Unseen" also takes the values that
``tools/fit_published.py`` fitted to dense runs without the source.

--write puts the values into src/knee/catalog/profiles (kind "fitted"), those without each source into
src/knee/catalog/validation/moe_left_out.toml, and the errors into src/knee/catalog/validation/moe_errors.csv, from
which ``knee simulate`` reads how far it can be trusted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from published_errors import errors_of, write_errors

from knee.base.units import show
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS
from knee.trust.error_table import EXPERTS
from knee.trust.validation.bundled_runs import carried_moe_runs
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_to_job import (
    MOE_LEFT_OUT,
    RunJob,
    catalog_profile,
    job_of,
    left_out_profiles,
    profile_name,
)

CATALOG = Path(__file__).parent.parent / "src/knee/catalog"
SOURCE, RELEASE = "nvidia_megatron_bridge_perf_summary", "26.04.01"
DENSE = {"nemo": "nemo", "nemo-early-2025": "nemo"}
"""Profiles whose values for dense models were fitted -> the stack that they were fitted for."""
OLD = ("megatron-core-2025",)
"""Profiles of earlier releases, which have a host time of their own."""
HOST = "expert_host_s"
HOSTS_S = (2e-3, 4e-3, 6e-3, 8e-3, 10e-3, 12e-3, 14e-3)
"""Host times that are tried first: they say nothing until they are the longest."""
START = {"expert_gemm_scale": 1.0, "expert_stream_scale": 2.0, "expert_kernel_s": 5e-6, "expert_host_s": 3e-3}
"""Where a fit begins, and the middle of the prior: dense products' rates, twice the traffic that is counted, a launch
of CUDA per kernel, and the host time of some fifty launches of PyTorch per pass (all assumed)."""
SPREADS = {"expert_gemm_scale": 0.05, "expert_stream_scale": 0.5, "expert_kernel_s": 0.5, "expert_host_s": 0.7}
"""One standard deviation of the prior, of the logarithm."""
PRIOR = 0.01
"""Weight of the prior beside the mean size of errors: few runs of stacks that differ do not move a value far."""
STEPS = {"expert_gemm_scale": 1.1, "expert_stream_scale": 1.3, "expert_kernel_s": 1.3, "expert_host_s": 1.4}
"""First factor by which each is moved; its root in every later round."""
BOUNDS = {"expert_gemm_scale": (0.5, 1.04), "expert_stream_scale": (1.0, 6.0)}
"""Of the rate of products as in ``specs.profile_parameters``; memory-bound kernels move at least what is counted."""
ROUNDS = 3
DIGITS = 3
LARGE_ERRORS = 0.3
"""Weight of the root mean square beside the mean size: medians alone would give up the largest errors."""

Values = dict[str, float]
Errors = Mapping[Setting, tuple[float, float]]


def main(arguments: Sequence[str]) -> None:
    """Fit, judge, write."""
    runs = [run for run in carried_moe_runs().runs if run.status == "ok"]
    newest = [run for run in runs if run.setting.source == SOURCE and run.setting.software == RELEASE]
    values = fitted(newest, START)
    before = {name: [run for run in runs if profile_name(run.setting) == name] for name in OLD}
    old = {name: fitted(some, values, (HOST,))[HOST] for name, some in before.items()}
    print(f"{RELEASE}, {len(newest)} runs: {values}\nearlier releases: {old}")
    shipped = errors_of(runs, asking(values, old))
    print_errors("as shipped", shipped)
    left_out = {
        source: without(source, runs, newest, values) for source in dict.fromkeys(r.setting.source for r in runs)
    }
    unseen = errors_of(runs, lambda setting: job_of(setting, profile=stand_in(setting, left_out)))
    print_errors("source and release left out", unseen)
    print_errors("release unknown", errors_of(runs, asking(values)))
    if "--write" in arguments:
        write_values("fused", values, f"on {len(newest)} runs of release {RELEASE}")
        for name, host_s in old.items():
            write_values(name, {HOST: host_s}, f"on the {len(before[name])} runs of earlier releases")
        write_left_out(runs, left_out)
        write_errors(EXPERTS, runs, job_of, shipped, unseen)


def without(source: str, runs: Sequence[PublishedRun], newest: Sequence[PublishedRun], shipped: Values) -> Values:
    """Values fitted without a source: on the newest release where it is another source's, else on all other sources.
    Earlier releases of the fitted source are predicted without the release that was fitted. Sources that no fit saw
    have the shipped values."""
    if source != SOURCE and source not in left_out_profiles():
        return shipped
    chosen = [run for run in runs if run.setting.source != source] if source == SOURCE else newest
    values = fitted(chosen, START, left_out=source)
    print(f"without {source}, on {len(chosen)} runs: {values}")
    return values


def stand_in(setting: Setting, left_out: Mapping[str, Values]) -> Profile:
    """The profile that predicts a run where nothing is known of its source."""
    return replace(dense_profile(profile_name(setting), setting.source), **left_out[setting.source])


def dense_profile(name: str, left_out: str | None) -> Profile:
    """A profile with the values for dense models that were fitted without a source."""
    profile = catalog_profile(name)
    dense = left_out_profiles().get(left_out or "", {}).get(DENSE.get(name, ""))
    names = [p.path.partition(".")[2] for p in PARAMETERS]
    return profile if dense is None else replace(profile, **{n: getattr(dense, n) for n in names})


def fitted(
    runs: Sequence[PublishedRun], start: Values, names: Sequence[str] = tuple(START), left_out: str | None = None
) -> Values:
    """The values with the least errors, one moved after the other."""
    values, steps = dict(start), dict(STEPS)
    least = cost(runs, values, left_out)
    for host_s in HOSTS_S:
        found = cost(runs, values | {HOST: host_s}, left_out)
        if found < least:
            values, least = values | {HOST: host_s}, found
    for _ in range(ROUNDS):
        for name in names:
            for way in (1.0, -1.0):
                while True:
                    low, high = BOUNDS.get(name, (0.0, np.inf))
                    moved = values | {name: min(max(values[name] * steps[name] ** way, low), high)}
                    found = cost(runs, moved, left_out) if moved != values else least
                    if not found < least - 1e-5:
                        break
                    values, least = moved, found
        steps = {name: step**0.5 for name, step in steps.items()}
    return {name: float(f"{value:.{DIGITS}g}") for name, value in values.items()}


def cost(runs: Sequence[PublishedRun], values: Values, left_out: str | None = None) -> float:
    """Size of the errors' logarithms; each source counts once. Values far from the prior cost more."""
    far = sum((np.log(values[name] / START[name]) / spread) ** 2 for name, spread in SPREADS.items())
    found = errors_of(runs, asking(values, left_out=left_out))
    sources: dict[str, list[float]] = {}
    for setting, (error, _) in found.items():
        if np.isfinite(error):
            sources.setdefault(setting.source, []).append(float(np.log1p(error)))
    sizes = [np.mean(np.abs(e)) + LARGE_ERRORS * np.sqrt(np.mean(np.square(e))) for e in sources.values()]
    return float(np.mean(sizes) + PRIOR * far)


def asking(
    values: Values, old: Mapping[str, float] | None = None, left_out: str | None = None
) -> Callable[[Setting], RunJob]:
    """How a run is asked for, with these values of the newest release and the host times of earlier ones."""

    def ask(setting: Setting) -> RunJob:
        name = profile_name(setting)
        changed = values | {HOST: (old or {}).get(name, values[HOST])}
        return job_of(setting, profile=replace(dense_profile(name, left_out), **changed))

    return ask


def print_errors(title: str, found: Errors) -> None:
    """By source and release, and each source counting once."""
    groups: dict[str, list[float]] = {}
    for setting, (error, _) in found.items():
        if np.isfinite(error):
            groups.setdefault(setting.source, []).append(error)
            if setting.source == SOURCE:
                groups.setdefault(f"  release {setting.software}", []).append(error)
    print(f"\n{title:40}{'runs':>6}{'median':>9}{'p90':>8}{'bias':>8}")
    for name, some in groups.items():
        sizes = np.abs(some)
        print(f"{name:40}{len(some):6}{np.median(sizes):9.1%}{np.quantile(sizes, 0.9):8.1%}{np.median(some):+8.1%}")
    medians = [np.median(np.abs(some)) for name, some in groups.items() if not name.startswith(" ")]
    every = [abs(error) for error, _ in found.values() if np.isfinite(error)]
    print(f"{'median over sources':46}{np.median(medians):9.1%}\n{'all runs':46}{np.median(every):9.1%}")


def write_values(profile: str, values: Mapping[str, float], what: str) -> None:
    """Replace the lines of the fitted parameters in a profile's table."""
    for path in sorted((CATALOG / "profiles").glob("*.toml")):
        head, start, rest = path.read_text(encoding="utf-8").partition(f"[{profile}]\n")
        if not start:
            continue
        body, gap, tail = rest.partition("\n[")
        kept = [line for line in body.rstrip("\n").splitlines() if not re.match(rf"({'|'.join(values)}) = ", line)]
        lines = [
            f"{name} = {{ value = {_written(name, value)}, "
            f'kind = "fitted", source = "tools/fit_moe_runs.py {what} (catalog/validation/moe_runs.csv)" }}'
            for name, value in values.items()
        ]
        text = head + start + "\n".join([*kept, *lines]) + "\n" + (f"\n{gap.lstrip()}" if gap else "") + tail
        path.write_text(text, encoding="utf-8")


def _written(name: str, value: float) -> str:
    return f'"{show(value, "s", DIGITS).replace("µ", "u")}"' if name.endswith("_s") else f"{value:g}"


def write_left_out(runs: Sequence[PublishedRun], left_out: Mapping[str, Values]) -> None:
    """For ``knee validate --unseen``."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for setting in (run.setting for run in runs):
        name, dense = profile_name(setting), dense_profile(profile_name(setting), setting.source)
        shipped = catalog_profile(name)
        changed = {f: getattr(dense, f) for p in PARAMETERS if (f := p.path.partition(".")[2])}
        moved = {field: value for field, value in changed.items() if not np.isclose(value, getattr(shipped, field))}
        tables.setdefault(setting.source, {})[name] = {"profile": name, **moved, **left_out[setting.source]}
    (CATALOG / "validation" / MOE_LEFT_OUT).write_text(tomli_w.dumps(tables), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
