"""What a probe found: its readings, what was fitted on them, and the cluster file that was written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from knee.measure.hardware_fit.cluster_file import MachineFile
from knee.measure.hardware_fit.kernel_constants import HeldOutShapes, KernelFit
from knee.measure.hardware_fit.links import Contention, LinkFit, bus_factor, series_of
from knee.measure.hardware_fit.measured_steps import MeasuredStep
from knee.measure.hardware_fit.power_constants import PowerFit
from knee.measure.machine.readings import CollectivePoint, Readings
from knee.show.result import Result


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KernelsProbe(Result):
    """The compute of one device, as measured."""

    path: Path
    """The file of readings."""
    readings: Readings
    fit: KernelFit
    held_out: HeldOutShapes | None
    """Errors on shapes that a second fit did not see; None where there are too few to leave one out."""
    written: MachineFile

    def _data(self) -> dict[str, Any]:
        return {
            "readings": self.path,
            "residuals": {str(part): r for part, r in self.fit.residuals.items()},
            "held_out": self.held_out,
            **self.written.to_dict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Errors of the fitted formulas, one a part."""
        return [{"part": str(part), **asdict(r)} for part, r in self.fit.residuals.items()]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectivesProbe(Result):
    """The links between the ranks of a job, as measured."""

    path: Path
    readings: Readings
    fits: tuple[LinkFit, ...]
    contention: tuple[Contention, ...]
    written: MachineFile

    @property
    def points(self) -> list[tuple[CollectivePoint, dict[str, Any]]]:
        """Collectives that ran alone, each with its reading and its bandwidths as nccl-tests count them."""
        found = []
        for point, record in (pair for points in series_of(self.readings).values() for pair in points):
            algbw = point.size_bytes / record["time_s"]
            busbw = algbw * bus_factor(point.collective, point.group)
            rates = {"algbw_bytes_per_s": algbw, "busbw_bytes_per_s": busbw}
            found.append((point, asdict(point) | record | rates))
        return found

    def _data(self) -> dict[str, Any]:
        return {
            "readings": self.path,
            "machine": self.readings.machine,
            "points": self.rows(),
            "failed": self.readings.failed,
            "fits": self.fits,
            "contention": self.contention,
            **self.written.to_dict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One a collective, group and size."""
        return [row for _, row in self.points]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PowerProbe(Result):
    """The draw of one GPU under several loads, as measured."""

    path: Path
    readings: Readings
    fit: PowerFit
    written: MachineFile

    @property
    def hot_windows(self) -> int:
        """Windows in which heat held the clocks down."""
        return sum(record.get("hot_frac") not in (None, 0.0) for _, record in self.readings.good("power"))

    def _data(self) -> dict[str, Any]:
        fit = self.fit
        return {
            "readings": self.path,
            "by": fit.windows.by,
            "loads": self.rows(),
            "errors": {
                "all": fit.errors,
                "fitted": fit.fitted,
                "around_cap": fit.around_cap,
                "held_back": fit.held_back,
                "before": fit.before,
            },
            **self.written.to_dict(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One a load."""
        w, fit = self.fit.windows, self.fit
        return [
            {
                "load": w.load[i],
                "duty_frac": float(w.duty_frac[i]),
                "power_w": float(w.power_w[i]),
                "instant_w": _known(w.instant_w[i]),
                "sm_hz": _known(w.sm_hz[i]),
                "demand_w": float(fit.demand_w[i]),
                "modelled_w": float(fit.modelled_w[i]),
                "error_frac": float(fit.error_frac[i]),
            }
            for i in range(len(w))
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepsProbe(Result):
    """Whole training steps of one device, measured and simulated."""

    path: Path
    readings: Readings
    cluster: str
    """The cluster file or catalogue entry that was simulated on."""
    steps: tuple[MeasuredStep, ...]

    @property
    def median_error_frac(self) -> float | None:
        """Of the absolute errors of the step time; None where no step was measured."""
        return median(abs(step.error_frac) for step in self.steps) if self.steps else None

    @property
    def worst_error_frac(self) -> float | None:
        """The largest absolute error of the step time; None where no step was measured."""
        return max((abs(step.error_frac) for step in self.steps), default=None)

    def _data(self) -> dict[str, Any]:
        return {"readings": self.path, "cluster": self.cluster, "steps": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """One a step."""
        return [step.to_dict() for step in self.steps]


def _known(value: float) -> float | None:
    return float(value) if value == value else None
