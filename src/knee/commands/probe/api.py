"""``knee.probe_kernels`` and its kin: this machine, measured and written as a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knee.commands.probe.result import CollectivesProbe, KernelsProbe, PowerProbe, StepsProbe
from knee.measure.hardware_fit.cluster_file import ProbeSession, base_of, values_of_fit, write_machine_file
from knee.measure.hardware_fit.kernel_constants import fit_kernels, held_out
from knee.measure.hardware_fit.links import contention, fit_links
from knee.measure.hardware_fit.measured_steps import simulated_steps
from knee.measure.hardware_fit.power_constants import fit_power, values_of, windows_of
from knee.measure.machine.collective_grid import COLLECTIVES, check_collectives, message_bytes, plan_series
from knee.measure.machine.kernel_grid import device_points, step_points
from knee.measure.machine.listener import SILENT, ProbeListener, collect
from knee.measure.machine.readings import HostPoint, Probe, Readings, Record, read_readings
from knee.specs.argument_types import checked_arguments
from knee.specs.choices import Backend, Device
from knee.specs.defaults import CLUSTER_FILE
from knee.specs.load import load_cluster, load_profile


@checked_arguments
def probe_kernels(
    out: str | Path = CLUSTER_FILE,
    *,
    base: str | None = None,
    quick: bool = False,
    fresh: bool = False,
    replay: str | Path | None = None,
    device: Device | None = None,
    anyway: bool = False,
    listener: ProbeListener = SILENT,
) -> KernelsProbe:
    """Measure matrix products, attention and memory-bound kernels of one device, and fit its compute model.

    ``out`` is the cluster file to write. Readings are saved next to it while they are taken. After an interruption
    (``ProbeStopped``), the same call continues where it stopped, unless ``fresh``. ``base`` (a name or a TOML file) is
    the cluster that provides the values that are not measured. ``quick`` measures only a fraction of the points.
    ``replay`` reads the readings from a file instead of measuring. ``anyway`` measures even if another process uses the
    GPU. The methods of ``listener`` are called with the progress.

    >>> import knee
    >>> mine = knee.probe_kernels("mine.toml", quick=True)  # doctest: +SKIP
    >>> mine.fit.gpu.gemm["bf16"].peak_frac  # doctest: +SKIP
    0.727
    """
    session = _session("kernels", out, base, quick, fresh, replay, listener)
    if session.replay is None:
        from knee.measure.machine.machine_facts import ready

        machine = ready("kernels", device, anyway=anyway, listener=listener)
        from knee.measure.machine.kernel_timing import types_of  # needs torch

        points = device_points(machine.kind, types_of(machine.kind), quick=quick)
        collect(session.open(machine), points, lambda point: _measure_kernel(point, machine.kind), listener)
    readings = _measured(session, listener)
    cluster = load_cluster(base_of(readings.machine, base)).spec
    fit, away = fit_kernels(readings, cluster.gpu, load_profile("eager").spec), held_out(readings, cluster.gpu)
    values = values_of_fit(readings.machine, fit, cluster)
    written = write_machine_file(session.out, base, {"kernels": values})
    return KernelsProbe(path=session.path, readings=readings, fit=fit, held_out=away, written=written)


@checked_arguments
def probe_power(
    out: str | Path = CLUSTER_FILE,
    *,
    base: str | None = None,
    quick: bool = False,
    fresh: bool = False,
    replay: str | Path | None = None,
    anyway: bool = False,
    listener: ProbeListener = SILENT,
) -> PowerProbe:
    """Measure the power of one NVIDIA GPU when idle and during matrix products, copies and attention, and fit a model.

    Arguments are those of ``knee.probe_kernels``.
    """
    session = _session("power", out, base, quick, fresh, replay, listener)
    if session.replay is None:
        from knee.measure.machine.power_loads import measure_power, power_points, ready_gpu

        machine, nvml = ready_gpu(anyway=anyway)
        if not nvml.has_counter:
            listener.no_energy_counter(nvml.called)
        collect(session.open(machine), power_points(quick=quick), lambda point: measure_power(point, nvml), listener)
    readings = _measured(session, listener)
    gpu = load_cluster(base_of(readings.machine, base)).spec.gpu
    fit = fit_power(windows_of(readings), gpu, limit_w=readings.machine.power_limit_w)
    written = write_machine_file(session.out, base, {"power": values_of(fit, readings.machine)})
    return PowerProbe(path=session.path, readings=readings, fit=fit, written=written)


@checked_arguments
def probe_steps(
    out: str | Path = CLUSTER_FILE,
    *,
    base: str | None = None,
    quick: bool = False,
    fresh: bool = False,
    replay: str | Path | None = None,
    device: Device | None = None,
    anyway: bool = False,
    listener: ProbeListener = SILENT,
) -> StepsProbe:
    """Measure training steps of Llama 1B and 7B on one device, and simulate the same steps.

    The simulation uses ``base`` if it is given, else the cluster file ``out`` if a probe has written one, else the
    catalogue's entry.
    The other arguments are those of ``knee.probe_kernels``.
    """
    session = _session("steps", out, base, quick, fresh, replay, listener)
    if session.replay is None:
        from knee.measure.machine.machine_facts import open_nvml, ready
        from knee.measure.machine.nvml import meter_of

        machine = ready("steps", device, anyway=anyway, listener=listener)
        from knee.measure.machine.plain_step import measure_step  # needs torch

        nvml = open_nvml()[0] if machine.kind == "cuda" else None
        meter = meter_of(nvml) if nvml is not None else None
        points = step_points(machine.kind, quick=quick)
        file = session.open(machine)
        collect(file, points, lambda point: measure_step(point, machine.kind, meter=meter), listener)
    readings = _measured(session, listener)
    from_file = session.out.exists() and base is None
    name = str(session.out) if from_file else base_of(readings.machine, base)
    steps = simulated_steps(readings, load_cluster(name).spec)
    return StepsProbe(path=session.path, readings=readings, cluster=name, steps=steps)


@checked_arguments
def probe_collectives(
    out: str | Path = CLUSTER_FILE,
    *,
    base: str | None = None,
    quick: bool = False,
    fresh: bool = False,
    replay: str | Path | None = None,
    backend: Backend | None = None,
    collectives: Sequence[str] = COLLECTIVES,
    max_size: str = "8 GiB",
    listener: ProbeListener = SILENT,
) -> CollectivesProbe | None:
    """Measure collectives between the ranks of this job, and fit latency per hop and bandwidth.

    Call it on every rank of a torchrun job; rank 0 writes the files and returns the result, the others return None.
    ``backend`` defaults to NCCL if there is a GPU, else to gloo on the CPU. ``max_size`` is the largest message size; a
    series stops earlier if memory or time runs out. The other arguments are those of ``knee.probe_kernels``;
    ``replay`` needs no ranks.
    """
    check_collectives(collectives)
    most_bytes = message_bytes(max_size)
    session = _session("collectives", out, base, quick, fresh, replay, listener)
    if session.replay is None:
        from knee.measure.machine.machine_facts import ready_rank

        launch, device = ready_rank(backend)
        from knee.measure.machine.collective_timing import measure_collectives  # needs torch

        series = plan_series(
            launch.world, launch.per_node, device, quick=quick, wanted=collectives, most_bytes=most_bytes
        )
        measure_collectives(launch, device, series, session.open, quick=quick, listener=listener)
        if launch.rank != 0:
            return None
    readings = read_readings(session.path)
    fits, beside = tuple(fit_links(readings)), tuple(contention(readings))
    written = write_machine_file(session.out, base)
    return CollectivesProbe(path=session.path, readings=readings, fits=fits, contention=beside, written=written)


def _session(
    probe: Probe,
    out: str | Path,
    base: str | None,
    quick: bool,
    fresh: bool,
    replay: str | Path | None,
    listener: ProbeListener,
) -> ProbeSession:
    """The session of a probe; readings of ``replay`` are written as if they had been taken."""
    recording = None if replay is None else Path(replay)
    session = ProbeSession(probe=probe, out=Path(out), base=base, quick=quick, fresh=fresh, replay=recording)
    if recording is not None:
        recorded = session.write_replayed()
        listener.replayed(recording, len(recorded.records))
        if probe == "collectives" and recorded.failed:
            listener.failed(recorded)
    return session


def _measured(session: ProbeSession, listener: ProbeListener) -> Readings:
    readings = read_readings(session.path)
    if readings.failed:
        listener.failed(readings)
    return readings


def _measure_kernel(point: Any, device: str) -> Record:
    from knee.measure.machine.kernel_timing import measure
    from knee.measure.machine.plain_step import measure_host

    return measure_host(point, device) if isinstance(point, HostPoint) else asdict(measure(point, device))
