"""``knee probe steps``: whole training steps of one device against the simulator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from knee.cli.probe.session import Session, device_options, options, replay, run
from knee.record.probe_points import Point, Record


@click.command("steps")
@options
@device_options
def command(**given: Any) -> None:
    """Measure plain training steps of Llama 1B and 7B on one device, and simulate the same.

    The simulator takes the cluster file (--out) where a probe has written one, and the catalogue's entry otherwise.
    Steps are never fitted on: they say how far the file can be trusted. About five minutes on an H200.
    """
    device, anyway = given.pop("device"), given.pop("anyway")
    session = Session(probe="steps", **given)
    if session.replay is not None:
        replay(session)
    else:
        from knee.probe.kernel_grid import step_points
        from knee.probe.machine_facts import ready

        machine = ready("steps", device, anyway=anyway)
        points: list[Point] = list(step_points(machine.kind, quick=session.quick))
        run(session, machine, points, _measure(machine.kind))
    _report(session)


def _measure(device: str) -> Any:
    from knee.probe.machine_facts import open_nvml
    from knee.probe.nvml import meter_of
    from knee.probe.plain_step import measure_step

    nvml, _ = open_nvml() if device == "cuda" else (None, None)
    meter = meter_of(nvml) if nvml is not None else None

    def one(point: Any) -> Record:
        return measure_step(point, device, meter=meter)

    return one


def _report(session: Session) -> None:
    from knee.hardware_fit.cluster_file import base_of
    from knee.hardware_fit.measured_steps import simulate_step
    from knee.record.readings import read_readings
    from knee.specs.load import load_cluster

    readings = read_readings(session.path)
    from_file = session.out.exists() and session.base is None
    name = str(session.out) if from_file else base_of(readings.machine, session.base)
    cluster = load_cluster(name).spec
    rows = []
    for point, read in readings.good("step"):
        simulated = simulate_step(point, cluster)
        rows.append(
            {
                **asdict(point),
                "measured_s": read["step_s"],
                "simulated_s": simulated.step_s,
                "error_frac": simulated.step_s / read["step_s"] - 1.0,
                "measured_w": read.get("power_w"),
                "simulated_w": simulated.power_w_per_gpu,
                "measured_bytes": read.get("peak_bytes"),
                "simulated_bytes": simulated.memory.total_bytes if simulated.memory is not None else None,
            }
        )
    if session.as_json:
        import json

        click.echo(json.dumps({"readings": str(session.path), "cluster": name, "steps": rows}, indent=2))
        return
    _print(readings, rows, name)


def _print(readings: Any, rows: list[dict[str, Any]], name: str) -> None:
    from statistics import median

    from knee.cli.probe.session import print_machine
    from knee.cli.render.table import print_heading, print_rows
    from knee.units import show

    def shown(value: float | None, unit: str) -> str:
        return "unknown" if value is None else show(value, unit)

    print_machine(readings)
    print_heading(f"steps, measured and simulated on {name}")
    table = [
        [
            "model",
            "batch",
            "kernels",
            "states",
            "attention",
            "measured",
            "simulated",
            "error",
            "draw",
            "simulated",
            "memory",
            "simulated",
        ]
    ]
    table += [
        [
            r["model"],
            str(r["micro_batch"]),
            "compiled" if r["compiled"] else "eager",
            r["master"],
            r["attention"],
            show(r["measured_s"], "s"),
            show(r["simulated_s"], "s"),
            f"{r['error_frac']:+.1%}",
            shown(r["measured_w"], "w"),
            shown(r["simulated_w"], "w"),
            shown(r["measured_bytes"], "bytes"),
            shown(r["simulated_bytes"], "bytes"),
        ]
        for r in rows
    ]
    print_rows(table, right=(1, 5, 6, 7, 8, 9, 10, 11))
    errors = [abs(r["error_frac"]) for r in rows]
    if errors:
        click.echo(f"error of the step time: median {median(errors):.1%}, worst {max(errors):.1%}")
