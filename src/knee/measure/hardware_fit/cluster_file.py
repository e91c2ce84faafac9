"""All readings of a machine -> one cluster file: what was measured, laid over a catalogue entry; and one call of a
probe: where its readings go, what may lie there already, and a recording in place of a machine."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from knee.base.errors import InputError, KneeError, argument
from knee.base.files import check_toml_name, scratch_folder, write_text
from knee.base.units import show
from knee.measure.hardware_fit.kernel_constants import FEWEST_GEMMS, FitPart, KernelFit, fit_kernels, kind_of
from knee.measure.hardware_fit.links import link_values
from knee.measure.hardware_fit.measured_steps import PLAIN_LAUNCH_S
from knee.measure.hardware_fit.power_constants import power_values
from knee.measure.machine.readings import Machine, Probe, Readings, ReadingsFile, read_readings, write_readings
from knee.specs.catalog import gpu_aliases, is_path
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster, load_profile
from knee.specs.write import Value, four_digits, spec_toml

MEMORY_FRAC = 0.05
"""Drivers keep some of the memory for themselves."""

Values = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFile:
    """What was written."""

    path: Path
    base: str
    values: Values
    """Dotted field path -> what was measured."""
    probes: tuple[Probe, ...]
    """Readings that it was made from."""
    left_out: dict[Probe, str]
    """Readings beside it that say nothing yet, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the JSON of a probe."""
        return {
            "cluster_file": str(self.path),
            "base": self.base,
            "left_out": self.left_out,
            "values": {path: asdict(value) for path, value in self.values.items()},
        }


def readings_path(out: Path, probe: Probe) -> Path:
    """mine.toml -> mine.kernels.jsonl."""
    return out.with_name(f"{out.stem}.{probe}.jsonl")


def base_of(machine: Machine, wanted: str | None) -> str:
    """The cluster that says what was not measured: a name or path that was given, or the catalogue's with this GPU."""
    if wanted is not None:
        load_cluster(wanted)  # refuses a name or file that does not exist
        return wanted
    if machine.kind == "cpu":
        return "cpu"
    words = set(machine.device.lower().replace("-", " ").split())
    for alias, name in gpu_aliases().items():
        if words.issuperset(alias.split("-")):
            gpu = load_cluster(name).spec.gpu
            # a name alone does not tell a PCIe card from the SXM module
            if gpu.sms == machine.sms and abs(machine.memory_bytes / gpu.hbm_bytes - 1.0) < MEMORY_FRAC:
                return name
    memory = show(machine.memory_bytes, "bytes")
    raise InputError(
        f"the catalogue has no cluster with a {machine.device} of {machine.sms} SMs and {memory}",
        hint=f"give {argument('base')} with the most similar cluster; `knee catalog` lists them",
        code="unknown-gpu",
        field="base",
    )


def write_machine_file(out: Path, base: str | None, known: Mapping[Probe, Values] | None = None) -> MachineFile:
    """Derive the cluster file anew from all readings that lie beside it; ``known`` is what was derived already."""
    found: dict[Probe, Readings] = {
        probe: read_readings(path) for probe in get_args(Probe) if (path := readings_path(out, probe)).exists()
    }
    first = next(iter(found.values())).machine
    name = base_of(first, base)
    cluster = load_cluster(name).spec
    values: Values = {}
    used: list[Probe] = []
    left_out: dict[Probe, str] = {}
    for probe, readings in found.items():
        if probe not in DERIVE:
            continue
        try:
            values |= known[probe] if known and probe in known else DERIVE[probe](readings, cluster)
            used.append(probe)
        except KneeError as error:  # one probe's beginning does not hold up another's result
            left_out[probe] = error.message

    def text(folder: Path) -> str:
        # paths in a cluster file are relative to the file
        ref = os.path.relpath(name, folder) if is_path(name) else name
        where = ref if is_path(ref) else f"{ref} of knee's catalogue"
        return spec_toml(
            ref,
            values,
            comments=(
                f"{first.device}, measured by knee probe {', '.join(used)} on {first.date} with {first.software}.",
                f"Values that are missing here come from {where}. This file is generated from the readings "
                "next to it; do not edit it.",
            ),
        )

    with scratch_folder() as folder:
        checked = folder / "new.toml"
        checked.write_text(text(folder), encoding="utf-8")
        load_cluster(str(checked))  # what is written can be read
    write_text(out, text(out.parent))
    return MachineFile(path=out, base=name, values=values, probes=tuple(used), left_out=left_out)


def kernel_values(readings: Readings, cluster: Cluster) -> Values:
    """Fields of the GPU that kernels tell, and the host's launch time."""
    return values_of_fit(readings.machine, fit_kernels(readings, cluster.gpu, load_profile("eager").spec), cluster)


def values_of_fit(machine: Machine, fit: KernelFit, cluster: Cluster) -> Values:
    """A fit as values with their sources."""
    taken = f"knee probe kernels, {machine.date}, {machine.device}, {machine.software}, spread {fit.spread_frac:.1%}"

    def fitted(value: float | str, part: FitPart) -> Value:
        return Value(value=value, kind="fitted", source=f"{taken}: {fit.residuals[part].words}")

    def read(value: float | str, what: str) -> Value:
        return Value(value=value, kind="measured", source=f"{taken}: {what}")

    gpu, main = fit.gpu, next(part for part in fit.residuals if part.kind == "products")
    kind = kind_of(gpu, main.of)
    gemm = gpu.gemm[kind]
    values = {
        "gpu.sms": read(gpu.sms, "as torch reports it"),
        "gpu.hbm_bytes": read(f"{gpu.hbm_bytes / 2**20:.0f} MiB", "as torch reports it"),
        f"gpu.gemm.{kind}.peak_frac": fitted(four_digits(gemm.peak_frac), main),
        f"gpu.gemm.{kind}.half_k": fitted(four_digits(gemm.half_k), main),
        f"gpu.gemm.{kind}.half_intensity": fitted(four_digits(gemm.half_intensity), main),
        f"gpu.gemm.{kind}.library": read(machine.software, "the software of the measurement"),
        "gpu.kernel_s": fitted(f"{four_digits(gpu.kernel_s * 1e6)} us", main),
        "gpu.hbm_frac": read(four_digits(gpu.hbm_frac), "the median over kernels with exactly known memory traffic"),
    }
    if machine.power_limit_w is not None:
        values["gpu.gemm_cap_w"] = read(f"{machine.power_limit_w:g} W", "the enforced limit")
        if machine.power_limit_w != gpu.gemm_cap_w:
            # a known clock is that of another limit
            values["gpu.gemm_clock_frac"] = read(1.0, "the clock under this limit is assumed to be the highest clock")
    if gpu.hbm_bytes_per_s != cluster.gpu.hbm_bytes_per_s:
        streamed = f"{four_digits(gpu.hbm_bytes_per_s / 1e9)} GB/s"
        values["gpu.hbm_bytes_per_s"] = read(
            streamed, "the rate that streaming kernels reach, because no rate is published"
        )
    if machine.kind == "cpu":
        best = f"{four_digits((gpu.bf16_flop_per_s or gpu.fp16_flop_per_s) / 1e9)} GFLOP/s"
        for field in ("gpu.bf16_flop_per_s", "gpu.fp16_flop_per_s"):
            values[field] = read(best, "the fastest fp32 matrix product, used instead of a peak")
    fp8 = FitPart("products", "fp8")
    eight = fit.residuals.get(fp8)
    if gpu.fp8_flop_per_s is not None and eight is not None and eight.points >= FEWEST_GEMMS:
        values["gpu.gemm.fp8.peak_frac"] = fitted(four_digits(gpu.gemm["fp8"].peak_frac), fp8)
    for kernel, rate in gpu.attention.items():
        if FitPart("attention", kernel, "forward") in fit.residuals:
            for field, value in asdict(rate).items():
                # `knee probe power` tells energy and clock; rows that did not vary tell nothing of themselves
                if field in ("j_per_flop", "clock_frac") or (field == "half_rows" and not fit.rows_vary[kernel]):
                    continue
                part = FitPart("attention", kernel, "backward" if "backward" in field else "forward")
                values[f"gpu.attention.{kernel}.{field}"] = fitted(four_digits(value), part)
    if fit.launch_s is not None:
        what = (
            f"{show(fit.launch_s, 's')} a kernel in an eager step too small to keep the device busy, over the "
            f"{show(PLAIN_LAUNCH_S, 's')} of the same loop on an H200's host"
        )
        values["node.launch_scale"] = read(four_digits(fit.launch_s / PLAIN_LAUNCH_S), what)
    return values


DERIVE: dict[Probe, Callable[[Readings, Cluster], Values]] = {
    "kernels": kernel_values,
    "power": power_values,
    "collectives": link_values,
}
"""Which probes tell something of the cluster, and how."""


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
        others = [readings_path(self.out, probe) for probe in get_args(Probe) if probe != self.probe]
        for path, other in ((path, read_readings(path).machine) for path in others if path.exists()):
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
