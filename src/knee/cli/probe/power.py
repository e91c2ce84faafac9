"""``knee probe power``: the draw of one GPU under several loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from knee.cli.probe.session import Session, options, replay, run
from knee.record.probe_points import Record
from knee.record.readings import Readings

if TYPE_CHECKING:
    from knee.hardware_fit.cluster_file import MachineFile
    from knee.hardware_fit.power_constants import PowerFit
    from knee.hardware_fit.residuals import Residuals
    from knee.probe.nvml import Nvml


@click.command("power")
@options
@click.option("--anyway", is_flag=True, help="Measure although someone else uses the GPU.")
def command(**given: Any) -> None:
    """Measure what one NVIDIA GPU draws at rest, under products, copies and attention, and fit its power model.

    Each load runs for about four seconds, read by the board's energy counter: two minutes in all, --quick one. Prints
    how well the model holds, around the power limit and on loads that were left out, and writes the cluster file.
    """
    from knee.probe.power_loads import power_points

    anyway = given.pop("anyway")
    session = Session(probe="power", **given)
    if session.replay is not None:
        replay(session)
    else:
        from knee.probe.power_loads import ready_gpu

        machine, nvml = ready_gpu(anyway=anyway)
        run(session, machine, power_points(quick=session.quick), _measure(nvml))
    _report(session)


def _measure(nvml: Nvml) -> Callable[[Any], Record]:
    from knee.probe.power_loads import measure_power

    if not nvml.has_counter:
        click.echo(f"{nvml.called} has no energy counter: its draw is a mean of instant readings, good to 5%", err=True)
    return lambda point: measure_power(point, nvml)


def _report(session: Session) -> None:
    from knee.hardware_fit.cluster_file import base_of, write_machine_file
    from knee.hardware_fit.power_constants import fit_power, values_of, windows_of
    from knee.record.readings import read_readings
    from knee.specs.load import load_cluster

    readings = read_readings(session.path)
    base = base_of(readings.machine, session.base)
    fit = fit_power(windows_of(readings), load_cluster(base).spec.gpu, limit_w=readings.machine.power_limit_w)
    written = write_machine_file(session.out, session.base, {"power": values_of(fit, readings.machine)})
    if hot := sum(record.get("hot_frac") not in (None, 0.0) for _, record in readings.good("power")):
        click.echo(f"heat held the clocks down in {hot} windows: the fit is of a board that is too warm", err=True)
    if session.as_json:
        _print_json(session, fit, written)
    else:
        _print(readings, fit, written)


def _loads(fit: PowerFit) -> list[dict[str, Any]]:
    w = fit.windows
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


def _known(value: float) -> float | None:
    return float(value) if value == value else None


def _parts(fit: PowerFit, base: str) -> dict[str, Residuals]:
    """Errors by what they are of."""
    parts = {"all loads": fit.errors, "loads that were fitted on": fit.fitted}
    if fit.around_cap is not None:
        parts["demand within 20% of the limit"] = fit.around_cap
    parts |= {f"{kind}, left out of the fit": r for kind, r in fit.held_back.items()}
    return parts | {f"all loads, as {base} has it": fit.before}


def _print(readings: Readings, fit: PowerFit, written: MachineFile) -> None:
    from knee.cli.probe.session import print_machine, print_values
    from knee.cli.render.table import print_heading, print_rows

    print_machine(readings)
    print_heading(f"loads (draw by the {fit.windows.by}; demand is what the model would draw without a limit)")
    head = ["load", "duty", "draw", "instant", "clock", "demand", "modelled", "error"]
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
        for r in _loads(fit)
    ]
    print_rows([head, *rows], right=range(1, len(head)))
    print_heading("error of the modelled draw")
    head = ["of", "windows", "median", "worst", "bias"]
    rows = [
        [name, str(r.points), f"{r.median_frac:.1%}", f"{r.worst_frac:.1%}", f"{r.bias_frac:+.1%}"]
        for name, r in _parts(fit, written.base).items()
    ]
    print_rows([head, *rows], right=range(1, len(head)))
    print_values(written)


def _watts(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} W"


def _print_json(session: Session, fit: PowerFit, written: MachineFile) -> None:
    import json

    from knee.cli.probe.session import file_json

    click.echo(
        json.dumps(
            {
                "readings": str(session.path),
                "by": fit.windows.by,
                "loads": _loads(fit),
                "errors": {
                    "all": asdict(fit.errors),
                    "fitted": asdict(fit.fitted),
                    "around_cap": None if fit.around_cap is None else asdict(fit.around_cap),
                    "held_back": {kind: asdict(r) for kind, r in fit.held_back.items()},
                    "before": asdict(fit.before),
                },
                **file_json(written),
            },
            indent=2,
        )
    )
