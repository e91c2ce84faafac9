"""Fit the generic profiles and each software stack's on the published runs that knee carries, and on all but a source.

    python tools/fit_published.py [--write] [--jobs N] [--only SOURCE ...]

A profile is fitted on the runs of its own stack and of the stacks that are laid over it, asked with the profile itself,
so that a generic one learns what its stacks have in common. Each parameter of ``specs.profile_parameters`` starts from
the value of the profile below, fitted in the same way (the generic ones: from ``PRIORS``); what the runs do not
determine stays there. A source counts as at most ``MOST_RUNS`` runs.

For each source the fit is made once more without it. The source is then predicted by its stack's profile where other
sources have that stack, and else by the nearest profile below that other sources have: a generic one, without the facts
that were learned from the source. These are the errors of runs that nobody fitted on.

--write puts the values into src/knee/catalog/profiles (kind "fitted"), those without each source into
src/knee/catalog/validation/left_out.toml, and the errors into src/knee/catalog/validation/errors.csv, from which
``knee simulate`` reads how far it can be trusted.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from knee.hardware_fit.residuals import Residuals
from knee.profile_fit.stack_fit import StackFit, calibrate
from knee.specs.load import load_profile
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter
from knee.trust.error_table import error_rows
from knee.units import dimension, show
from knee.validation.carried_set import carried_runs
from knee.validation.published_runs import PublishedRun, Setting
from knee.validation.run_to_job import RunJob, job_of
from knee.validation.simulated_runs import cases_of, predicted
from knee.validation.stacks import profile_name

CATALOG = Path(__file__).parent.parent / "src/knee/catalog"
PROFILES, ERRORS = CATALOG / "profiles", CATALOG / "validation/errors.csv"
LEFT_OUT = CATALOG / "validation/left_out.toml"
GENERIC = ("eager", "compiled", "fused", "xla")
"""Profiles that stand for stacks that nobody knows; what they are laid over is not fitted."""
PRIORS: Mapping[str, Mapping[str, float]] = {
    "eager": {"launch_s": 6e-6, "step_overhead_s": 0.02, "hop_scale": 1.6, "bandwidth_scale_frac": 0.8},
    "compiled": {},
    "fused": {"launch_s": 5e-6, "step_overhead_s": 0.01, "tp_overlap_frac": 0.75, "p2p_overlap_frac": 0.8},
    "xla": {},
}
"""What a generic profile's values were before any run was seen, where the catalogue's table has fitted ones."""
FEWEST = 6
"""Runs below which a profile keeps the values of the one below."""
MOST_RUNS = 48
DIGITS = 3

Values = dict[str, float]
Errors = dict[Setting, tuple[float, float]]


@cache
def tables() -> dict[str, dict[str, Any]]:
    """All tables of profiles, by name."""
    return {
        name: table
        for path in sorted(PROFILES.glob("*.toml"))
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def bases(name: str) -> list[str]:
    """The profile and those that it is laid over, nearest first, down to a generic one."""
    found = [name]
    while found[-1] not in GENERIC and "base" in tables()[found[-1]]:
        found.append(str(tables()[found[-1]]["base"]))
    return found


def is_fact(name: str, parameter: Parameter) -> bool:
    """Whether a stack's table states a value that was not fitted."""
    value = tables()[name].get(parameter.path.partition(".")[2])
    return name not in GENERIC and isinstance(value, dict) and value.get("kind") != "fitted"


def rounded(values: Values) -> Values:
    """As they are written."""
    shares = {p.path for p in PARAMETERS if p.is_share}
    return {k: round(v, DIGITS) if k in shares else float(f"{v:.{DIGITS}g}") for k, v in values.items()}


class Fit:
    """Profiles fitted on all sources but some."""

    def __init__(self, runs: Sequence[PublishedRun], without: str | None = None) -> None:
        self.runs = [run for run in runs if run.setting.source != without and run.status == "ok"]
        self.fits: dict[str, StackFit] = {}
        self.profiles: dict[str, Profile] = {}

    def members(self, name: str) -> list[PublishedRun]:
        """Runs of the profile and of those laid over it, each source's thinned evenly."""
        mine: dict[str, list[PublishedRun]] = {}
        for run in self.runs:
            if name in bases(profile_name(run.setting)):
                mine.setdefault(run.setting.source, []).append(run)
        return [run for some in mine.values() for run in some[:: -(-len(some) // MOST_RUNS)]]

    def profile(self, name: str) -> Profile:
        """The profile with its fitted values."""
        if name not in self.profiles:
            own, *below = bases(name)
            start = self._start(name, self.profile(below[0]) if below else None)
            runs = self.members(own)
            cases = cases_of(runs, lambda setting: job_of(setting, profile=start))[0] if len(runs) >= FEWEST else []
            if sum(len(case.runs) for case in cases) >= FEWEST:
                fit = calibrate(cases, [p for p in PARAMETERS if not is_fact(name, p)])
                self.fits[name] = fit
                start = _with(start, rounded(fit.values))
            self.profiles[name] = start
        return self.profiles[name]

    def _start(self, name: str, below: Profile | None) -> Profile:
        """A profile before it is fitted: its own facts, and else what the one below has."""
        profile = load_profile(name).spec
        if below is None:
            return replace(profile, **PRIORS[name])
        names = [p.path.partition(".")[2] for p in PARAMETERS if not is_fact(name, p)]
        return replace(profile, **{n: getattr(below, n) for n in names})

    def errors(self, runs: Sequence[PublishedRun], name: str | None = None) -> Errors:
        """Of throughput and memory of runs predicted by their stack's profile, or by the one that is named."""

        def ask(setting: Setting) -> RunJob:
            return job_of(setting, profile=self.profile(name or profile_name(setting)))

        cases, _ = cases_of(runs, ask)
        answer = predicted(cases)
        flat = [run for case in cases for run in case.runs]
        rate = answer.tokens_per_s_per_gpu / np.array([r.tokens_per_s_per_gpu or np.nan for r in flat]) - 1.0
        memory = answer.memory_bytes / np.array([r.memory_bytes or np.nan for r in flat]) - 1.0
        return {run.setting: (float(a), float(b)) for run, a, b in zip(flat, rate, memory, strict=True)}


def _with(profile: Profile, values: Values) -> Profile:
    return replace(profile, **{path.partition(".")[2]: value for path, value in values.items()})


def stand_in(name: str, source: str, runs: Sequence[PublishedRun]) -> str:
    """The profile that predicts runs of ``name`` where nothing is known of their source."""
    for candidate in bases(name):
        if any(r.setting.source != source and candidate in bases(profile_name(r.setting)) for r in runs):
            return candidate
    return bases(name)[-1]


def fitted_without(source: str | None) -> tuple[dict[str, StackFit], Errors, dict[str, Any]]:
    """The fits without a source, the errors of its runs and the profiles that predict them; all runs for None."""
    runs = [run for run in carried_runs().runs if run.status == "ok"]
    fit = Fit(runs, source)
    errors: Errors = {}
    by: dict[str, Any] = {}
    mine = [run for run in runs if source in (None, run.setting.source)]
    for name in dict.fromkeys(profile_name(run.setting) for run in mine):
        some = [run for run in mine if profile_name(run.setting) == name]
        used = name if source is None else stand_in(name, source, runs)
        errors |= fit.errors(some, used)
        by[name] = {
            "profile": used,
            **{p.path.partition(".")[2]: value_in(fit.profile(used), p) for p in PARAMETERS},
        }
    return fit.fits, errors, by


def main(arguments: Sequence[str]) -> None:
    """Fit, judge, write."""
    only = arguments[arguments.index("--only") + 1 :] if "--only" in arguments else []
    jobs = int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 1
    runs = [run for run in carried_runs().runs if run.status == "ok"]
    sources = [s for s in dict.fromkeys(run.setting.source for run in runs) if not only or s in only]
    with ProcessPoolExecutor(jobs) as pool:
        shipped, *without = pool.map(fitted_without, [None, *sources])
    for name, fit in shipped[0].items():
        print_fit(name, fit)
    own, unseen = shipped[1], {setting: error for _, errors, _ in without for setting, error in errors.items()}
    left_out = {source: by for source, (_, _, by) in zip(sources, without, strict=True)}
    for source in sources:
        mine = [run for run in runs if run.setting.source == source]
        print_source(source, own, unseen, mine, left_out[source])
    print_errors({"as shipped": own, "unseen": unseen}, [run for run in runs if run.setting in unseen])
    if "--write" in arguments:
        write_values(shipped[0])
        LEFT_OUT.write_text(tomli_w.dumps(left_out), encoding="utf-8")
        write_errors(runs, own, unseen)


def value_in(profile: Profile, p: Parameter) -> float:
    """A parameter's value, as it is written."""
    return rounded({p.path: float(getattr(profile, p.path.partition(".")[2]))})[p.path]


def print_fit(name: str, found: StackFit) -> None:
    """What was determined."""
    before, after = found.throughput_before, found.throughput_after
    assert before is not None
    assert after is not None
    print(f"{name}: {found.runs} runs, median {before.median_frac:.1%} -> {after.median_frac:.1%}")
    for e in found.estimates:
        if e.determined:
            print(f"    {e.parameter.path:32} {e.before:10.4g} -> {e.after:10.4g}   ({e.uncertainty:.0%} of its prior)")


def print_source(
    source: str, own: Errors, unseen: Errors, runs: Sequence[PublishedRun], by: Mapping[str, Mapping[str, Any]]
) -> None:
    """One source, as soon as it is known."""
    pairs = [np.array([t[r.setting][0] for r in runs if r.setting in t]) for t in (own, unseen)]
    cells = "  ".join(f"{np.nanmedian(abs(e)):6.1%} ({np.nanmedian(e):+6.1%})" for e in pairs)
    used = ", ".join(f"{name} by {v['profile']}" for name, v in by.items())
    print(f"{source:38}{cells}   {used}", flush=True)


def print_errors(tables_: Mapping[str, Errors], judged: Sequence[PublishedRun]) -> None:
    """By source, and each source counting once."""
    sources = dict.fromkeys(run.setting.source for run in judged)
    print(f"\n{'source':38}{'runs':>6}" + "".join(f"{name:>16}" for name in tables_))
    medians: dict[str, list[float]] = {name: [] for name in tables_}
    for source in sources:
        cells = []
        for name, table in tables_.items():
            errors = np.array([e for s, (e, _) in table.items() if s.source == source and np.isfinite(e)])
            found = Residuals.of(1.0 + errors, np.ones_like(errors))
            medians[name].append(found.median_frac)
            cells.append(f"{found.median_frac:7.1%} {found.p90_frac:7.1%}")
        print(f"{source:38}{found.points:6}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"{'median over sources':44}" + "".join(f"{np.median(m):8.1%}{'':8}" for m in medians.values()))
    everything = [np.array([abs(e) for e, _ in table.values() if np.isfinite(e)]) for table in tables_.values()]
    cells = [f"{np.median(e):7.1%} {np.quantile(e, 0.9):7.1%}" for e in everything]
    print(f"{'all runs (median, p90)':38}{len(everything[0]):6}" + "".join(f"{cell:>16}" for cell in cells))


def write_values(fits: Mapping[str, StackFit]) -> None:
    """Replace the fitted lines of each profile's table."""
    names = "|".join(re.escape(p.path.partition(".")[2]) for p in PARAMETERS)
    for path in sorted(PROFILES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        for profile, found in fits.items():
            head, start, rest = text.partition(f"[{profile}]\n")
            if not start:
                continue
            body, gap, tail = rest.partition("\n[")
            fitted = _fitted_lines(found)
            fitted_names = "|".join(fitted) if profile in GENERIC and fitted else None
            dropped = rf"({names}) = .*kind = \"fitted\"" + (rf"|({fitted_names}) = " if fitted_names else "")
            lines = [x for x in body.rstrip("\n").splitlines() if not re.match(dropped, x)]
            text = (
                head
                + start
                + "\n".join([*lines, *fitted.values()])
                + "\n"
                + (f"\n{gap.lstrip()}" if gap else "")
                + tail
            )
        path.write_text(text, encoding="utf-8")


def _fitted_lines(found: StackFit) -> dict[str, str]:
    """Name -> its line, of values that the fit moved."""
    assert found.throughput_after is not None
    assert found.throughput_before is not None
    why = (
        f"tools/fit_published.py on {found.runs} carried runs: median error "
        f"{found.throughput_before.median_frac:.1%} before, {found.throughput_after.median_frac:.1%} after"
    )
    unmoved = rounded({e.parameter.path: e.before for e in found.estimates})
    lines = {}
    for path, value in rounded(found.values).items():
        if value == unmoved[path]:
            continue
        name = path.partition(".")[2]
        written = {
            "s": f'"{show(value, "s", DIGITS).replace("µ", "u")}"',
            "bytes": f'"{value / 1e9:g} GB"',
        }.get(dimension(name) or "", f"{value:g}")
        lines[name] = f'{name} = {{ value = {written}, kind = "fitted", source = "{why}" }}'
    return lines


def write_errors(runs: Sequence[PublishedRun], own: Errors, unseen: Errors) -> None:
    """For ``knee simulate``."""
    rows = error_rows(
        [
            (run, job_of(run.setting), *own[run.setting], unseen[run.setting][0])
            for run in runs
            if run.setting in unseen
        ]
    )
    with ERRORS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {len(rows)} errors")


if __name__ == "__main__":
    main(sys.argv[1:])
