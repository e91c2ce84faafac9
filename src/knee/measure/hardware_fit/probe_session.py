"""One call of a probe: where its readings go, what may lie there already, and a recording in place of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from knee.base.errors import InputError, argument
from knee.base.files import check_toml_name
from knee.measure.hardware_fit.cluster_file import base_of, others_beside, readings_path
from knee.measure.machine.readings import Machine, Probe, Readings, ReadingsFile, read_readings, write_readings
from knee.specs.catalog import is_path
from knee.specs.load import load_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSession:
    """What every probe is asked for."""

    probe: Probe
    out: Path
    """The cluster file; readings lie beside it."""
    base: str | None
    quick: bool
    fresh: bool
    replay: Path | None
    """A file of readings that stands in for this machine."""

    def __post_init__(self) -> None:
        check_toml_name(self.out, "out")
        if self.quick and self.replay is not None:
            raise InputError(
                f"{argument('quick')} and {argument('replay')} contradict each other: a replay measures nothing",
                hint="leave one of them out",
                code="contradiction",
                field="quick",
            )
        if self.base is not None:  # before minutes of measuring
            if is_path(self.base) and Path(self.base).resolve() == self.out.resolve():
                raise InputError(
                    f"{argument('base')} and {argument('out')} are the same file, {self.out}",
                    hint=f"give another {argument('out')}",
                    code="would-overwrite",
                    field="base",
                )
            load_cluster(self.base)

    @property
    def path(self) -> Path:
        """Where the readings go: mine.toml -> mine.kernels.jsonl."""
        return readings_path(self.out, self.probe)

    def open(self, machine: Machine) -> ReadingsFile:
        """The file of readings, with what it has already."""
        self.check_place(machine)
        return ReadingsFile(self.path, machine, fresh=self.fresh)

    def check_place(self, machine: Machine) -> None:
        """Refuse, before anything is measured, what could not be used: a GPU without a base, readings that a recording
        would write over, other probes' readings of another machine."""
        base_of(machine, self.base)
        if self.replay is not None and self.path.exists() and not self.fresh:
            here, played = read_readings(self.path), read_readings(self.replay)
            if here.machine != played.machine or any(record not in played.records for record in here.records):
                raise InputError(
                    f"{self.path} has other readings, which the replay would overwrite",
                    hint=f"give another {argument('out')}, or {argument('fresh')}",
                    code="would-overwrite",
                    field="out",
                )
        for path, other in others_beside(self.out, self.probe):
            # a job of collectives runs on many hosts, of which one writes
            loose = "collectives" in (self.probe, other.probe)
            names = ("device", "kind", *(() if loose else ("host", "sms", "memory_bytes")))
            for name in names:
                here, there = getattr(machine, name), getattr(other, name)
                if here != there:
                    raise InputError(
                        f"{path} has readings with {name} {there}, but this machine has {here}",
                        hint=f"give another {argument('out')}; a cluster file describes one machine",
                        code="other-machine",
                        field="out",
                    )

    def write_replayed(self) -> Readings:
        """Copy the recording to where this machine's readings would go."""
        assert self.replay is not None
        recorded = read_readings(self.replay)
        if self.path.exists() and self.path.samefile(self.replay):
            raise InputError(
                f"{argument('replay')} is {self.replay}, but {argument('out')} {self.out} would overwrite that file",
                hint=f"give another {argument('out')}",
                code="would-overwrite",
                field="out",
            )
        if recorded.machine.probe != self.probe:
            raise InputError(
                f"{self.replay} has readings of `knee probe {recorded.machine.probe}`, not of "
                f"`knee probe {self.probe}`",
                code="another-probe",
                field="replay",
            )
        found = {record["key"]: record for record in recorded.records}
        if not found:
            raise InputError(f"{self.replay} contains no readings", code="no-readings", field="replay")
        self.check_place(recorded.machine)
        readings = Readings(recorded.machine, tuple(found.values()))
        write_readings(self.path, readings)
        return readings
