"""Fit each software stack's profile on the published runs that knee carries, and say how well the rest is predicted.

    python tools/fit_published.py [--write] [OTHER_RUNS.csv]

Fitted on: the runs of src/knee/catalog/validation/runs.csv that ran, stack by stack. Each parameter of
``specs.profile_parameters`` starts from the stack's base profile with its prior; what a stack's runs do not determine
stays there. Judged on: the same runs without the model size, and without the source, that is predicted (the choice of
parameters is the whole fit's, their values are not; facts about a stack stay); and, where a larger file is given, on
its rows, of which the carried ones are a part.

--write puts the values into src/knee/catalog/profiles/stacks.toml (kind "fitted") and the errors of runs that a fit did
not see into src/knee/catalog/validation/errors.csv, from which ``knee simulate`` reads how far it can be trusted.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from knee.hardware_fit.residuals import Residuals
from knee.profile_fit.stack_fit import StackFit, calibrate
from knee.specs.load import load_profile
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS, Parameter
from knee.trust.error_table import error_rows
from knee.units import dimension, show
from knee.validation.published_runs import PublishedRun, Setting, read_runs
from knee.validation.run_to_job import RunJob, job_of
from knee.validation.simulated_runs import cases_of, predicted

CATALOG = Path(__file__).parent.parent / "src/knee/catalog"
CARRIED, STACKS = CATALOG / "validation/runs.csv", CATALOG / "profiles/stacks.toml"
ERRORS = CATALOG / "validation/errors.csv"
FITTED = PARAMETERS
FEWEST = 8
"""Runs below which a stack keeps its base's values."""
DIGITS = 3

Key = Callable[[Setting], Hashable]
Values = dict[str, float]
Tables = Mapping[str, Mapping[str, object]]


def prior(profile: Profile, stacks: Tables, fitted: Mapping[str, Values]) -> Profile:
    """A stack's profile before it is fitted: its own facts, and else what its bases have, fitted in this very run."""
    values = {}
    for p in FITTED:
        name, table = p.path.partition(".")[2], profile.name
        while table in stacks:
            if is_fact(stacks[table], p) or (table != profile.name and p.path in fitted.get(table, {})):
                break
            table = str(stacks[table]["base"])
        known = fitted.get(table, {}) if table != profile.name else {}
        values[name] = known.get(p.path, getattr(load_profile(table).spec, name))
    return replace(profile, **values)


def bases(name: str, stacks: Tables) -> list[str]:
    """The profiles that one is laid over, nearest first."""
    found = []
    while name in stacks:
        name = str(stacks[name]["base"])
        found.append(name)
    return found


def is_fact(table: Mapping[str, object], parameter: Parameter) -> bool:
    """Whether a stack's table states a value that was not fitted."""
    value = table.get(parameter.path.partition(".")[2])
    return isinstance(value, dict) and value.get("kind") != "fitted"


def rounded(values: Values) -> Values:
    """As they are written."""
    shares = {p.path for p in FITTED if p.is_share}
    return {k: round(v, DIGITS) if k in shares else float(f"{v:.{DIGITS}g}") for k, v in values.items()}


def size_of(setting: Setting) -> Hashable:
    """A model size: what is left out together."""
    return setting.layers, setting.hidden


def source_of(setting: Setting) -> Hashable:
    """Where a run was published."""
    return setting.source


class Stack:
    """The runs of one profile: the carried ones that it is fitted on, and all that it is judged on."""

    def __init__(
        self,
        carried: Sequence[PublishedRun],
        judged: Sequence[PublishedRun],
        ask: Callable[..., RunJob],
        parameters: Sequence[Parameter],
    ):
        self.ask, self.carried, self.judged = ask, carried, judged
        self.full = calibrate(cases_of(carried, ask)[0], parameters if len(carried) >= FEWEST else ())

    def errors(self, runs: Sequence[PublishedRun], values: Values) -> dict[Setting, tuple[float, float]]:
        """Of throughput and memory, NaN where nothing was measured."""
        cases, _ = cases_of(runs, self.ask)
        answer = predicted(cases, rounded(values))
        flat = [run for case in cases for run in case.runs]
        rate = answer.tokens_per_s_per_gpu / np.array([r.tokens_per_s_per_gpu or np.nan for r in flat]) - 1.0
        memory = answer.memory_bytes / np.array([r.memory_bytes or np.nan for r in flat]) - 1.0
        return {run.setting: (float(a), float(b)) for run, a, b in zip(flat, rate, memory, strict=True)}

    def left_out(self, key: Key) -> dict[Setting, tuple[float, float]]:
        """Every run predicted by a fit that saw none that shares its key."""
        found: dict[Setting, tuple[float, float]] = {}
        same = [e.parameter for e in self.full.estimates]
        for one in dict.fromkeys(key(run.setting) for run in self.judged):
            rest = [run for run in self.carried if key(run.setting) != one]
            values = calibrate(cases_of(rest, self.ask)[0], same, like=self.full).values if rest else {}
            found |= self.errors([run for run in self.judged if key(run.setting) == one], values)
        return found


def main(arguments: Sequence[str]) -> None:
    """Fit, judge, write."""
    files = [Path(a) for a in arguments if not a.startswith("--")]
    stacks = tomllib.loads(STACKS.read_text(encoding="utf-8"))
    carried = [run for run in read_runs(CARRIED).runs if run.status == "ok"]
    judged = [run for run in read_runs(files[0]).runs if run.status == "ok"] if files else carried

    fitted: dict[str, Values] = {}

    def ask(setting: Setting) -> RunJob:
        asked = job_of(setting)
        if asked.job.profile.name not in stacks:
            return asked
        return replace(asked, job=replace(asked.job, profile=prior(asked.job.profile, stacks, fitted)))

    def of_profile(runs: Sequence[PublishedRun]) -> dict[str, list[PublishedRun]]:
        groups: dict[str, list[PublishedRun]] = {}
        for case in cases_of(runs, ask)[0]:
            groups.setdefault(case.job.profile.name, []).extend(case.runs)
        return groups

    fits, tables = {}, {"before": {}, "fitted": {}, "size": {}, "source": {}}
    groups, whole = of_profile(carried), of_profile(judged)
    # a base before what is laid over it
    for name in sorted(groups, key=lambda n: len(bases(n, stacks))):
        free = [p for p in FITTED if not is_fact(stacks.get(name, {}), p)]
        stack = Stack(groups[name], whole[name], ask, free)
        fits[name], fitted[name] = stack.full, rounded(stack.full.values)
        print_fit(name, stack.full)
        tables["before"] |= stack.errors(whole[name], {})
        tables["fitted"] |= stack.errors(whole[name], stack.full.values)
        tables["size"] |= stack.left_out(size_of)
        tables["source"] |= stack.left_out(source_of)
    print_errors(tables, judged)
    seen = {run.setting for run in carried}
    if rest := [run for run in judged if run.setting not in seen]:
        print("\nruns that are not carried, and so were never fitted on")
        print_errors({k: {s: e for s, e in t.items() if s not in seen} for k, t in tables.items()}, rest)
    if "--write" in arguments:
        write_values(fits)
        rows = [
            (run, ask(run.setting), *tables["size"][run.setting], tables["source"][run.setting][0])
            for run in judged
            if run.setting in tables["size"] and run.tokens_per_s_per_gpu is not None
        ]
        own = {run.setting for run in carried}
        flags = [int(run.setting in own) for run, *_ in rows]
        write_errors([row | {"carried": flag} for row, flag in zip(error_rows(rows), flags, strict=True)])


def print_fit(name: str, found: StackFit) -> None:
    """What was determined."""
    before, after = found.throughput_before, found.throughput_after
    assert before is not None
    assert after is not None
    print(f"{name}: {found.runs} runs, median {before.median_frac:.1%} -> {after.median_frac:.1%}")
    for e in found.estimates:
        if e.determined:
            print(f"    {e.parameter.path:32} {e.before:10.4g} -> {e.after:10.4g}   ({e.uncertainty:.0%} of its prior)")


def print_errors(tables: dict[str, dict[Setting, tuple[float, float]]], judged: Sequence[PublishedRun]) -> None:
    """By source, and each source counting once."""
    sources = dict.fromkeys(run.setting.source for run in judged)
    print(f"\n{'source':28}{'runs':>6}" + "".join(f"{name:>16}" for name in tables))
    medians: dict[str, list[float]] = {name: [] for name in tables}
    for source in sources:
        cells = []
        for name, table in tables.items():
            errors = np.array([e for s, (e, _) in table.items() if s.source == source and np.isfinite(e)])
            found = Residuals.of(1.0 + errors, np.ones_like(errors))
            medians[name].append(found.median_frac)
            cells.append(f"{found.median_frac:7.1%} {found.p90_frac:7.1%}")
        print(f"{source:28}{found.points:6}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"{'median over sources':34}" + "".join(f"{np.median(m):8.1%}{'':8}" for m in medians.values()))
    everything = [np.array([abs(e) for e, _ in table.values() if np.isfinite(e)]) for table in tables.values()]
    cells = [f"{np.median(e):7.1%} {np.quantile(e, 0.9):7.1%}" for e in everything]
    print(f"{'all runs (median, p90)':28}{len(everything[0]):6}" + "".join(f"{cell:>16}" for cell in cells))


def write_values(fits: dict[str, StackFit]) -> None:
    """Replace the fitted lines of each stack's table."""
    text = STACKS.read_text(encoding="utf-8")
    names = "|".join(re.escape(p.path.partition(".")[2]) for p in FITTED)
    for stack, found in fits.items():
        head, start, rest = text.partition(f"[{stack}]\n")
        if not start:
            continue
        body, gap, tail = rest.partition("\n[")
        lines = [x for x in body.rstrip("\n").splitlines() if not re.match(rf"({names}) = .*kind = \"fitted\"", x)]
        assert found.throughput_after is not None
        assert found.throughput_before is not None
        why = (
            f"tools/fit_published.py on {found.runs} carried runs of this stack: median error "
            f"{found.throughput_before.median_frac:.1%} before, {found.throughput_after.median_frac:.1%} after"
        )
        unmoved = rounded({e.parameter.path: e.before for e in found.estimates})
        for path, value in rounded(found.values).items():
            if value == unmoved[path]:
                continue
            name = path.partition(".")[2]
            written = {
                "s": f'"{show(value, "s", DIGITS).replace("µ", "u")}"',
                "bytes": f'"{value / 1e9:g} GB"',
            }.get(dimension(name) or "", f"{value:g}")
            lines.append(f'{name} = {{ value = {written}, kind = "fitted", source = "{why}" }}')
        text = head + start + "\n".join(lines) + "\n" + (f"\n{gap.lstrip()}" if gap else "") + tail
    STACKS.write_text(text, encoding="utf-8")


def write_errors(rows: Sequence[dict[str, object]]) -> None:
    """For ``knee simulate``."""
    with ERRORS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {len(rows)} errors")


if __name__ == "__main__":
    main(sys.argv[1:])
