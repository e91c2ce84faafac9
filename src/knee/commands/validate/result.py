"""What predictions come to beside what was measured, and the same as plain data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from knee.base.errors import InputError, argument
from knee.base.files import csv_text, real_path, write_text
from knee.commands.study.claims import Tally, Verdict
from knee.show.result import Result
from knee.specs.argument_types import checked_arguments
from knee.trust.validation.bandwidth_errors import LARGE_BYTES, BandwidthFile, BandwidthValidation
from knee.trust.validation.bundled_runs import CarriedFidelity
from knee.trust.validation.csv_cells import none_used
from knee.trust.validation.published_runs import RunFile
from knee.trust.validation.run_errors import Validation as RunErrors


class FileValidation(Result):
    """A file of measurements, beside what knee predicts of its rows."""

    __slots__ = ()

    path: Path
    file: RunFile | BandwidthFile
    found: RunErrors | BandwidthValidation

    @property
    def used(self) -> bool:
        """Whether any row could be predicted."""
        return bool(self.found.predictions)

    @property
    def skipped(self) -> dict[str, int]:
        """Why rows were skipped -> how many."""
        return self.found.all.skipped

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """Columns of the file that mean nothing to knee."""
        return self.file.ignored

    @abstractmethod
    def _each(self) -> Iterator[dict[str, Any]]:
        """The rows of the file, one after another: there may be a million."""

    def rows(self) -> list[dict[str, Any]]:
        """Measured, predicted and error of each row of the file, or why it was skipped."""
        return list(self._each())

    @checked_arguments
    def write_rows(self, path: str | Path) -> list[Path]:
        """Write ``rows`` as a CSV file; the files that were written."""
        refuse_overwriting(Path(path), self.path)
        write_text(Path(path), csv_text(self._each()))
        return [Path(path)]

    def check_used(self) -> None:
        """``InputError`` where no row could be predicted: with the reasons."""
        if not self.used:
            what = f"none of the {len(self.file.rows):,} rows of {self.path} can be predicted"
            raise InputError(none_used(what, self.skipped), code="nothing-usable", field="file")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunsValidation(FileValidation):
    """Measured training runs and their predictions."""

    path: Path
    file: RunFile
    found: RunErrors
    """Errors by source, of all rows, and of each."""
    moe_runs: RunsValidation | None = None
    """The published runs of mixtures of experts, beside those of dense models."""

    def _data(self) -> dict[str, Any]:
        found = self.found
        return {
            "median_of_sources_frac": found.headline_frac,
            "all": found.all,
            "sources": found.sources,
            "stacks": found.stacks,
            "assumptions": found.notes,
            "ignored_columns": self.file.ignored,
        } | ({} if self.moe_runs is None else {"mixtures_of_experts": self.moe_runs})

    @checked_arguments
    def write_rows(self, path: str | Path) -> list[Path]:
        """Write ``rows`` as a CSV file, and beside it those of ``moe_runs`` as ``NAME.moe.csv``."""
        moe = Path(path).with_stem(f"{Path(path).stem}.moe")
        return FileValidation.write_rows(self, path) + (self.moe_runs.write_rows(moe) if self.moe_runs else [])

    def _each(self) -> Iterator[dict[str, Any]]:
        for row in self.file.rows:
            p = self.found.predictions.get(row.line)
            yield {
                "line": row.line,
                "id": row.id,
                "source": row.source,
                "status": row.status,
                "skipped": self.found.reasons.get(row.line),
                "stack": p and p.stack,
                "published_tokens_per_s_per_gpu": row.tokens_per_s_per_gpu,
                "median_tokens_per_s_per_gpu": p and p.run.tokens_per_s_per_gpu,
                "predicted_tokens_per_s_per_gpu": p and p.tokens_per_s_per_gpu,
                "error_frac": p and p.error_frac,
                "published_memory_bytes": row.memory_bytes,
                "median_memory_bytes": p and p.run.memory_bytes,
                "predicted_memory_bytes": p and p.memory_bytes,
                "memory_error_frac": p and p.memory_error_frac,
                "fits": p and p.fits,
                "assumptions": p and "; ".join(p.notes),
            }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BandwidthsValidation(FileValidation):
    """Measured bandwidths of collectives and their predictions on idle links."""

    path: Path
    file: BandwidthFile
    found: BandwidthValidation
    """Errors by source, operation, nodes and message size, and of each row."""

    def _data(self) -> dict[str, Any]:
        data = asdict(replace(self.found, predictions={}, reasons={}))
        del data["predictions"], data["reasons"]
        return {"large_bytes": LARGE_BYTES, **data, "ignored_columns": self.file.ignored}

    def _each(self) -> Iterator[dict[str, Any]]:
        for row in self.file.rows:
            p = self.found.predictions.get(row.line)
            yield {
                "line": row.line,
                "source": row.source,
                "collective": row.operation,
                "skipped": self.found.reasons.get(row.line),
                "gpus": row.setting and row.setting.n_gpus,
                "nodes": p and p.nodes,
                "message_bytes": row.setting and row.setting.message_bytes,
                "cluster": p and p.cluster,
                "measured_bus_bytes_per_s": row.bus_bytes_per_s,
                "median_bus_bytes_per_s": p and p.reading.bus_bytes_per_s,
                "predicted_bus_bytes_per_s": p and p.bus_bytes_per_s,
                "error_frac": p and p.error_frac,
            }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CarriedValidation(Result):
    """The validation set that knee ships: published runs, bandwidths, and the claims of the paper."""

    fidelity: CarriedFidelity
    """Errors by source of dense models, also of runs that a fit did not see; below, of mixtures of experts."""
    moe_fidelity: CarriedFidelity
    runs: RunsValidation
    moe_runs: RunsValidation
    bandwidths: BandwidthsValidation
    verdicts: tuple[Verdict, ...]
    """What became of each claim of the paper."""

    @property
    def used(self) -> bool:
        """Whether any row could be predicted; always True here."""
        return True

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """Columns that knee does not know; always empty here."""
        return ()

    @property
    def tally(self) -> Tally:
        """How many of the claims are reproduced."""
        return Tally.of(list(self.verdicts))

    def _data(self) -> dict[str, Any]:
        return {
            **asdict(self.fidelity),
            "claims": {"tally": self.tally, "verdicts": self.verdicts},
            "mixtures_of_experts": asdict(self.moe_fidelity) | {"carried_runs": self.moe_runs},
            "carried_runs": self.runs,
            "carried_bandwidths": self.bandwidths,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The sources of dense runs, one per row; ``runs.rows()`` and the others have every run and every test."""
        return [asdict(source) for source in self.fidelity.sources]

    @checked_arguments
    def write_rows(self, path: str | Path) -> list[Path]:
        """Write the rows of runs as a CSV file, and beside it ``NAME.moe.csv`` and ``NAME.bandwidths.csv``."""
        moe, links = (Path(path).with_stem(f"{Path(path).stem}.{part}") for part in ("moe", "bandwidths"))
        return [*self.runs.write_rows(path), *self.moe_runs.write_rows(moe), *self.bandwidths.write_rows(links)]

    def check_used(self) -> None:
        """Do nothing: all rows that knee ships can be predicted."""


Validation = RunsValidation | BandwidthsValidation | CarriedValidation


def refuse_overwriting(rows: Path, file: Path) -> None:
    """Rows are not written over the file that they are of."""
    if real_path(rows) == real_path(file):
        text = f"{argument('rows')} would overwrite {file}, which is an input"
        raise InputError(text, hint="name another file", code="would-overwrite", field="rows")
