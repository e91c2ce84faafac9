"""Probes on the screen: how they go, and what they found."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import click

from knee.base import units
from knee.base.signals import BY_SIGNAL
from knee.commands.probe.result import CollectivesProbe, KernelsProbe, PowerProbe, StepsProbe
from knee.measure.hardware_fit.cluster_file import MachineFile
from knee.measure.hardware_fit.links import Contention, LinkFit
from knee.measure.hardware_fit.power_constants import PowerFit
from knee.measure.hardware_fit.residuals import Residuals
from knee.measure.machine.listener import ProbeListener, ProbeStopped
from knee.measure.machine.readings import CollectivePoint, Point, Readings, key_of
from knee.show.result import Result
from knee.show.terminal.table import print_heading, print_rows
from knee.specs.load import load_cluster


class ProbeProgress(ProbeListener):
    """Sentences on stderr, and a line per tenth of the points or a live bar on a terminal."""

    def __init__(self) -> None:
        self.total, self.done, self.unit = 0, 0, ""
        self.bar: Any = None
        self.task: Any = None

    def replayed(self, path: Path, readings: int) -> None:
        """A recording stands in for this machine."""
        click.echo(f"{readings} readings from {path}", err=True)

    def sharing_unknown(self, why: str) -> None:
        """NVML does not answer."""
        click.echo(f"NVML: {why}; knee cannot check whether another process uses the GPU", err=True)

    def no_energy_counter(self, gpu: str) -> None:
        """The draw is read in another way."""
        click.echo(f"{gpu} has no energy counter; its power is the mean of instant readings, accurate to 5%", err=True)

    def resumed(self, path: Path, done: int, total: int | None) -> None:
        """A file has readings already."""
        click.echo(
            f"{path} has {done}{'' if total is None else f' of {total}'} readings already; knee continues from there",
            err=True,
        )

    def started(self, total: int, unit: str) -> None:
        """Measuring begins."""
        self.total, self.unit = total, unit
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("measuring", total=total)

    def advanced(self, point: Point) -> None:
        """One point, or series, is done."""
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=key_of(point)[:60])
        elif self.done * 10 // self.total > (self.done - 1) * 10 // self.total:
            click.echo(f"{self.done} of {self.total} {self.unit}", err=True)

    def ended(self) -> None:
        """The bar disappears."""
        if self.bar is not None:
            self.bar.stop()

    def failed(self, readings: Readings) -> None:
        """The first few reasons."""
        errors = dict.fromkeys(r["error"] for r in readings.failed)
        click.echo(f"{len(readings.failed)} points could not be measured: {'; '.join(list(errors)[:3])}", err=True)


@contextmanager
def listening() -> Iterator[ProbeProgress]:
    """Show how a probe goes; where it was interrupted, say what is kept and end the command."""
    try:
        yield ProbeProgress()
    except ProbeStopped as stopped:
        if stopped.path is not None:
            left = "" if stopped.left is None else f", {stopped.left} points remain"
            click.echo(
                f"stopped: {stopped.kept} readings are saved in {stopped.path}{left}; the same command continues",
                err=True,
            )
        if stopped.signal is not None:
            raise SystemExit(BY_SIGNAL + stopped.signal) from None
        raise click.Abort from None


def print_kernels(answer: KernelsProbe, as_json: bool) -> None:
    """How well the fit holds, and the cluster file."""
    fit, away, written = answer.fit, answer.held_out, answer.written
    if fit.poor:
        click.echo(
            f"the error of the fit is above 15% for {', '.join(fit.poor)}; the machine may have been busy, or the "
            f"base {written.base} may be another kind of device",
            err=True,
        )
    if as_json:
        _print_json(answer)
        return
    _print_machine(answer.readings)
    print_heading("fit (error on all readings)")
    head = ["part", "readings", "median error", "p90", "largest error", "signed median"]
    rows = [
        [f"matrix {part}" if part.kind == "products" else str(part), *_errors(r)] for part, r in fit.residuals.items()
    ]
    print_rows([head, *rows], right=(1, 2, 3, 4, 5))
    if away is not None:
        print_heading("held-out test (fit on 70% of the weight shapes and attention settings, error on the others)")
        named = [
            ("matrix products", away.gemm),
            ("  for comparison: one constant efficiency", away.gemm_roofline),
            ("attention", away.attention),
            ("  for comparison: one constant efficiency", away.attention_roofline),
        ]
        print_rows([head, *([name, *_errors(r)] for name, r in named if r is not None)], right=(1, 2, 3, 4, 5))
    _print_values(written)


def _errors(r: Residuals) -> list[str]:
    return [str(r.points), f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.worst_frac:.1%}", f"{r.bias_frac:+.1%}"]


def print_power(answer: PowerProbe, as_json: bool) -> None:
    """Every load, how well the model holds, and the cluster file."""
    if answer.hot_windows:
        click.echo(
            f"heat lowered the clocks in {answer.hot_windows} readings, so the fit describes a GPU that is too hot",
            err=True,
        )
    if as_json:
        _print_json(answer)
        return
    _print_machine(answer.readings)
    print_heading(
        f"loads (power from the {answer.fit.windows.by}; demand is the modelled power without the power limit)"
    )
    head = ["load", "duty cycle", "power", "instant power", "clock", "demand", "modelled power", "error"]
    rows = [
        [
            r["load"],
            f"{r['duty_frac']:.0%}",
            _watts(r["power_w"]),
            _watts(r["instant_w"]),
            "unknown" if r["sm_hz"] is None else f"{r['sm_hz'] / 1e6:,.0f} MHz",
            _watts(r["demand_w"]),
            _watts(r["modelled_w"]),
            f"{r['error_frac']:+.1%}",
        ]
        for r in answer.rows()
    ]
    print_rows([head, *rows], right=range(1, len(head)))
    print_heading("error of the modelled power")
    head = ["loads", "readings", "median error", "largest error", "signed median"]
    rows = [
        [name, str(r.points), f"{r.median_frac:.1%}", f"{r.worst_frac:.1%}", f"{r.bias_frac:+.1%}"]
        for name, r in _power_errors(answer.fit, answer.written.base).items()
    ]
    print_rows([head, *rows], right=range(1, len(head)))
    _print_values(answer.written)


def _power_errors(fit: PowerFit, base: str) -> dict[str, Residuals]:
    """Errors by what they are of."""
    parts = {"all loads": fit.errors, "loads used in the fit": fit.fitted}
    if fit.around_cap is not None:
        parts["demand within 20% of the limit"] = fit.around_cap
    parts |= {f"{kind}, held out of the fit": r for kind, r in fit.held_back.items()}
    return parts | {f"all loads, with the values of {base}": fit.before}


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} W"


def print_steps(answer: StepsProbe, as_json: bool) -> None:
    """Measured and simulated side by side."""
    if as_json:
        _print_json(answer)
        return
    _print_machine(answer.readings)
    print_heading(f"training steps: measured, and simulated on {answer.cluster}")
    sides = ["step time", "simulated", "error", "power", "simulated", "memory", "simulated"]
    table = [["model", "microbatch", "kernels", "optimizer states", "attention", *sides]]
    table += [
        [
            step.point.model,
            str(step.point.micro_batch),
            "compiled" if step.point.compiled else "eager",
            step.point.master,
            step.point.attention,
            units.show(step.measured_s, "s"),
            units.show(step.simulated_s, "s"),
            f"{step.error_frac:+.1%}",
            _known(step.measured_w, "w"),
            _known(step.simulated_w, "w"),
            _known(step.measured_bytes, "bytes"),
            _known(step.simulated_bytes, "bytes"),
        ]
        for step in answer.steps
    ]
    print_rows(table, right=(1, 5, 6, 7, 8, 9, 10, 11))
    if answer.steps:
        middle, worst = answer.median_error_frac, answer.worst_error_frac
        click.echo(f"error of the step time: median {middle:.1%}, largest {worst:.1%}")


def _known(value: float | None, unit: str) -> str:
    return "unknown" if value is None else units.show(value, unit)


def print_collectives(answer: CollectivesProbe, as_json: bool) -> None:
    """Every reading, the fitted links, contention, and the cluster file."""
    if as_json:
        _print_json(answer)
        return
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
    rows = [["collective", "group", "size", "time", "algbw", "busbw", "spread"]]
    for point, row in answer.points:
        rates = [units.show(row[name], "bytes_per_s") for name in ("algbw_bytes_per_s", "busbw_bytes_per_s")]
        rows.append(
            [
                point.collective,
                _ranks(point),
                units.show(point.size_bytes, "bytes", 1),
                units.show(row["time_s"], "s"),
                *rates,
                f"±{row['spread_frac']:.0%}",
            ]
        )
    print_heading("collectives (sizes and bandwidths as defined by nccl-tests)")
    print_rows(rows, right=(2, 3, 4, 5, 6))
    for record in answer.readings.failed:
        click.echo(
            f"{record['collective']}, {record['axis']}, {units.show(record['size_bytes'], 'bytes', 1)}: "
            f"{record['error']}",
            err=True,
        )


def _print_fits(fits: Sequence[LinkFit]) -> None:
    if not fits:
        click.echo("a fit needs four message sizes per series, and no series has them", err=True)
        return
    errors = ["median error", "p90", "held-out median", "held-out largest"]
    rows = [["collective", "group", "latency", "latency per hop", "bus bandwidth", *errors]]
    rows += [
        [
            fit.collective,
            _ranks(fit),
            units.show(fit.latency_s, "s"),
            units.show(fit.hop_s, "s"),
            units.show(fit.bus_bytes_per_s, "bytes_per_s"),
            f"{fit.residuals.median_frac:.1%}",
            f"{fit.residuals.p90_frac:.1%}",
            f"{fit.held_out.median_frac:.1%}",
            f"{fit.held_out.worst_frac:.1%}",
        ]
        for fit in fits
    ]
    print_heading(
        "fit: time = latency + bytes on the slowest link / bus bandwidth "
        "(held out: each inner message size is predicted by a fit without it)"
    )
    print_rows(rows, right=tuple(range(2, 9)))


def _print_contention(beside: Sequence[Contention]) -> None:
    if not beside:
        return
    rows = [["all-gather size", "group", "compute slowdown κ", "communication slowdown γ", "spread"]]
    rows += [
        [
            units.show(one.size_bytes, "bytes", 1),
            f"{one.axis}: {one.group} ranks",
            f"{one.compute_slowdown_frac:.0%}",
            f"{one.comm_slowdown:.2f}x",
            f"±{one.spread_frac:.0%}",
        ]
        for one in beside
    ]
    print_heading(
        "all-gather during matrix products (matrix products take 1 + κ times as long, the all-gather γ times)"
    )
    print_rows(rows, right=(2, 3, 4))
    last = beside[-1]
    click.echo(
        f"to simulate with these values: --set compute_slowdown_frac={last.compute_slowdown_frac:.3g} "
        f"--set comm_slowdown={last.comm_slowdown:.3g}",
        err=True,
    )


def _print_json(answer: Result) -> None:
    click.echo(json.dumps(answer.to_dict(), indent=2))


def _print_machine(readings: Readings) -> None:
    """Where the readings come from."""
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
    """What was measured beside what the catalogue says of the base."""
    before = load_cluster(written.base).spec
    rows = [[path, str(value.value), _show_value(before, path), value.kind] for path, value in written.values.items()]
    print_heading(f"{written.path} (measured by {', '.join(written.probes)}; other values come from {written.base})")
    print_rows([["field", "this machine", written.base, "kind of value"], *rows], right=(1, 2))
    for probe, why in written.left_out.items():
        click.echo(f"the readings of {probe} are not used in {written.path}: {why}", err=True)
    click.echo(f"try: knee simulate llama2-7b --cluster {quote(str(written.path))} --gpus 8 --local-batch 2", err=True)


def _show_value(cluster: Any, path: str) -> str:
    for part in path.split("."):
        cluster = cluster.get(part) if isinstance(cluster, dict) else getattr(cluster, part, None)
    unit = units.dimension(path.rpartition(".")[2])
    if cluster is None or isinstance(cluster, str):
        return cluster or "unknown"
    return units.show(cluster, unit, 4) if unit not in (None, "frac") else f"{cluster:g}"
