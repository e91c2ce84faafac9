"""``knee calibrate``: a user's own runs -> a software profile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from knee.errors import InputError

if TYPE_CHECKING:
    from knee.fidelity.user_profile import OwnProfile
    from knee.fidelity.user_runs import UserRuns
    from knee.specs.load import Loaded
    from knee.specs.profile import Profile

KEPT_FRAC = 0.5
"""Most that may be held back."""


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="RUNS...", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--out",
    metavar="PROFILE.toml",
    type=click.Path(path_type=Path),
    help="Write the profile here; if left out it is only shown.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Profile to start from, a name of `knee catalog` or a TOML file; what the runs tell if left out.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Cluster of all runs, a name of `knee catalog` or a TOML file, such as one of `knee probe`; what "
    "the runs tell if left out. Nodes and rates that a row states stay its own.",
)
@click.option(
    "--only",
    metavar="NAMES",
    multiple=True,
    help="Fit only these parameters, for example launch_s,gemm_scale. May be repeated.",
)
@click.option(
    "--fix", "fixed", metavar="NAMES", multiple=True, help="Leave these parameters as they are. May be repeated."
)
@click.option(
    "--hold-out",
    "held_frac",
    metavar="FRAC",
    type=float,
    default=0.25,
    show_default=True,
    help="Share of the runs that a first fit does not see and is tried on; 0 is none.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Take the fitted values even where runs that were held back are predicted no better with them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; every key carries its unit.")
def command(
    files: tuple[Path, ...],
    out: Path | None,
    profile: str | None,
    cluster: str | None,
    only: tuple[str, ...],
    fixed: tuple[str, ...],
    held_frac: float,
    anyway: bool,
    as_json: bool,
) -> None:
    """Fit a software profile on your own measured RUNS, and say what they can and cannot tell.

    RUNS are files of three kinds, in any mix: CSV as for `knee validate`, one training run a row; records of knee's
    own, as `knee simulate --json` prints them, one after another or in a list, with the step_s, tokens_per_s or
    memory_bytes that were measured; readings of `knee probe steps`. Or folders, of a `knee sweep` or a `knee train`.
    Runs that were out of memory count as well: what would let them fit is off by what it leaves free.

    All runs should be of one software stack; models, GPUs and plans may differ. Each parameter starts from the
    profile's value and moves as far as the runs have evidence for. What they cannot determine stays, and is not
    written. A first fit leaves out a share of the runs, all of one model on one number of GPUs, and is tried on them;
    the profile is fitted on all. Where the runs left out are predicted no better the profile's own values stay. With
    fewer than 8 runs none are left out, and nothing is checked.

    \b
        knee calibrate runs.csv -o mine.toml
        knee simulate llama2-7b --cluster dgx-h100 --gpus 256 --local-batch 2 --profile mine.toml
    """
    from knee.cli.calibrate_tables import as_data, print_profile
    from knee.fidelity.calibration import need_scipy
    from knee.fidelity.user_profile import chosen, fit_profile
    from knee.fidelity.user_runs import read_user_runs
    from knee.specs.load import load_cluster, load_profile

    if not files:
        raise InputError(
            "a file of runs is needed", hint="knee calibrate runs.csv -o mine.toml; --help says of what form"
        )
    if not 0 <= held_frac <= KEPT_FRAC:
        raise InputError(f"--hold-out is {held_frac:g}; it must be between 0 and {KEPT_FRAC:g}")
    parameters = chosen(_names(only), _names(fixed))
    need_scipy()
    files = tuple(dict.fromkeys(files))
    if out is not None:
        _check_out(out, [*files, *(Path(ref) for ref in (profile, cluster) if ref is not None)])
    given = None if profile is None else load_profile(profile)
    where = None if cluster is None else load_cluster(cluster).spec
    runs = read_user_runs(files, None if given is None else given.spec, where)
    if not runs.pairs:
        if as_json:
            click.echo(json.dumps({"rows": runs.rows, "rows_used": 0, "skipped": runs.skipped}, indent=2))
        raise _nothing(runs)
    name = profile or _profile_of(runs)
    base = given or load_profile(name)
    if runs.ignored:
        click.echo(f"ignored columns: {', '.join(runs.ignored)}", err=True)
    click.echo(
        f"{len(parameters)} parameters, {len(runs.pairs):,} run{'s' if len(runs.pairs) > 1 else ''}, starting "
        f"from {name}",
        err=True,
    )
    found = fit_profile(
        runs, parameters, held_frac, anyway=anyway, say=lambda stage: click.echo(f"{stage} ...", err=True)
    )
    if out is not None:
        _write(out, name, base, found, runs, files)
    if as_json:
        click.echo(json.dumps(as_data(name, base.spec, runs, found, out), indent=2, allow_nan=False))
    else:
        print_profile(name, base.spec, runs, found)
        if out is not None:
            from shlex import quote

            click.echo(
                f"try: knee simulate llama2-7b --cluster dgx-h100 --gpus 8 --local-batch 2 --profile {quote(str(out))}",
                err=True,
            )


def _names(texts: tuple[str, ...]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _check_out(out: Path, inputs: list[Path]) -> None:
    """Refuse before minutes of fitting what could not be written."""
    if out.suffix != ".toml":
        raise InputError(f"--out is {str(out)!r}; it should end in .toml, after a name")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder", hint="name a file in it")
    if any(out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"--out would overwrite {out}, which is read", hint="name another file")
    if out.exists() and not os.access(out, os.W_OK):
        raise InputError(f"{out} cannot be written: permission denied", hint="name another file")
    if not out.parent.is_dir():
        raise InputError(f"{out} cannot be written: there is no folder {out.parent}", hint="make it first")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out} cannot be written: {out.parent} takes no files", hint="name another folder")


def _nothing(runs: UserRuns) -> InputError:
    from knee.cli.validate_tables import none_used

    return InputError(none_used(f"none of the {runs.rows:,} rows can be used", runs.skipped))


def _profile_of(runs: UserRuns) -> str:
    """The one profile that all runs are of."""
    if len(runs.profiles) > 1:
        counted = ", ".join(f"{name} ({count:,})" for name, count in runs.profiles.items())
        raise InputError(
            f"the runs are of several software stacks: {counted}",
            hint="calibrate each by itself, or name the one that all are of with --profile",
        )
    return next(iter(runs.profiles))


def _write(
    out: Path, name: str, base: Loaded[Profile], found: OwnProfile, runs: UserRuns, files: tuple[Path, ...]
) -> None:
    from datetime import date

    from knee.fidelity.profile_file import profile_text
    from knee.files import write_text

    write_text(out, profile_text(name, base, found, runs, files=files, date=date.today().isoformat()))
    click.echo(f"wrote {out}", err=True)
