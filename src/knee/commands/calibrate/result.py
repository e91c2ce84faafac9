"""A software profile that was fitted on measured runs, and the same as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from knee.base.files import write_text
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.specs.load import Loaded
from knee.specs.profile import Profile
from knee.specs.profile_parameters import PARAMETERS
from knee.trust.profile_fit.calibration import OwnProfile, profile_text
from knee.trust.profile_fit.next_runs import SuggestedRun
from knee.trust.validation.user_records import UserRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedParameter:
    """One parameter of a profile, before and after."""

    name: str
    meaning: str
    before: float
    after: float
    fitted: float | None
    """What the fit found, taken or not; None where it was not determined."""
    determined: bool
    """Whether the fitted value is taken."""
    uncertainty_left_frac: float | None
    """Uncertainty left over the prior's, with what was not determined at its value."""
    uncertainty_left_all_free_frac: float | None
    """The same with all parameters free."""
    confounded_with: str | None
    """What the runs cannot tell it from."""
    why_left: str | None
    """Why it was left as it was; None where it was not."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration(Result):
    """A profile fitted to measured runs: the fitted parameters, the others, and the errors before and after."""

    base: str
    """The profile that the fit started from, by its name or file."""
    base_profile: Loaded[Profile]
    files: tuple[Path, ...]
    runs: UserRuns
    """The runs, and what of the files could not be used."""
    found: OwnProfile
    """The fit, what was held back, and warnings."""
    own_profiles: dict[str, int]
    """Profiles that the runs are of by themselves -> runs; where they are several, ``base`` stands for all."""
    suggested: tuple[SuggestedRun, ...] = ()
    """The next runs that would tell most, where they were asked for."""
    profile_file: Path | None = None
    """Where the profile was written."""

    @cached_property
    def parameters(self) -> tuple[FittedParameter, ...]:
        """Every parameter that can be fitted."""
        estimates = {e.parameter.path: e for e in self.found.fit.estimates}
        rows = []
        for p in PARAMETERS:
            field, e = p.path.removeprefix("profile."), estimates.get(p.path)
            before = float(getattr(self.base_profile.spec, field))
            partner = None if e is None or e.confounded_with is None else e.confounded_with.removeprefix("profile.")
            why = self.found.left.get(p.path) or None
            rows.append(
                FittedParameter(
                    name=field,
                    meaning=p.meaning,
                    before=before,
                    after=self.found.values.get(p.path, before),
                    fitted=self.found.fit.values.get(p.path),
                    determined=why is None,
                    uncertainty_left_frac=None if e is None else e.uncertainty,
                    uncertainty_left_all_free_frac=None if e is None else e.marginal,
                    confounded_with=partner,
                    why_left=why,
                )
            )
        return tuple(rows)

    @property
    def values(self) -> dict[str, float]:
        """The fitted values that are used, by parameter name."""
        return {path.removeprefix("profile."): value for path, value in self.found.values.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to read before you use the profile."""
        if len(self.own_profiles) == 1:
            return self.found.warnings
        counted = ", ".join(f"{name} ({count:,})" for name, count in self.own_profiles.items())
        mixed = f"the runs use several profiles: {counted}; the fit starts from {self.base}, each run keeps its kernels"
        return (mixed, *self.found.warnings)

    def profile_text(self) -> str:
        """The profile as the text of a TOML file, whose base is the profile that the fit started from."""
        return profile_text(
            self.base, self.base_profile, self.found, self.runs, files=self.files, date=date.today().isoformat()
        )

    @checked_arguments
    def write(self, path: str | Path) -> Path:
        """Write the profile as a TOML file, for ``profile=`` of the other functions."""
        write_text(Path(path), self.profile_text())
        return Path(path)

    def _data(self) -> dict[str, Any]:
        fit, found, runs = self.found.fit, self.found, self.runs
        return {
            "base": self.base,
            "profile_file": self.profile_file,
            "rows": runs.rows,
            "rows_used": runs.rows_used,
            "runs": len(runs.pairs),
            "checked": found.held_out is not None,
            "kept_base": sorted(set(found.kept_base.values())),
            "parameters": self.parameters,
            **{
                f"{what}_{when}": getattr(fit, f"{what}_{when}")
                for what in ("throughput", "memory")
                for when in ("before", "after")
            },
            "held_out": found.held_out,
            "profiles": self.own_profiles,
            "suggested": [asdict(run) | {"why": run.sentence} for run in self.suggested],
            "skipped": runs.skipped,
            "assumptions": runs.notes,
            "ignored_columns": runs.ignored,
            "warnings": self.warnings,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The parameters, one per row."""
        return [asdict(row) for row in self.parameters]
