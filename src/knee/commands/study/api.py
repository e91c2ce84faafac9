"""``knee.study``: the paper's experiments, and questions beyond it, on the simulator or for real."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, MissingExtra, argument, either
from knee.base.files import csv_text, make_folder, write_bytes, write_text
from knee.base.processes import core_count, process_pool
from knee.base.progress import Progress, watched
from knee.commands.compare.side_by_side import read_record
from knee.commands.study.budget_rows import keep_budget
from knee.commands.study.claims import Tally, Verdict
from knee.commands.study.quantities import Row
from knee.commands.study.questions import Question, StudyPoint, points_of
from knee.commands.study.record_store import KEPT, RECORDS, Store, cached_fidelity
from knee.commands.study.rows import step_row
from knee.commands.study.run_study import Ran, points_to_run, recorded, results, strangers, with_needs
from knee.commands.study.study_file import GridChanges, Study, changes_of, load_study, study_names
from knee.show.result import Result, flat
from knee.specs.argument_types import checked_arguments
from knee.specs.choices import STUDY_LAUNCHERS, StudyLauncher
from knee.specs.load import forget_files
from knee.trust.validation.bundled_runs import CarriedFidelity, carried_fidelity
from knee.trust.validation.user_records import records_in

# Rows as tables for people's own plots: CSV, and Parquet where pyarrow is installed.

KINDS: dict[str, tuple[str, ...]] = {
    "runs": ("plan",),
    "bandwidths": ("bus_bytes_per_s",),
    "budgets": ("loss",),
    "hardware": ("tdp_w",),
    "long_runs": ("run_days", "cause_frac", "span"),
    "exchanges": ("gbit_per_s", "within_frac"),
    "walls": ("run_flop", "knee_flop"),
}
"""Table -> columns of which only its rows have one."""
FIRST = ("study", "series", "kind")
HEADER = ",".join((*FIRST, "")).encode()
"""How each of them begins."""


def write_tables(ran: Sequence[Ran], folder: Path) -> list[Path]:
    """Every table that has rows, in both forms; the files."""
    written = []
    for name, marks in KINDS.items():
        rows = [row for one in ran for row in one.rows if any(mark in row for mark in marks)]
        path = folder / f"{name}.csv"
        if rows:
            written += _write(folder / name, rows)
        elif path.is_file() and path.read_bytes().startswith(HEADER):
            # an earlier run's table, which this one's page would stand beside; a user's own file stays
            path.unlink()
            path.with_suffix(".parquet").unlink(missing_ok=True)
    return written


def _write(stem: Path, rows: Sequence[Row]) -> list[Path]:
    columns = list(dict.fromkeys((*FIRST, *(column for row in rows for column in row))))
    path = stem.with_suffix(".csv")
    write_text(path, csv_text({column: row.get(column) for column in columns} for row in rows))
    if importlib.util.find_spec("pyarrow") is None:
        return [path]
    import pyarrow
    from pyarrow import parquet

    data = io.BytesIO()
    parquet.write_table(pyarrow.table({column: [row.get(column) for row in rows] for column in columns}), data)
    write_bytes(stem.with_suffix(".parquet"), data.getvalue())
    return [path, stem.with_suffix(".parquet")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudySummary(Result):
    """One line about a study."""

    name: str
    kind: str
    """``paper`` or ``beyond``."""
    place: str
    """Where in the paper; empty where it is beyond it."""
    title: str
    points: int
    """Runs of its grid."""
    claims: tuple[str, ...]
    """Ids of the claims that it is judged by."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StudyDescription(Result):
    """A study with every point of its grid."""

    asked: str
    """The study's name or file, as it was given."""
    study: Study
    points: tuple[StudyPoint, ...]

    def _data(self) -> dict[str, Any]:
        return asdict(self.study) | {"points": [{"series": p.series, **asdict(p.question)} for p in self.points]}

    def rows(self) -> list[dict[str, Any]]:
        """The points of the grid, one per row."""
        names = ("model", "cluster", "profile", "gpus", "global_batch", "seq_len")
        return [
            {"series": point.series}
            | {name: getattr(point.question, name) for name in names}
            | {"plan": _plan_words(point.question)}
            for point in self.points
        ]


def _plan_words(question: Question) -> str:
    if len(question.plans) > 1:
        return f"{question.pick} of {len(question.plans)} that fits"
    words = [f"{name} {value}" for name, value in question.plans[0] if name != "placement"]
    words += [f"{name} {value}" for name, value in question.sets]
    return ", ".join(words) or "FSDP"


def list_studies() -> tuple[StudySummary, ...]:
    """List all studies: first those of the paper, in its order, then the others.

    >>> import knee
    >>> [one.place for one in knee.list_studies() if one.name == "fig6"]
    ['Figure 6, section 4.3']
    """
    return tuple(
        StudySummary(
            **{name: getattr(study, name) for name in ("name", "kind", "place", "title")},
            points=len(points_of(study)),
            claims=tuple(claim.id for claim in study.claim),
        )
        for study in map(load_study, study_names())
    )


@checked_arguments
def describe_study(name: str | Path) -> StudyDescription:
    """Describe a study, given by name or TOML file: its question, runs, assumptions and claims.

    >>> import knee
    >>> fig6 = knee.describe_study("fig6")
    >>> len(fig6.points) == len(fig6.rows()) > 0
    True
    """
    study = load_study(str(name))
    return StudyDescription(asked=str(name), study=study, points=tuple(points_of(study)))


WORTH_IT = 64
"""Answers that are missing, from which processes beside this one pay."""
Measured = tuple[StudyPoint | None, Mapping[str, Any]]
"""A measured record, with its point where that is known."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Studies(Result):
    """Studies that were run: their rows, findings and verdicts on the claims."""

    ran: tuple[Ran, ...]
    points: int
    """Points of their grids, and of what their claims also need."""
    simulated: int
    """Of the points, those that were simulated now."""
    reused: int
    """Of the points, those whose records were kept from before."""
    measured: int
    """Measured records that stand in."""
    warnings: tuple[str, ...]
    out: Path | None
    """Folder of the records and tables; None where nothing was written."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on every claim."""
        return tuple(verdict for one in self.ran for verdict in one.verdicts)

    @property
    def tally(self) -> Tally:
        """The number of reproduced claims, over all roles."""
        return Tally.of(self.verdicts)

    @property
    def independent(self) -> Tally:
        """The same for independent claims only: not implied by others, not an input, and not used in a fit."""
        return Tally.by_role(self.verdicts)["independent"]

    @property
    def impossible(self) -> int:
        """Points that are not possible."""
        return sum(len(one.impossible) for one in self.ran)

    @cached_property
    def fidelity(self) -> CarriedFidelity:
        """How knee does on the published runs that it carries."""
        return carried_fidelity() if self.out is None else cached_fidelity(self.out / KEPT)

    def _data(self) -> dict[str, Any]:
        return {
            "studies": [
                {
                    "name": one.study.name,
                    "title": one.study.title,
                    "place": one.study.place,
                    "finding": one.finding,
                    "trust": one.trust,
                    "values": one.values,
                    "rows": one.rows,
                    "impossible": one.impossible,
                    "claims": one.verdicts,
                    "assumptions": one.study.assumptions,
                }
                for one in self.ran
            ],
            "tally": self.tally,
            "tally_by_role": Tally.by_role(self.verdicts),
            "fidelity": self.fidelity,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Every row of every study: a simulated or measured point, a bandwidth, a budget or a data sheet."""
        return [flat(row) for one in self.ran for row in one.rows]

    @checked_arguments
    def write_page(self, out: str | Path | None = None, *, command: str = "") -> Path:
        """Write figures and one page that needs no network into a folder; default: ``out`` of the studies.

        ``command`` is shown on the page as the command that created it.
        """
        from knee.commands.study.page import write_page

        folder = self.out if out is None else make_folder(Path(out))
        if folder is None:
            raise InputError("a page needs an output folder", hint="give out", code="missing-argument", field="out")
        return write_page(self.ran, self.fidelity, folder, command=command)

    def write_tables(self, out: str | Path) -> Path:
        """Write rows, claims and fidelity as CSV files (rows also as Parquet, with pyarrow) into a folder."""
        folder = make_folder(Path(out))
        write_tables(self.ran, folder)
        if self.verdicts:
            write_text(folder / "claims.csv", csv_text([asdict(v) for v in self.verdicts]))
        write_text(folder / "fidelity.csv", csv_text([asdict(s) for s in self.fidelity.sources]))
        return folder

    def _chart_svg(self) -> str:
        from knee.commands.study.charts import figures
        from knee.show.figures.vega import to_svg

        if len(self.ran) != 1:  # many studies have too many charts
            return ""
        try:
            return "".join(to_svg(figure.spec) for figure in figures(self.ran[0]) if figure.spec is not None)
        except MissingExtra:
            return ""


@checked_arguments
def study(
    *names: str,
    out: str | Path | None = None,
    launcher: StudyLauncher = "simulate",
    records: str | Path | Iterable[str | Path] = (),
    overrides: GridChanges = (),
    steps: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Studies:
    """Run studies: reproduce the paper's experiments, check its claims, and answer further questions.

    ``names`` are names from ``knee study list`` or TOML files; default: all studies. ``out`` is a folder for tables and
    records, which are reused while their inputs stay the same; without ``out``, nothing is written. ``records`` are
    measured records (a run's folder, its ``record.json``, or a folder of runs); they replace the simulated points of
    the same jobs. ``launcher="local"`` trains the points that this machine can run, with ``steps`` steps each, and
    writes them to ``out``. ``overrides`` change every grid: model, cluster, profile, gpus, local_batch, global_batch
    or seq_len, with one or several values; claims are then not tested.

    ``progress`` is called with the study, the number of its points that are done and their total. ``say`` is called
    with warnings, and with the reasons why points cannot be trained, as sentences.

    >>> import knee
    >>> found = knee.study("table1")
    >>> found.tally.reproduced, found.tally.failed
    (2, 0)
    """
    heard: list[str] = []
    tell = say or (lambda _: None)

    def warn(message: str) -> None:
        heard.append(message)
        tell(f"warning: {message}")

    forget_files()
    _check_launcher(launcher, steps, out)
    wanted = list(dict.fromkeys(names)) or study_names()
    changes = changes_of(overrides)
    paths = [records] if isinstance(records, (str, Path)) else records
    measured: list[Measured] = [(None, record) for path in paths for record in _measured(Path(path))]
    points = points_to_run(wanted, changes)
    folder = None if out is None else make_folder(Path(out))
    questions = [point.question for point in points]
    store = Store(None if folder is None else folder / RECORDS, warn, coming=questions)
    with contextlib.ExitStack() as around:
        ahead: list[Future[Any]] = []
        missing = len(points) - store.before
        if folder is not None and launcher == "simulate" and missing >= WORTH_IT and core_count() > 1:
            pool = around.enter_context(process_pool(core_count()))
            with contextlib.suppress(OSError):  # no more processes, say: this one does all
                store.answer_ahead(pool)
                budgets = [grid for one in with_needs(wanted) for grid in one.budget]
                ahead = [pool.submit(keep_budget, grid, folder / KEPT) for grid in budgets]
                ahead.insert(0, pool.submit(cached_fidelity, folder / KEPT))
        found: list[Row] = []
        for name, group in groupby(points, key=lambda point: point.study):
            some = list(group)
            found += watched(recorded(some, store.record), name, len(some), progress)
        if launcher == "local" and folder is not None:
            measured += _trained(points, folder / "runs", steps, progress, tell, warn)
        for record in strangers(found, [record for point, record in measured if point is None]):
            job = f"{record['model']} on {record['gpus']:,} GPUs"
            warn(f"a measured record of {job} does not match any point of the studies")
        wait(ahead)
        ran = results(wanted, found, measured, changes, kept=None if folder is None else folder / KEPT)
        answer = Studies(
            ran=tuple(ran),
            points=len(found),
            simulated=store.made,
            reused=store.reused,
            measured=len(measured),
            warnings=tuple(heard),
            out=folder,
        )
        if folder is not None:
            answer.write_tables(folder)
    return answer


def _check_launcher(launcher: str, steps: int | None, out: str | Path | None) -> None:
    if launcher not in STUDY_LAUNCHERS:
        text = f"{argument('launcher')} is {launcher!r}; it must be {' or '.join(STUDY_LAUNCHERS)}"
        raise InputError(text, code="unknown-choice", field="launcher")
    if steps is not None and (launcher != "local" or steps < 1):
        text = f"{argument('steps')} {steps}: a real run needs at least one step"
        raise InputError(text, hint=f"use it with {argument('launcher')} local", code="out-of-range", field="steps")
    if launcher == "local" and out is None:
        text = f"{argument('launcher')} local needs {argument('out')}, a folder for the runs"
        raise InputError(text, code="missing-argument", field="out")


def _trained(
    points: Sequence[StudyPoint],
    folder: Path,
    steps: int | None,
    progress: Progress | None,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> list[Measured]:
    from knee.commands.study.trained_points import refused as refused_by
    from knee.commands.study.trained_points import trained
    from knee.measure.machine.machine_facts import need_torch
    from knee.training.sweeps.checks import LocalDevices

    need_torch(either('knee.study(launcher="local")', "knee study run --launcher local"))
    machine = LocalDevices.here()
    refused = {point: refused_by(machine, point) for point in points}
    able = [point for point in points if refused[point] is None]
    for why, count in Counter(why for why in refused.values() if why).items():
        tell(f"{count:,} points cannot be trained here and are simulated: {why}")
    if not able:
        smaller = {"cluster": "cpu", "model": "llama-tiny", "profile": "eager", "gpus": 4, "seq_len": 64}
        words = " ".join(f"--set {key}={value}" for key, value in smaller.items())
        text = "none of these points can be trained here"
        hint = f"make them smaller, for example {either(f'overrides={smaller}', words)}"
        raise InputError(text, hint=hint, code="nothing-trainable", field="launcher")
    runs = watched(trained(able, folder, steps=steps, warn=warn), "training", len(able), progress)
    return [(point, record) for point, record in runs if record is not None]


def _measured(path: Path) -> Iterator[Mapping[str, Any]]:
    for file in records_in([path]):
        record = read_record(file)
        if record.get("kind", "measured") != "measured":
            text = f"{file} is a {record['kind']} record, not a measured one"
            hint = "knee simulates points itself; give only measured records"
            raise InputError(text, hint=hint, code="not-measured", field="records")
        try:
            step_row(record, study="", series="")
        except (KeyError, TypeError, ValueError, ArithmeticError):
            text = f"{file} does not state the model, plan and sizes of the measured run"
            hint = "records of `knee train` state them"
            raise InputError(text, hint=hint, code="not-a-record", field="records") from None
        yield record
