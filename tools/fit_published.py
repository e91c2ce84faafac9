"""Fit each software stack's profile on the published runs that knee carries, and the generic ones from the stacks.

    python tools/fit_published.py [--write] [--jobs N]

A stack is fitted on its own runs: each parameter of ``specs.profile_parameters`` starts from the value that its generic
profile had before any run was seen (``PRIORS``); what the runs do not determine stays there. A generic profile has, of
each parameter, the median over its stacks, of which that value stands for those that lack to three. A source counts as
at most ``MOST_RUNS`` runs. The host's time for a launch is the same question for every stack whose Python launches
kernel by kernel, and few sources have steps small enough to tell it: a stack whose runs do not tell it has the median
of those that do, knee's own measured one among them.

For each source the same is done without it. Its runs are then predicted by their stack's profile where other sources
have that stack, and else by the generic one, without the facts that were learned from the source. These are the errors
of runs that nobody fitted on.

--write puts the values into src/knee/catalog/profiles (kind "fitted"), those without each source into
src/knee/catalog/validation/left_out.toml, and the errors into src/knee/catalog/validation/errors.csv, from which
``knee simulate`` reads how far it can be trusted.
"""

from __future__ import annotations

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
from published_errors import errors_of, write_errors

from knee.base.units import dimension, show
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.load import load_profile
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter
from knee.trust.profile_fit.stack_fit import StackFit, calibrate
from knee.trust.validation.bundled_runs import carried_runs
from knee.trust.validation.published_runs import PublishedRun, Setting
from knee.trust.validation.run_errors import cases_of
from knee.trust.validation.run_to_job import RunJob, job_of, profile_name

CATALOG = Path(__file__).parent.parent / "src/knee/catalog"
PROFILES, ERRORS = CATALOG / "profiles", CATALOG / "validation/errors.csv"
LEFT_OUT = CATALOG / "validation/left_out.toml"
GENERIC = ("eager", "compiled", "fused", "megatron-2021", "xla")
"""Profiles that stand for stacks that nobody knows."""
_EAGER = {
    "launch_s": 18e-6,
    "issue_s": 0.0,
    "crowded_issue_s": 0.0,
    "step_overhead_s": 0.02,
    "gemm_scale": 1.0,
    "attention_scale": 1.0,
    "stream_scale": 1.0,
    "compute_slowdown_frac": 0.19,
    "hop_scale": 1.4,
    "bandwidth_scale_frac": 0.8,
    "tp_overlap_frac": 0.0,
    "p2p_overlap_frac": 0.0,
    "cp_overlap_frac": 0.5,
    "skew_s": 0.5e-3,
    "straggler_frac": 0.01,
    "context_bytes": 2e9,
    "allocator_frac": 0.03,
}
_FUSED = _EAGER | {
    "step_overhead_s": 0.01,
    "tp_overlap_frac": 0.75,
    "p2p_overlap_frac": 0.8,
    "cp_overlap_frac": 0.8,
}
PRIORS: Mapping[str, Mapping[str, float]] = {
    "eager": _EAGER,
    "compiled": _EAGER | {"launch_s": 34e-6},
    "fused": _FUSED,
    "megatron-2021": _FUSED | {"tp_overlap_frac": 0.3, "p2p_overlap_frac": 0.0},
    "xla": _FUSED | {"launch_s": 5e-6},
}
"""Values of the generic profiles before any run was seen; their sources are those that the catalogue had for them:
dispatch of eager PyTorch, arXiv 2507.03114 for contention, NVIDIA/nccl#2409 for hops in use, userbuffers and
--overlap-p2p-communication for what Megatron hides."""
LAUNCH, ATTENTION = "profile.launch_s", "profile.attention_scale"
LAUNCHED_ONE_BY_ONE = ("eager", "fused", "megatron-2021")
"""Profiles whose Python launches kernel by kernel."""
FEWEST_STACKS = 3
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
    """Profiles fitted on all sources but one."""

    def __init__(self, runs: Sequence[PublishedRun], without: str | None = None) -> None:
        self.without = without
        self.groups: dict[str, list[PublishedRun]] = {}
        for run in runs:
            if run.setting.source != without:
                self.groups.setdefault(profile_name(run.setting), []).append(run)

    def stack(self, name: str) -> StackFit | None:
        """A stack fitted on its own runs; None where they are too few."""
        sources = {run.setting.source for run in self.groups.get(name, [])}
        # without a source that had none of the stack's runs the fit is that of all
        without = self.without if self.without in _sources_of(name) else None
        return fitted_stack(name, without) if sources else None

    def generic(self, root: str) -> Profile:
        """Of each parameter, the median over the stacks that are laid over this profile; what it was before any run was
        seen stands for stacks that lack, so that there are three at least."""
        start = self.with_launches(replace(load_profile(root).spec, **PRIORS[root]), root)
        stacks = [self.profile(name) for name in self.groups if name not in GENERIC and bases(name)[-1] == root]
        stacks += (FEWEST_STACKS - len(stacks)) * [start]
        values: Values = {}
        for p in PARAMETERS:
            name = p.path.partition(".")[2]
            if p.path == LAUNCH and root in LAUNCHED_ONE_BY_ONE:
                continue
            middle = np.median([p.scaled(p.inside(getattr(of, name))) for of in stacks])
            if middle > p.scaled(p.low) or getattr(start, name) > 0:  # no less than the bound stands for nothing
                values[p.path] = p.value(float(middle))
        return _with(start, rounded(values))

    def profile(self, name: str) -> Profile:
        """A profile with its fitted values."""
        if name in GENERIC:
            return self.generic(name)
        fit = self.stack(name)
        start = self.with_launches(start_of(name), bases(name)[-1])
        return start if fit is None else _with(start, rounded(fit.values))

    def with_launches(self, profile: Profile, root: str) -> Profile:
        """A profile before its own runs are seen, with the host's time for a launch that other stacks have."""
        if root not in LAUNCHED_ONE_BY_ONE:
            return profile
        middle = np.median(np.log(list(self.launches().values())))
        return _with(profile, rounded({LAUNCH: float(np.exp(middle))}))

    def launches(self) -> dict[str, float]:
        """Stack -> the host's time for a launch, of those whose runs tell it."""
        names = [name for name in self.groups if name not in GENERIC and bases(name)[-1] in LAUNCHED_ONE_BY_ONE]
        fits = {name: fit for name in names if (fit := self.stack(name)) is not None}
        told = {name: fit.values[LAUNCH] for name, fit in fits.items() if LAUNCH in fit.values}
        return told | {"knee": load_profile("knee").spec.launch_s}

    def errors(self, runs: Sequence[PublishedRun], name: str | None = None) -> Errors:
        """Of throughput and memory of runs predicted by their stack's profile, or by the one that is named."""
        profiles = {n: self.profile(n) for n in ({name} if name else {profile_name(run.setting) for run in runs})}

        def ask(setting: Setting) -> RunJob:
            return job_of(setting, profile=profiles[name or profile_name(setting)])

        return errors_of(runs, ask)


def start_of(name: str) -> Profile:
    """A stack before it is fitted: its own facts, and else what its generic profile was before any run was seen."""
    root = bases(name)[-1]
    chain = bases(name)[:-1]
    free = {
        key: value
        for key, value in PRIORS[root].items()
        if not any(is_fact(table, p) for table in chain for p in PARAMETERS if p.path == f"profile.{key}")
    }
    return replace(load_profile(name).spec, **free)


@cache
def usable_runs() -> tuple[PublishedRun, ...]:
    """Carried runs that ran."""
    return tuple(run for run in carried_runs().runs if run.status == "ok")


@cache
def _sources_of(name: str) -> frozenset[str]:
    return frozenset(run.setting.source for run in usable_runs() if profile_name(run.setting) == name)


KNOWN: dict[tuple[str, str | None], StackFit | None] = {}
"""Fits that were made already."""


def fitted_stack(name: str, without: str | None) -> StackFit | None:
    """A stack fitted on its runs, each source's thinned evenly; None where they are too few."""
    if (name, without) not in KNOWN:
        KNOWN[name, without] = _fitted_stack(name, without)
    return KNOWN[name, without]


def _fitted_stack(name: str, without: str | None) -> StackFit | None:
    mine: dict[str, list[PublishedRun]] = {}
    for run in usable_runs():
        if profile_name(run.setting) == name and run.setting.source != without and not _limited(run.setting):
            mine.setdefault(run.setting.source, []).append(run)
    runs = [run for some in mine.values() for run in some[:: -(-len(some) // MOST_RUNS)]]
    start = start_of(name)
    cases = cases_of(runs, lambda setting: job_of(setting, profile=start))[0]
    if sum(len(case.runs) for case in cases) < FEWEST:
        return None
    # which attention kernel ran is stated by the rows, and what it takes by the GPU: a stack's few lengths tell no more
    free = [p for p in PARAMETERS if p.path != ATTENTION and not _fact(name, p)]
    return calibrate(cases, free)


def _limited(setting: Setting) -> bool:
    """Whether the source says that its boards had a power limit, and not which: that is no fact about the stack."""
    return setting.gpu in source_facts().get(setting.source, {}).get("limited_gpus", ())


@cache
def source_facts() -> dict[str, dict[str, Any]]:
    """What is known of each source."""
    return tomllib.loads((CATALOG / "validation/sources.toml").read_text(encoding="utf-8"))


def _with(profile: Profile, values: Values) -> Profile:
    return replace(profile, **{path.partition(".")[2]: value for path, value in values.items()})


def stand_in(name: str, source: str) -> str:
    """The profile that predicts runs of ``name`` where nothing is known of their source."""
    return name if _sources_of(name) - {source} else bases(name)[-1]


def fit_pair(pair: tuple[str, str | None]) -> StackFit | None:
    """For a pool of processes."""
    return fitted_stack(*pair)


def main(arguments: Sequence[str]) -> None:
    """Fit, judge, write."""
    jobs = int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 1
    runs = usable_runs()
    names = [n for n in dict.fromkeys(profile_name(run.setting) for run in runs) if n not in GENERIC]
    sources = list(dict.fromkeys(run.setting.source for run in runs))
    pairs = [(name, None) for name in names] + [(n, s) for n in names for s in sources if s in _sources_of(n)]
    fits = fit_all(pairs, jobs)
    shipped = Fit(runs)
    for name in names:
        if (fit := fits[name, None]) is not None:
            print_fit(name, fit)
    own, unseen = shipped.errors(runs), {}
    left_out: dict[str, dict[str, Any]] = {}
    for source in sources:
        mine = [run for run in runs if run.setting.source == source]
        without = Fit(runs, source)
        for name in dict.fromkeys(profile_name(run.setting) for run in mine):
            used = stand_in(name, source)
            unseen |= without.errors([run for run in mine if profile_name(run.setting) == name], used)
            profile = without.profile(used)
            values = {p.path.partition(".")[2]: value_in(profile, p) for p in PARAMETERS}
            left_out.setdefault(source, {})[name] = {"profile": used, **values}
        print_source(source, own, unseen, mine, left_out[source])
    print_errors({"as shipped": own, "unseen": unseen}, runs)
    for root in GENERIC:
        profile = shipped.generic(root)
        print(root, {p.path.partition(".")[2]: value_in(profile, p) for p in PARAMETERS})
    if "--write" in arguments:
        write_values({n: f for (n, s), f in fits.items() if s is None and f is not None}, shipped)
        LEFT_OUT.write_text(tomli_w.dumps(left_out), encoding="utf-8")
        write_errors(ERRORS, runs, job_of, own, unseen)


def fit_all(pairs: Sequence[tuple[str, str | None]], jobs: int) -> dict[tuple[str, str | None], StackFit | None]:
    """Every fit once, in parallel; they are remembered."""
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            found = dict(zip(pairs, pool.map(fit_pair, pairs), strict=True))
        KNOWN.update(found)
        return found
    return {pair: fitted_stack(*pair) for pair in pairs}


def _fact(name: str, p: Parameter) -> bool:
    """Whether the stack, or one that it is laid over, states the value."""
    return any(is_fact(table, p) for table in bases(name)[:-1])


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


def write_values(fits: Mapping[str, StackFit], shipped: Fit) -> None:
    """Replace the fitted lines of each profile's table.

    What a fit leaves as it was is written too where a profile below has another value now, which it would inherit."""
    generics = {root: shipped.generic(root) for root in GENERIC}
    final = {root: {p.path: value_in(profile, p) for p in PARAMETERS} for root, profile in generics.items()}
    before = {root: rounded({f"profile.{name}": value for name, value in PRIORS[root].items()}) for root in generics}
    changed = [p.path for p in PARAMETERS if any(final[root][p.path] != before[root][p.path] for root in generics)]
    lines = {}
    for root in generics:
        stacks = [name for name in fits if bases(name)[-1] == root]
        completed = "" if len(stacks) >= FEWEST_STACKS else ", completed to three values with the prior value"
        why = f"tools/fit_published.py: median of the stacks {', '.join(stacks)}{completed}"
        lines[root] = _lines({path: final[root][path] for path in changed if path != LAUNCH}, why)
        lines[root] |= _launch_lines(shipped, root, generics[root])
    for name, found in fits.items():
        start = shipped.with_launches(start_of(name), bases(name)[-1])
        kept = [p for p in PARAMETERS if p.path in changed and p.path != LAUNCH and not _fact(name, p)]
        lines[name] = _lines(
            {p.path: value_in(start, p) for p in kept},
            "tools/fit_published.py: the prior value, which the runs do not change",
        )
        lines[name] |= _launch_lines(shipped, bases(name)[-1], start) | _fitted_lines(found)
    names = "|".join(re.escape(p.path.partition(".")[2]) for p in PARAMETERS)
    for path in sorted(PROFILES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        for profile_, fitted in lines.items():
            head, start, rest = text.partition(f"[{profile_}]\n")
            if not start:
                continue
            body, gap, tail = rest.partition("\n[")
            replaced = "|".join(fitted) or "nothing"
            dropped = rf"({names}) = .*kind = \"fitted\"|({replaced}) = "
            kept = [x for x in body.rstrip("\n").splitlines() if not re.match(dropped, x)]
            text = head + start + "\n".join([*kept, *fitted.values()]) + "\n"
            text += (f"\n{gap.lstrip()}" if gap else "") + tail
        path.write_text(text, encoding="utf-8")


def _launch_lines(shipped: Fit, root: str, profile: Profile) -> dict[str, str]:
    """The line of a launch's time where the stack's own runs do not tell it."""
    if root not in LAUNCHED_ONE_BY_ONE:
        return {}
    told = ", ".join(f"{name} {1e6 * time:.0f} us" for name, time in shipped.launches().items())
    why = f"tools/fit_published.py: median of the stacks whose runs determine it ({told})"
    return _lines({LAUNCH: profile.launch_s}, why)


def _fitted_lines(found: StackFit) -> dict[str, str]:
    """Name -> its line, of values that the fit moved."""
    assert found.throughput_after is not None
    assert found.throughput_before is not None
    why = (
        f"tools/fit_published.py on {found.runs} published runs: median error "
        f"{found.throughput_before.median_frac:.1%} before, {found.throughput_after.median_frac:.1%} after"
    )
    unmoved = rounded({e.parameter.path: e.before for e in found.estimates})
    return _lines({path: value for path, value in rounded(found.values).items() if value != unmoved[path]}, why)


def _lines(values: Mapping[str, float], why: str) -> dict[str, str]:
    """Name -> its line in a table."""
    lines = {}
    for path, value in values.items():
        name = path.partition(".")[2]
        written = {
            "s": f'"{show(value, "s", DIGITS).replace("µ", "u")}"',
            "bytes": f'"{value / 1e9:g} GB"',
        }.get(dimension(name) or "", f"{value:g}")
        lines[name] = f'{name} = {{ value = {written}, kind = "fitted", source = "{why}" }}'
    return lines


if __name__ == "__main__":
    main(sys.argv[1:])
