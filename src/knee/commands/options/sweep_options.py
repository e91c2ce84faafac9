"""The options of a site, and how the command line of ``knee sweep`` becomes one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.base.errors import InputError
from knee.commands.options.plan_options import option
from knee.commands.options.sections import Word
from knee.specs.choices import DEVICES
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS

if TYPE_CHECKING:
    from knee.training.launch.site import Site

SITE_OPTIONS = (
    *("partition", "account", "qos", "time", "exclusive", "exclude", "gpus_per_node", "cpus_per_node"),
    *("max_queued", "max_running", "via", "container", "container_runtime", "setup", "python"),
)
_of_site = partial(option, section="Site")
OPTIONS = (
    _of_site(
        "--site",
        "site_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.toml",
        help="TOML file with the options of this section: partition, account, time, setup, env, ... Options on the "
        "command line override the file.",
    ),
    _of_site("--partition", metavar="NAME", help="Slurm partition."),
    _of_site("--account", metavar="NAME", help="Slurm account."),
    _of_site("--qos", metavar="NAME", help="Slurm QOS."),
    _of_site(
        "--time",
        "time",
        metavar="TIME",
        help="Time limit of a Slurm job, in Slurm's format; without Slurm, time limit of a run.",
    ),
    _of_site("--exclusive", is_flag=True, help="Request whole nodes from Slurm."),
    _of_site("--exclude", metavar="NODES", help="Nodes that Slurm must not use."),
    _of_site(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="Number of processes per node; default: the GPUs per node of the cluster.",
    ),
    _of_site("--cpus-per-node", type=int, metavar="N", help="CPU cores per node to request from Slurm."),
    _of_site(
        "--max-queued",
        type=int,
        metavar="N",
        help="Maximum number of jobs in the queue at once. The other jobs are submitted by the next `knee sweep run`, "
        "or by --wait.",
    ),
    _of_site("--max-running", type=int, metavar="N", help="Maximum number of jobs of this sweep that run at once."),
    _of_site(
        "--hosts",
        metavar="A,B,...",
        help="Hosts for torchrun, as names or addresses; the first one hosts the rendezvous.",
    ),
    _of_site("--via", metavar="COMMAND", help='Command prefix that runs a program on a host; default: "ssh {host}".'),
    _of_site("--container", metavar="IMAGE", help="Container image that all ranks run in."),
    _of_site(
        "--container-runtime",
        type=Word(("apptainer", "singularity", "pyxis")),
        help="Container runtime; default: apptainer. pyxis works with Slurm only.",
    ),
    _of_site(
        "--setup",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File of shell commands to run before each run (modules, limits, a virtual environment). Variables from "
        "--env are set afterwards. If the commands fail, the run does not start.",
    ),
    _of_site(
        "--env",
        "env",
        multiple=True,
        metavar="NAME=VALUE",
        help="Environment variable for all ranks. Values are stored only in DIR/env.sh, which only its owner can read. "
        "May be repeated.",
    ),
    _of_site(
        "--python",
        metavar="PATH",
        help="Python interpreter on the nodes, with knee's requirements installed; default: the python3 that --setup "
        "puts on the PATH, else the current interpreter. In a container: the container's python3.",
    ),
)


_of_run = partial(option, section="Runs")
RUN_OPTIONS = (
    _of_run("--warmup", type=int, metavar="N", help="Number of first steps that are not measured."),
    _of_run(
        "--trace-steps",
        type=int,
        default=TRACE_STEPS,
        show_default=True,
        metavar="N",
        help="Number of steps to profile after the measured steps; 0 means none.",
    ),
    _of_run(
        "--device",
        type=Word(DEVICES),
        help="Device to train on; default: the CPU if the cluster is a CPU, else the GPUs.",
    ),
    _of_run(
        "--timeout",
        "timeout_s",
        type=float,
        default=TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="Stop a run that makes no progress for this long.",
    ),
    _of_run(
        "--program",
        metavar="COMMAND",
        help="Command to start instead of torchrun and knee's trainer. The run's folder is appended as its last "
        "argument, and the command must write a record.json there. Relative paths start at the current folder.",
    ),
)
"""What the runs of sweeps and of tuning have in common."""


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a run, under their heading."""
    for add in reversed(RUN_OPTIONS):
        function = add(function)
    return function


def site_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a site, under their heading."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function


def take_site(options: dict[str, Any]) -> Site:
    """The site file, and what the command line says instead; these options are taken out."""
    from knee.training.launch.site import load_site

    env: dict[str, str] = {}
    for text in options.pop("env"):
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--env {text!r} is not NAME=VALUE", code="not-key-value", field="env")
        env[key] = value
    hosts = tuple(host.strip() for host in (options.pop("hosts") or "").split(",") if host.strip())
    given = {name: options.pop(name) for name in SITE_OPTIONS}
    return load_site(options.pop("site_file"), given | {"env": env, "hosts": hosts})


def program_words(program: str | None) -> list[str]:
    """The words of --program."""
    if program is None:
        return []
    try:
        words = shlex.split(program)
    except ValueError as error:
        text, hint = (
            f"--program {program!r} is not a valid shell command: {str(error).lower()}",
            "quote the command as in a shell",
        )
        raise InputError(text, hint=hint, code="invalid-value", field="program") from None
    if not words:
        raise InputError(
            "--program is empty", hint="name a command, or leave it out", code="missing-argument", field="program"
        )
    return words
