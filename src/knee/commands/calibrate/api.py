"""``knee.calibrate``: a user's own runs -> a software profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument, either
from knee.base.files import check_toml_name, check_writable, real_path
from knee.base.progress import Progress, silent
from knee.commands.calibrate.result import Calibration
from knee.commands.job_request import ClusterLike, named_cluster
from knee.specs.argument_types import checked_arguments, not_in_range
from knee.specs.defaults import HOLD_OUT_FRAC
from knee.specs.load import forget_files, load_profile
from knee.trust.profile_fit.calibration import chosen, fit_profile
from knee.trust.profile_fit.next_runs import suggest_runs
from knee.trust.profile_fit.stack_fit import need_scipy, stack_priors
from knee.trust.validation.csv_cells import none_used
from knee.trust.validation.user_records import UserRuns, read_user_runs

MOST_HELD_FRAC = 0.5
"""Most that may be held back."""


class NothingUsable(InputError):
    """None of the rows and records of the files can be used."""

    code = "nothing-usable"

    def __init__(self, runs: UserRuns) -> None:
        super().__init__(none_used(f"none of the {runs.rows:,} rows can be used", runs.skipped), field="files")
        self.rows = runs.rows
        self.skipped = runs.skipped
        """Why rows were skipped -> how many."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee calibrate --json`` prints it."""
        return {"rows": self.rows, "rows_used": 0, "skipped": self.skipped}


@checked_arguments
def calibrate(
    files: str | Path | Iterable[str | Path],
    *,
    profile: str | Path | None = None,
    cluster: ClusterLike | None = None,
    only: str | Iterable[str] = (),
    fix: str | Iterable[str] = (),
    hold_out: float = HOLD_OUT_FRAC,
    anyway: bool = False,
    suggest: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Fit a software profile to measured runs, and report which parameters the runs determine.

    ``files`` are CSV files as for ``knee.validate``, JSON of knee's own records, readings of ``knee probe steps``, or
    folders of ``knee sweep`` or ``knee train``, in any combination; all runs should use one software stack.
    ``profile`` (a name or a TOML file) is the start of the fit, and ``cluster`` is the cluster of all runs; by default,
    each run states its own. Each run keeps its own kernels, and all runs share the fitted values.
    ``only`` lists the parameters to fit, such as ``["launch_s", "gemm_scale"]``; ``fix`` lists parameters not to fit.
    ``hold_out`` is the share of runs, up to 0.5, that are held out of a first fit to test it. ``anyway`` keeps the
    fitted values even if they do not improve the predictions of held-out runs. ``suggest`` also suggests the three runs
    that would reduce the uncertainty most. ``out`` is a TOML file to write the profile to.

    ``progress`` is called with a sentence about the current activity and two zeros. A fit needs SciPy:
    ``pip install 'knee[fit]'``.

    >>> import knee
    >>> mine = knee.calibrate("runs.csv", out="mine.toml")  # doctest: +SKIP
    >>> mine.values  # doctest: +SKIP
    {'launch_s': 5.1e-06, 'stream_scale': 1.18}
    >>> knee.simulate("llama2-7b", cluster="dgx-h100", gpus=8, local_batch=2, profile="mine.toml")  # doctest: +SKIP
    """
    forget_files()
    given_files = [files] if isinstance(files, (str, Path)) else files
    paths = tuple(dict.fromkeys(map(Path, given_files)))
    if not paths:
        hint = either(
            'knee.calibrate("runs.csv", out="mine.toml")',
            "knee calibrate runs.csv -o mine.toml; `knee calibrate --help` describes the file formats",
        )
        raise InputError("no file of measured runs is given", hint=hint, code="missing-argument", field="files")
    if not 0 <= hold_out <= MOST_HELD_FRAC:
        raise not_in_range("hold_out", f"{hold_out:g}", f"it must be between 0 and {MOST_HELD_FRAC:g}")
    parameters = chosen(_names(only), _names(fix))
    need_scipy()
    target = None if out is None else Path(out)
    if target is not None:
        _check_out(target, [*paths, *(Path(ref) for ref in (profile, cluster) if isinstance(ref, (str, Path)))])
    given = None if profile is None else load_profile(str(profile))
    where = None if cluster is None else named_cluster(cluster).spec
    runs = read_user_runs(paths, None if given is None else given.spec, where)
    if not runs.pairs:
        raise NothingUsable(runs)
    name = _shared_profile(runs) if profile is None else str(profile)
    base = given or load_profile(name)
    own = runs
    if len(own.profiles) > 1:
        runs = read_user_runs(paths, base.spec, where)
    report = progress or silent

    def say(sentence: str) -> None:
        report(sentence, 0, 0)

    if runs.ignored:
        say(f"ignored columns: {', '.join(runs.ignored)}")
    counted = f"{len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''}"
    say(f"{len(parameters)} parameters, {counted}, starting from {name}")
    free = stack_priors(parameters, base.spec)
    found = fit_profile(runs, free, hold_out, own=own, anyway=anyway, say=lambda stage: say(f"{stage} ..."))
    if suggest:
        say("looking for the runs that would reduce the uncertainty most ...")
    suggested = suggest_runs(runs.pairs, free, found.values) if suggest else ()
    answer = Calibration(
        base=name,
        base_profile=base,
        files=paths,
        runs=runs,
        own_profiles=own.profiles,
        found=found,
        suggested=suggested,
    )
    if target is None:
        return answer
    answer.write(target)
    say(f"wrote {target}")
    return replace(answer, profile_file=target)


def _names(texts: str | Iterable[str]) -> list[str]:
    listed = [texts] if isinstance(texts, str) else texts
    return [name.strip() for text in listed for name in text.split(",") if name.strip()]


def _check_out(out: Path, inputs: list[Path]) -> None:
    """Refuse before minutes of fitting what could not be written."""
    check_toml_name(out, "out")
    if any(real_path(out) == real_path(path) for path in inputs):
        text, hint = f"{argument('out')} would overwrite {out}, which is an input", "name another file"
        raise InputError(text, hint=hint, code="would-overwrite", field="out")
    check_writable(out, "out")


def _shared_profile(runs: UserRuns) -> str:
    """The profile that most runs are of. Rows that state other kernels keep them; one that was compiled says so by
    itself, so that a profile of those that were not can stand for both."""
    counts = Counter(asked.job.profile.name for _, asked in runs.pairs if asked.job.profile.kernels != "compiled")
    return (counts or Counter(runs.profiles)).most_common(1)[0][0]
