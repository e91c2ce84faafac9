"""Probes on the screen: how they go, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click

from knee.base import units
from knee.base.signals import BY_SIGNAL
from knee.commands.options.output import say
from knee.commands.probe.result import CollectivesProbe, KernelsProbe, PowerProbe, StepsProbe
from knee.measure.hardware_fit.cluster_file import MachineFile
from knee.measure.hardware_fit.links import Contention, LinkFit
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.listener import ProbeListener, ProbeStopped
from knee.measure.machine.readings import CollectivePoint, Point, Readings, key_of
from knee.show.terminal.progress_bar import TenthsBar
from knee.show.terminal.table import print_heading, print_rows, print_table
from knee.specs.load import load_cluster


class ProbeProgress(ProbeListener):
    """Sentences on stderr, and a line per tenth of the points or a live bar on a terminal."""

    def replayed(self, path: Path, readings: int) -> None:
        say(f"{readings} readings from {path}")

    def sharing_unknown(self, why: str) -> None:
        say(f"NVML: {why}; knee cannot check whether another process uses the GPU")

    def no_energy_counter(self, gpu: str) -> None:
        say(f"{gpu} has no energy counter; its power is the mean of instant readings, accurate to 5%")

    def resumed(self, path: Path, done: int, total: int | None) -> None:
        of = "" if total is None else f" of {total}"
        say(f"{path} has {done}{of} readings already; knee continues from there")

    def started(self, total: int, unit: str) -> None:
        self.bar, self.total, self.done, self.unit = TenthsBar("measuring"), total, 0, unit

    def advanced(self, point: Point) -> None:
        self.done += 1
        line = f"{self.done} of {self.total} {self.unit}"
        self.bar.show(self.done, self.total, label=key_of(point)[:60], line=line)

    def ended(self) -> None:
        self.bar.stop()

    def failed(self, readings: Readings) -> None:
        errors = dict.fromkeys(r["error"] for r in readings.failed)
        say(f"{len(readings.failed)} points could not be measured: {'; '.join(list(errors)[:3])}")


@contextmanager
def listening() -> Iterator[ProbeProgress]:
    """Show how a probe goes; where it was interrupted, say what is kept and end the command."""
    try:
        yield ProbeProgress()
    except ProbeStopped as stopped:
        if stopped.path is not None:
            left = "" if stopped.left is None else f", {stopped.left} points remain"
            say(f"stopped: {stopped.kept} readings are saved in {stopped.path}{left}; the same command continues")
        if stopped.signal is not None:
            raise SystemExit(BY_SIGNAL + stopped.signal) from None
        raise click.Abort from None


def warn_of_fit(answer: KernelsProbe) -> None:
    """Say on stderr which parts are fitted badly."""
    if answer.fit.poor:
        say(
            f"the error of the fit is above 15% for {', '.join(answer.fit.poor)}; the machine may have been busy, or "
            f"the base {answer.written.base} may be another kind of device"
        )


def print_kernels(answer: KernelsProbe) -> None:
    """How well the fit holds, and the cluster file."""
    _print_machine(answer.readings)
    head = ["part", "readings", "median error", "p90", "largest error", "signed median"]
    rows = [
        [f"matrix {part}" if part.kind == "products" else str(part), *_errors(r)]
        for part, r in answer.fit.residuals.items()
    ]
    print_table("fit (error on all readings)", head, rows, right=(1, 2, 3, 4, 5))
    if (away := answer.held_out) is not None:
        named = [
            ("matrix products", away.gemm),
            ("  for comparison: one constant efficiency", away.gemm_roofline),
            ("attention", away.attention),
            ("  for comparison: one constant efficiency", away.attention_roofline),
        ]
        title = "held-out test (fit on 70% of the weight shapes and attention settings, error on the others)"
        print_table(title, head, [[name, *_errors(r)] for name, r in named if r is not None], right=(1, 2, 3, 4, 5))
    _print_values(answer.written)


def _errors(r: Residuals) -> list[str]:
    return [str(r.points), f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.worst_frac:.1%}", f"{r.bias_frac:+.1%}"]


def warn_of_heat(answer: PowerProbe) -> None:
    """Say on stderr if heat lowered the clocks."""
    if answer.hot_windows:
        say(f"heat lowered the clocks in {answer.hot_windows} readings, so the fit describes a GPU that is too hot")


WARNINGS: dict[str, Callable[[Any], None]] = {"kernels": warn_of_fit, "power": warn_of_heat}
"""Probe -> what says on stderr how far its answer can be trusted."""


def print_power(answer: PowerProbe) -> None:
    """Every load, how well the model holds, and the cluster file."""
    fit = answer.fit
    _print_machine(answer.readings)
    title = f"loads (power from the {fit.windows.by}; demand is the modelled power without the power limit)"
    head = ["load", "duty cycle", "power", "instant power", "clock", "demand", "modelled power", "error"]
    rows = [
        [
            r["load"],
            f"{r['duty_frac']:.0%}",
            *(_watts(r[name]) for name in ("power_w", "instant_w")),
            "unknown" if r["sm_hz"] is None else f"{r['sm_hz'] / 1e6:,.0f} MHz",
            *(_watts(r[name]) for name in ("demand_w", "modelled_w")),
            f"{r['error_frac']:+.1%}",
        ]
        for r in answer.rows()
    ]
    print_table(title, head, rows, right=range(1, len(head)))
    parts = {"all loads": fit.errors, "loads used in the fit": fit.fitted}
    if fit.around_cap is not None:
        parts["demand within 20% of the limit"] = fit.around_cap
    parts |= {f"{kind}, held out of the fit": r for kind, r in fit.held_back.items()}
    parts |= {f"all loads, with the values of {answer.written.base}": fit.before}
    head = ["loads", "readings", "median error", "largest error", "signed median"]
    cells = {name: _errors(r) for name, r in parts.items()}
    print_table("error of the modelled power", head, [[n, *c[:2], *c[3:]] for n, c in cells.items()], right=range(1, 5))
    _print_values(answer.written)


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} W"


def print_steps(answer: StepsProbe) -> None:
    """Measured and simulated side by side."""
    _print_machine(answer.readings)
    sides = ["step time", "simulated", "error", "power", "simulated", "memory", "simulated"]
    rows = [
        [
            step.point.model,
            str(step.point.micro_batch),
            "compiled" if step.point.compiled else "eager",
            step.point.master,
            step.point.attention,
            *(units.show(value, "s") for value in (step.measured_s, step.simulated_s)),
            f"{step.error_frac:+.1%}",
            *(_known(value, "w") for value in (step.measured_w, step.simulated_w)),
            *(_known(value, "bytes") for value in (step.measured_bytes, step.simulated_bytes)),
        ]
        for step in answer.steps
    ]
    head = ["model", "microbatch", "kernels", "optimizer states", "attention", *sides]
    title = f"training steps: measured, and simulated on {answer.cluster}"
    print_table(title, head, rows, right=(1, 5, 6, 7, 8, 9, 10, 11))
    if answer.steps:
        middle, worst = answer.median_error_frac, answer.worst_error_frac
        click.echo(f"error of the step time: median {middle:.1%}, largest {worst:.1%}")


def _known(value: float | None, unit: str) -> str:
    return "unknown" if value is None else units.show(value, unit)


def print_collectives(answer: CollectivesProbe) -> None:
    """Every reading, the fitted links, contention, and the cluster file."""
    _print_machine(answer.readings)
    _print_points(answer)
    _print_fits(answer.fits)
    _print_contention(answer.contention)
    _print_values(answer.written)


def _ranks(point: CollectivePoint | LinkFit) -> str:
    """A group in words: ``tp: 2 x 4 ranks, stride 1``."""
    times = f"{point.groups} x " if point.groups > 1 else ""
    stride = f", stride {point.stride}" if point.stride > 1 else ""
    nodes = f", {point.nodes} nodes" if point.nodes > 1 else ""
    return f"{point.axis}: {times}{point.group} ranks{stride}{nodes}"


def _print_points(answer: CollectivesProbe) -> None:
    rows = [
        [
            point.collective,
            _ranks(point),
            units.show(point.size_bytes, "bytes", 1),
            units.show(row["time_s"], "s"),
            *(units.show(row[name], "bytes_per_s") for name in ("algbw_bytes_per_s", "busbw_bytes_per_s")),
            f"±{row['spread_frac']:.0%}",
        ]
        for point, row in answer.points
    ]
    head = ["collective", "group", "size", "time", "algbw", "busbw", "spread"]
    print_table("collectives (sizes and bandwidths as defined by nccl-tests)", head, rows, right=(2, 3, 4, 5, 6))
    for record in answer.readings.failed:
        size = units.show(record["size_bytes"], "bytes", 1)
        say(f"{record['collective']}, {record['axis']}, {size}: {record['error']}")


def _print_fits(fits: Sequence[LinkFit]) -> None:
    if not fits:
        say("a fit needs four message sizes per series, and no series has them")
        return
    rows = [
        [
            fit.collective,
            _ranks(fit),
            *(units.show(value, "s") for value in (fit.latency_s, fit.hop_s)),
            units.show(fit.bus_bytes_per_s, "bytes_per_s"),
            *(f"{error:.1%}" for error in (fit.residuals.median_frac, fit.residuals.p90_frac)),
            *(f"{error:.1%}" for error in (fit.held_out.median_frac, fit.held_out.worst_frac)),
        ]
        for fit in fits
    ]
    errors = ["median error", "p90", "held-out median", "held-out largest"]
    print_table(
        "fit: time = latency + bytes on the slowest link / bus bandwidth "
        "(held out: each inner message size is predicted by a fit without it)",
        ["collective", "group", "latency", "latency per hop", "bus bandwidth", *errors],
        rows,
        right=range(2, 9),
    )


def _print_contention(beside: Sequence[Contention]) -> None:
    if not beside:
        return
    rows = [
        [
            units.show(one.size_bytes, "bytes", 1),
            f"{one.axis}: {one.group} ranks",
            f"{one.compute_slowdown_frac:.0%}",
            f"{one.comm_slowdown:.2f}x",
            f"±{one.spread_frac:.0%}",
        ]
        for one in beside
    ]
    print_table(
        "all-gather during matrix products (matrix products take 1 + κ times as long, the all-gather γ times)",
        ["all-gather size", "group", "compute slowdown κ", "communication slowdown γ", "spread"],
        rows,
        right=(2, 3, 4),
    )
    slow, comm = beside[-1].compute_slowdown_frac, beside[-1].comm_slowdown
    say(f"to simulate with these values: --set compute_slowdown_frac={slow:.3g} --set comm_slowdown={comm:.3g}")


def _print_machine(readings: Readings) -> None:
    m = readings.machine
    print_heading(f"{m.device}, {m.date}")
    limit = f", power limit {m.power_limit_w:g} W" if m.power_limit_w else ""
    cores = f"{m.sms} {'SMs' if m.kind == 'cuda' else 'cores'}"
    print_rows(
        [
            ["software", m.software],
            ["host", m.host],
            ["device", f"{cores}{limit}"],
            ["readings", f"{len(readings.records) - len(readings.failed)} valid, {len(readings.failed)} failed"],
        ]
    )


def _print_values(written: MachineFile) -> None:
    before = load_cluster(written.base).spec
    rows = [[path, str(value.value), _show_value(before, path), value.kind] for path, value in written.values.items()]
    title = f"{written.path} (measured by {', '.join(written.probes)}; other values come from {written.base})"
    print_table(title, ["field", "this machine", written.base, "kind of value"], rows, right=(1, 2))
    for probe, why in written.left_out.items():
        say(f"the readings of {probe} are not used in {written.path}: {why}")
    say(f"try: knee simulate llama2-7b --cluster {quote(str(written.path))} --gpus 8 --local-batch 2")


def _show_value(cluster: Any, path: str) -> str:
    for part in path.split("."):
        cluster = cluster.get(part) if isinstance(cluster, dict) else getattr(cluster, part, None)
    unit = units.dimension(path.rpartition(".")[2])
    if cluster is None or isinstance(cluster, str):
        return cluster or "unknown"
    return units.show(cluster, unit, 4) if unit not in (None, "frac") else f"{cluster:g}"
