"""``knee probe kernels``: the compute of one device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.probe.session import Session, device_options, options, replay, run
from knee.record.probe_points import HostPoint, Point, Record
from knee.record.readings import Machine

if TYPE_CHECKING:
    from knee.hardware_fit.cluster_file import MachineFile
    from knee.hardware_fit.kernel_constants import HeldOutShapes

TYPES = {"cuda": ("bf16", "fp16", "fp8"), "cpu": ("fp32",)}
ATTENTION = {"cuda": ("flash2", "cudnn", "cutlass"), "cpu": ("flash2",)}
OLDEST = {"bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which a chip has the type."""


@click.command("kernels")
@options
@device_options
def command(**given: Any) -> None:
    """Measure products, attention and memory-bound kernels of one device, and fit its compute model.

    Prints how well the fit holds, also on shapes that were left out of it, and writes the cluster file. A full grid
    takes about eight minutes on an H200, --quick one or two.
    """
    device, anyway = given.pop("device"), given.pop("anyway")
    session = Session(probe="kernels", **given)
    if session.replay is not None:
        replay(session)
    else:
        from knee.probe.machine_facts import ready

        machine = ready("kernels", device, anyway=anyway)
        run(session, machine, _points(machine, _types(machine), session.quick), _measure(machine.kind))
    _report(session)


def _points(machine: Machine, types: tuple[str, ...], quick: bool) -> list[Point]:
    from knee.probe.kernel_grid import CPU, GPU, kernel_points

    return kernel_points(GPU if machine.kind == "cuda" else CPU, types, ATTENTION[machine.kind], quick=quick)


def _types(machine: Machine) -> tuple[str, ...]:
    """What the chip has; the first is the one that the grid is measured in."""
    if machine.kind == "cpu":
        return TYPES["cpu"]
    import torch

    chip = torch.cuda.get_device_capability(0)
    return tuple(name for name in TYPES["cuda"] if chip >= OLDEST.get(name, (0, 0)))


def _measure(device: str) -> Any:
    from knee.probe.kernel_timing import measure
    from knee.probe.launch_overhead import measure_host

    def one(point: Any) -> Record:
        return measure_host(point, device) if isinstance(point, HostPoint) else asdict(measure(point, device))

    return one


def _report(session: Session) -> None:
    from knee.hardware_fit.cluster_file import base_of, values_of_fit, write_machine_file
    from knee.hardware_fit.kernel_constants import fit_kernels, held_out
    from knee.record.readings import read_readings
    from knee.specs.load import load_cluster, load_profile

    readings = read_readings(session.path)
    base = load_cluster(base_of(readings.machine, session.base)).spec
    fit, away = fit_kernels(readings, base.gpu, load_profile("eager").spec), held_out(readings, base.gpu)
    values = values_of_fit(readings.machine, fit, base)
    written = write_machine_file(session.out, session.base, {"kernels": values})
    if fit.poor:
        click.echo(
            f"the formula is off by more than 15% for {', '.join(fit.poor)}: was the machine busy, or is the "
            f"base {written.base} another kind of device?",
            err=True,
        )
    if session.as_json:
        _print_json(session.path, fit.residuals, away, written)
        return
    from knee.cli.probe.session import print_machine, print_values
    from knee.cli.render.table import print_heading, print_rows

    print_machine(readings)
    print_heading("fit (error of the formula on every reading)")
    head = ["part", "points", "median", "p90", "worst", "bias"]
    rows = [[name, *_cells(r)] for name, r in fit.residuals.items()]
    print_rows([head, *rows], right=(1, 2, 3, 4, 5))
    if away is not None:
        print_heading("held out (fit on 70% of the weight shapes and attention settings, error on the others)")
        named = [
            ("products", away.gemm),
            ("  one efficiency instead", away.gemm_roofline),
            ("attention", away.attention),
            ("  one efficiency instead", away.attention_roofline),
        ]
        print_rows([head, *([name, *_cells(r)] for name, r in named if r is not None)], right=(1, 2, 3, 4, 5))
    print_values(written)


def _cells(r: Any) -> list[str]:
    return [str(r.points), f"{r.median_frac:.1%}", f"{r.p90_frac:.1%}", f"{r.worst_frac:.1%}", f"{r.bias_frac:+.1%}"]


def _print_json(path: Path, residuals: dict[str, Any], away: HeldOutShapes | None, written: MachineFile) -> None:
    import json

    from knee.cli.probe.session import file_json

    click.echo(
        json.dumps(
            {
                "readings": str(path),
                "residuals": {name: asdict(r) for name, r in residuals.items()},
                "held_out": None if away is None else asdict(away),
                **file_json(written),
            },
            indent=2,
        )
    )
