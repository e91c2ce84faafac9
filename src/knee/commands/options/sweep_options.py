"""The options of a site, and how the command line of ``knee sweep`` becomes one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from knee.base.errors import InputError
from knee.commands.options.sections import FILE, Word, options, parameter_of
from knee.specs.choices import DEVICES
from knee.specs.defaults import TIMEOUT_S, TRACE_STEPS

if TYPE_CHECKING:
    from knee.training.launch.site import Site

SITE: dict[tuple[Any, ...], str] = {
    ("--site site_file FILE.toml", FILE): "TOML file with the options of this section: partition, account, time, "
    "setup, env, ... Options on the command line override the file.",
    ("--partition NAME", str): "Slurm partition.",
    ("--account NAME", str): "Slurm account.",
    ("--qos NAME", str): "Slurm QOS.",
    ("--time TIME", str): "Time limit of a Slurm job, in Slurm's format; without Slurm, time limit of a run.",
    ("--exclusive", bool): "Request whole nodes from Slurm.",
    ("--exclude NODES", str): "Nodes that Slurm must not use.",
    ("--gpus-per-node N", int): "Number of processes per node; default: the GPUs per node of the cluster.",
    ("--cpus-per-node N", int): "CPU cores per node to request from Slurm.",
    ("--max-queued N", int): "Maximum number of jobs in the queue at once. The other jobs are submitted by the "
    "next `knee sweep run`, or by --wait.",
    ("--max-running N", int): "Maximum number of jobs of this sweep that run at once.",
    ("--hosts A,B,...", str): "Hosts for torchrun, as names or addresses; the first one hosts the rendezvous.",
    ("--via COMMAND", str): 'Command prefix that runs a program on a host; default: "ssh {host}".',
    ("--container IMAGE", str): "Container image that all ranks run in.",
    ("--container-runtime", Word(("apptainer", "singularity", "pyxis"))): "Container runtime; default: apptainer. "
    "pyxis works with Slurm only.",
    ("--setup FILE", FILE): "File of shell commands to run before each run (modules, limits, a virtual "
    "environment). Variables from --env are set afterwards. If the commands fail, the run does not start.",
    ("--env NAME=VALUE", (str,)): "Environment variable for all ranks. Values are stored only in DIR/env.sh, "
    "which only its owner can read. May be repeated.",
    ("--python PATH", str): "Python interpreter on the nodes, with knee's requirements installed; default: the "
    "python3 that --setup puts on the PATH, else the current interpreter. In a container: the container's python3.",
}
site_options = options("Site", SITE)
run_options = options(
    "Runs",
    {
        ("--warmup N", int): "Number of first steps that are not measured.",
        ("--trace-steps N", int, TRACE_STEPS): "Number of steps to profile after the measured steps; 0 means none.",
        ("--device", Word(DEVICES)): "Device to train on; default: the CPU if the cluster is a CPU, else the GPUs.",
        ("--timeout timeout_s SECONDS", float, TIMEOUT_S): "Stop a run that makes no progress for this long.",
        ("--program COMMAND", str): "Command to start instead of torchrun and knee's trainer. The run's folder is "
        "appended as its last argument, and the command must write a record.json there. Relative paths start at the "
        "current folder.",
    },
)
"""What the runs of sweeps and of tuning have in common."""


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
    site_file = options.pop("site_file")
    given = {name: options.pop(name) for flags, *_ in SITE if (name := parameter_of(flags)) in options}
    return load_site(site_file, given | {"env": env, "hosts": hosts})


def program_words(program: str | None) -> list[str]:
    if program is None:
        return []
    try:
        words = shlex.split(program)
    except ValueError as error:
        text = f"--program {program!r} is not a valid shell command: {str(error).lower()}"
        raise InputError(text, hint="quote the command as in a shell", code="invalid-value", field="program") from None
    if not words:
        raise InputError(
            "--program is empty", hint="name a command, or leave it out", code="missing-argument", field="program"
        )
    return words
