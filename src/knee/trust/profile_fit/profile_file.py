"""A fitted profile as a TOML file: only what was determined, laid over the profile that it started from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.catalog import read_toml
from knee.specs.load import Loaded
from knee.specs.profile import Profile
from knee.specs.write import Value, profile_toml
from knee.trust.profile_fit.calibration import OwnProfile
from knee.trust.validation.user_records import UserRuns

NAMED = 3
"""Files that a source names."""
MEMORY = ("context_bytes", "allocator_frac")


def profile_text(
    ref: str, base: Loaded[Profile], found: OwnProfile, runs: UserRuns, *, files: Sequence[Path], date: str
) -> str:
    """The file's text; ``ref`` is the name or path that the base was loaded by."""
    name, values = _under(ref, base)
    values |= _fitted(found, runs, files, date) | _attention(base.spec, runs)
    return profile_toml(
        name,
        values,
        comments=(
            f"Written by knee calibrate on {date} from {_counted(runs)} in {_names(files)}.",
            *(f"Kept as in {ref}: {why}." for why in dict.fromkeys(found.kept_base.values())),
            *(("Not tested: no runs were held out of the fit.",) if found.held_out is None else ()),
            f"Values that are missing here come from {ref}."
            if values
            else f"No value was fitted: this profile is the same as {ref}.",
        ),
    )


def _under(ref: str, base: Loaded[Profile]) -> tuple[str | None, dict[str, Value]]:
    """The catalogue's entry that a file can inherit from; a file's own values are carried over."""
    if not ref.endswith(".toml"):
        return ref, {}
    raw = read_toml(Path(ref))
    own = {path: source for path, source in base.sources.items() if path in raw}
    name = raw.get("base")
    return name, {path: Value(value=source.value, kind=source.kind, source=source.text) for path, source in own.items()}


def _fitted(found: OwnProfile, runs: UserRuns, files: Sequence[Path], date: str) -> dict[str, Value]:
    fit, held = found.fit, found.held_out
    rate = _change("tokens/s", fit.throughput_before, fit.throughput_after)
    memory = _change("memory", fit.memory_before, fit.memory_after)
    tried = (
        ""
        if held is None or held.throughput_before is None
        else ("; " + _change("tokens/s of held-out runs", held.throughput_before, held.throughput_after))
    )
    values = {}
    for path, value in found.values.items():
        field = path.removeprefix("profile.")
        said = memory if field in MEMORY or not rate else rate + tried
        source = f"knee calibrate, {date}, {_counted(runs)} of {_names(files)}: {said}"
        values[field] = Value(value=written(field, value), kind="fitted", source=source)
    if found.checked_error_frac:
        said = f"error of 80% of {_counted(runs)}, each predicted by a fit without that run"
        values["checked_error_frac"] = Value(value=round(found.checked_error_frac, 4), kind="measured", source=said)
    return values


def _attention(base: Profile, runs: UserRuns) -> dict[str, Value]:
    """The attention kernel, where all runs have one that is not the base's."""
    kernels = {asked.job.profile.attention for _, asked in runs.pairs}
    if len(kernels) != 1 or base.attention in kernels:
        return {}
    return {"attention": Value(value=kernels.pop(), kind="user", source=f"the kernel of all {_counted(runs)}")}


def written(field: str, value: float) -> str | float:
    """Four digits, with a unit: more than any fit has."""
    if field.endswith("_s"):
        return f"{value * 1e6:.4g} us" if value < 1e-3 else f"{value * 1e3:.4g} ms"
    return f"{value / 1e9:.4g} GB" if field.endswith("_bytes") else round(value, 4)


def _change(what: str, before: Residuals | None, after: Residuals | None) -> str:
    if before is None or after is None:
        return ""
    return f"median error of {what} {before.median_frac:.1%} -> {after.median_frac:.1%}"


def _counted(runs: UserRuns) -> str:
    count = len(runs.pairs)
    return f"{count:,} run{'s' if count > 1 else ''}"


def _names(files: Sequence[Path]) -> str:
    names = [path.name for path in files]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more files" if len(names) > NAMED else "")
