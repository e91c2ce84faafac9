"""``knee.read_traces``: where the time of anyone's PyTorch job went, from its traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knee.base.errors import Incomplete, InputError, MissingExtra, argument, either
from knee.base.progress import Progress
from knee.measure.kineto.trace_files import find_files
from knee.measure.traces.analyse import Analysis, analyse
from knee.measure.traces.diff import Diff, diff
from knee.measure.traces.kernel_classes import classes_of
from knee.measure.traces.plain_data import as_json, record
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments

if TYPE_CHECKING:
    from knee.measure.traces.perfetto import SmallTrace

PathLike = str | Path


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QueryResult(Result):
    """What an SQL query over the events of traces answers."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    """Row by row, as DuckDB gives them."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a row, as ``knee trace --sql ... --json`` prints them; None for what is not finite."""
        from knee.measure.traces.plain_data import json_value

        return [dict(zip(self.columns, map(json_value, row), strict=True)) for row in self.values]

    def _data(self) -> dict[str, Any]:
        return {"columns": self.columns, "rows": self.rows()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TraceAnalysis(Result, Analysis):
    """Where the time of a job went: by rank, step, collective and kernel."""

    def _data(self) -> dict[str, Any]:
        return as_json(self)

    def rows(self) -> list[dict[str, Any]]:
        """One row per rank: its times over the analysed time."""
        return [{"rank": rank.rank, "step_s": rank.step_s, **asdict(rank.times)} for rank in self.ranks]

    def record(self) -> dict[str, Any]:
        """One step, as mean over steps and ranks, in the format of a record for ``knee.compare``."""
        return record(self)

    def diff(self, other: TraceAnalysis) -> TraceDiff:
        """What changed per step from this job to another, and what explains most of the change."""
        found = diff(self, other)
        return TraceDiff(**{field.name: getattr(found, field.name) for field in fields(Diff)}, a=self, b=other)

    def sql(self, query: str) -> QueryResult:
        """Run an SQL query (with DuckDB) on the tables ``kernels``, ``steps``, ``collectives`` and ``ranks``."""
        from knee.measure.traces.sql import query as ask

        names, rows = ask(self, query)
        return QueryResult(columns=tuple(names), values=tuple(rows))

    @checked_arguments
    def write_html(self, path: PathLike, *, command: str = "") -> Path:
        """Write a page: breakdown by rank and step, collectives, stragglers, and a timeline of exposed communication.

        ``command`` is shown on the page as the command that created it.
        """
        from knee.base.files import write_text
        from knee.commands.trace.page import trace_page

        _refuse_replacing({"html": Path(path)}, [rank.path for rank in self.ranks])
        write_text(Path(path), trace_page(self, command=command))
        return Path(path)

    @checked_arguments
    def write_perfetto(self, path: PathLike) -> SmallTrace:
        """Write a small trace (.json or .json.gz) of the exposed intervals and what surrounds them, for Perfetto."""
        from knee.measure.traces.perfetto import write_small

        _refuse_replacing({"perfetto": Path(path)}, [rank.path for rank in self.ranks])
        return write_small(self, Path(path))

    def check_whole(self) -> None:
        """Raise ``Incomplete`` if a trace is incomplete or unreadable; the answer covers the rest."""
        _check_whole([self])

    def _chart_svg(self) -> str:
        from knee.commands.trace.charts import breakdown
        from knee.commands.trace.page import most_exposed
        from knee.show.figures.vega import to_svg

        try:
            return to_svg(breakdown({str(r.rank): r.times for r in most_exposed(self.ranks)}, title="rank"))
        except MissingExtra:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TraceDiff(Result, Diff):
    """What changed per step from one job to another: the fields of ``knee.measure.traces.diff.Diff``, and both jobs."""

    a: TraceAnalysis
    b: TraceAnalysis

    def _data(self) -> dict[str, Any]:
        return self.as_json()

    def rows(self) -> list[dict[str, Any]]:
        """The times of a step in both jobs, one per row."""
        return [{"name": name, **change.as_json()} for name, change in self.times.items()]

    def check_whole(self) -> None:
        """Raise ``Incomplete`` if a trace of either job is incomplete or unreadable."""
        _check_whole([self.a, self.b])


@checked_arguments
def read_traces(
    paths: PathLike | Iterable[PathLike],
    *,
    skip: int = 0,
    steps: int | None = None,
    comm_pattern: str | Iterable[str] = (),
    comm: str | Iterable[str] = (),
    classes: PathLike | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> TraceAnalysis:
    """Show where the time of a PyTorch job went: compute, communication, and how much communication was exposed.

    ``paths`` is a trace of ``torch.profiler`` (.json or .json.gz), a folder of traces, or ``"-"`` for standard input.
    Several traces are taken as the ranks of one job. ``skip`` is the number of profiler steps to skip at the beginning,
    ``steps`` the number to analyse after those; without both, the whole trace is analysed. Kernels whose name matches
    ``comm_pattern`` (one or several regular expressions) also count as communication, and so do kernels of the classes
    ``comm``, such as ``"elementwise"``, on every stream. ``classes`` is a TOML file with your own kernel classes, which
    are tried before knee's. ``cache=False`` reads the files again even if they have not changed.

    ``progress`` is called with "traces read", their number and the total, and with "bytes read", their number and 0.
    The result lists what was read, what was left out and what looks unusual; ``check_whole()`` raises ``Incomplete`` if
    a trace is incomplete.

    >>> import knee
    >>> job = knee.read_traces("traces/", skip=1)  # doctest: +SKIP
    >>> job.times.exposed_comm_s / job.times.window_s  # doctest: +SKIP
    0.183
    >>> job.diff(knee.read_traces("after/", skip=1)).finding  # doctest: +SKIP
    'step +372 µs (+1.6%): exposed communication +480 µs; idle -148 µs'
    """
    found = analyse(
        paths,
        skip=skip,
        steps=steps,
        classes=classes_of(
            patterns=_as_list(comm_pattern), file=None if classes is None else Path(classes), comm=_as_list(comm)
        ),
        cache=cache,
        progress=progress,
    )
    return TraceAnalysis(**{field.name: getattr(found, field.name) for field in fields(Analysis)})


def check_targets(paths: Iterable[PathLike], classes: PathLike | None, targets: Mapping[str, Path]) -> None:
    """Refuse, before traces are read, to write over one of them; ``targets`` are files by the argument that names
    them."""
    inputs = [*find_files(paths).files, *([] if classes is None else [Path(classes)])]
    _refuse_replacing(targets, inputs)
    if len(targets) > 1 and _is_same(*targets.values()):
        text = f"{' and '.join(map(argument, targets))} must be different files"
        raise InputError(text, hint="name two", code="contradiction", field=next(iter(targets)))


def two_jobs(paths: Sequence[str]) -> tuple[str, str]:
    """The two jobs that are held against each other."""
    if len(paths) != 2:
        text = f"a comparison needs exactly two traces, but {len(paths)} were given"
        hint = either("give two files or folders", "`knee trace diff A B`, where A and B are files or folders")
        raise InputError(text, hint=hint, code="missing-argument", field="paths")
    return paths[0], paths[1]


def _as_list(words: str | Iterable[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


def _refuse_replacing(targets: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    for name, target in targets.items():
        if any(_is_same(target, one) for one in inputs):
            text = f"{argument(name)} {target} would overwrite an input file"
            raise InputError(text, hint="name another file", code="contradiction", field=name)


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.resolve() == b.resolve() or (a.is_file() and b.is_file() and a.samefile(b))
    except (OSError, RuntimeError):  # what cannot be looked at is refused where it is read or written
        return False


def _check_whole(analyses: Sequence[Analysis]) -> None:
    failed = [one for analysis in analyses for one in analysis.left_out if one.is_trace]
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        hint = "the answer covers the other traces; the job may have been killed while it wrote the trace"
        raise Incomplete(f"some traces could not be read: {failed[0].why}{more}", hint=hint, code="unreadable")
    cut = [rank for analysis in analyses for rank in analysis.ranks if rank.audit.cut]
    if cut:
        hint = "the answer covers the part that could be read; the job may have been killed while it wrote the trace"
        raise Incomplete(f"{cut[0].path} is incomplete: {cut[0].audit.cut}", hint=hint, code="cut-off")
