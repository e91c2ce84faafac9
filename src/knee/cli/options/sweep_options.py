"""The options of a site, and how the command line of ``knee sweep`` becomes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from knee.cli.options.plan_options import option
from knee.cli.options.sections import Word
from knee.errors import InputError

if TYPE_CHECKING:
    from knee.launch.site import Site

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
        help="What follows here, as a file: partition, account, time, setup, env ... The command line goes first.",
    ),
    _of_site("--partition", metavar="NAME", help="Of Slurm."),
    _of_site("--account", metavar="NAME", help="Of Slurm."),
    _of_site("--qos", metavar="NAME", help="Of Slurm."),
    _of_site(
        "--time",
        "time",
        metavar="TIME",
        help="Wall clock of a job, as Slurm takes it; of a run without Slurm.",
    ),
    _of_site("--exclusive", is_flag=True, help="Whole nodes."),
    _of_site("--exclude", metavar="NODES", help="Nodes not to use."),
    _of_site(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="Processes a node; as many as the cluster's nodes have GPUs if left out.",
    ),
    _of_site("--cpus-per-node", type=int, metavar="N", help="Cores to ask Slurm for."),
    _of_site(
        "--max-queued",
        type=int,
        metavar="N",
        help="Jobs in the queue at once; the rest waits for the next call, or for --wait.",
    ),
    _of_site("--max-running", type=int, metavar="N", help="Jobs of this sweep that run at once."),
    _of_site("--hosts", metavar="A,B,...", help="For torchrun: names or addresses; ranks meet on the first."),
    _of_site("--via", metavar="COMMAND", help='What runs a command on a host, "ssh {host}" if left out.'),
    _of_site("--container", metavar="IMAGE", help="Ranks run inside of it."),
    _of_site(
        "--container-runtime",
        type=Word(("apptainer", "singularity", "pyxis")),
        help="What opens the image; apptainer if left out. pyxis is Slurm's.",
    ),
    _of_site(
        "--setup",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Shell commands before each run: modules, limits, a virtual environment. --env goes on top. A run whose "
        "set-up fails does not start.",
    ),
    _of_site(
        "--env",
        "env",
        multiple=True,
        metavar="NAME=VALUE",
        help="Of all ranks. Values are kept in DIR/env.sh alone, which only its owner can read. May be repeated.",
    ),
    _of_site(
        "--python",
        metavar="PATH",
        help="The nodes' interpreter, with knee's requirements. If left out: the python3 that --setup puts into the "
        "PATH, if it does; this one. In a container: its own, python3 if left out.",
    ),
)


def site_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a site, under their heading."""
    for add in reversed(OPTIONS):
        function = add(function)
    return function


def take_site(options: dict[str, Any]) -> Site:
    """The site file, and what the command line says instead; these options are taken out."""
    from knee.launch.site import load_site

    env: dict[str, str] = {}
    for text in options.pop("env"):
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--env {text!r} is not NAME=VALUE", code="not-key-value", field="env")
        env[key] = value
    hosts = tuple(host.strip() for host in (options.pop("hosts") or "").split(",") if host.strip())
    given = {name: options.pop(name) for name in SITE_OPTIONS}
    return load_site(options.pop("site_file"), given | {"env": env, "hosts": hosts})
