"""What is particular to a site: how jobs are asked for, and what surrounds the processes of a run."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from knee.base.errors import InputError
from knee.base.files import check_readable
from knee.specs.catalog import read_layers
from knee.specs.check import all_keys, validate

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{1,2}){0,2}")
"""As Slurm takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours ..."""
SSH = "ssh {host}"
PLAIN = re.compile(r"[^\s\x00-\x1f\x7f'\"\\`$]+")
"""What stands in a script's #SBATCH line, where quotes are not understood."""
HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A name, or an address of the old kind; what could be an option or a shell's is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Options of a launcher; all can be left out."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    partition: str = ""
    """Slurm partition."""
    account: str = ""
    """Slurm account."""
    qos: str = ""
    """Slurm quality of service."""
    time: str = ""
    """Time limit of a Slurm job, in Slurm's format. Without Slurm it is the time limit of a run."""
    exclusive: bool = False
    """Whether to request whole nodes, shared with no other job."""
    exclude: str = ""
    """Nodes that must not be used."""
    cpus_per_node: int | None = None
    """CPUs to request per node."""
    gpus_per_node: int | None = None
    """Processes per node, if it differs from the cluster's GPUs per node."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, one per string: "--reservation=weekend"."""
    gres: bool = True
    """Whether to request GPUs with --gpus-per-node. Set it to false if your site allocates whole nodes."""
    max_queued: int | None = None
    """Largest number of jobs, or array tasks, in the queue at once."""
    max_running: int | None = None
    """Largest number of array tasks that run at once."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of hosts, for torchrun without Slurm. Ranks rendezvous on the first host."""
    via: str = SSH
    """Command that runs a command on a host."""
    setup: str = ""
    """File of shell commands that run first: modules, limits, a virtual environment. If one of them fails, the run
    ends."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of a run."""
    container: str = ""
    """Container image, or its file, in which the run is started."""
    container_runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    """Program that starts the container."""
    python: str = ""
    """Python interpreter that starts torchrun. It defaults to the container's python3; without a container, to the
    python3 that ``setup`` puts into the PATH; and otherwise to the interpreter that runs knee."""

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos", "time", "exclude"):
            value = getattr(self, name)
            if value and not PLAIN.fullmatch(value):
                text = f"{name} is {value!r}; Slurm names contain no spaces and no quotes"
                raise InputError(text, code="invalid-value", field=name)
        for option in self.sbatch:
            if not PLAIN.fullmatch(option) or not option.startswith("-"):
                text = f"sbatch has {option!r}; it must be an option such as --reservation=weekend"
                raise InputError(text, code="invalid-value", field="sbatch")
        if self.time and not TIME.fullmatch(self.time):
            hint = "use Slurm's format: 30 (minutes), 1:30:00 or 2-12 (2 days, 12 hours)"
            raise InputError(f"time is {self.time!r}", hint=hint, code="invalid-value", field="time")
        if self.seconds == 0:
            text, hint = f"time is {self.time!r}, which Slurm reads as no limit", "leave it out for no limit"
            raise InputError(text, hint=hint, code="out-of-range", field="time")
        for key, value in self.env.items():
            if not NAME.fullmatch(key) or "\0" in value:
                text, hint = f"env {key!r} is not a valid name of a variable", "--env NAME=VALUE"
                raise InputError(text, hint=hint, code="not-a-name", field="env")
        for name in ("cpus_per_node", "gpus_per_node", "max_queued", "max_running"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1", code="out-of-range", field=name)
        for host in self.hosts:
            if not HOST.fullmatch(host) and not _is_address(host):
                text = f"hosts has {host!r}; it must be a host name or an address, optionally with user@ in front"
                raise InputError(text, code="not-a-name", field="hosts")
        self._check_via()

    def _check_via(self) -> None:
        hint = f'for example "{SSH}"'
        try:
            words = shlex.split(self.via)
        except ValueError as error:
            text = f"via is {self.via!r}: {str(error).lower()}"
            raise InputError(text, hint=hint, code="not-a-format", field="via") from None
        if "{host}" not in self.via or any(set(word.replace("{host}", "")) & set("{}") for word in words):
            text = f"via is {self.via!r}; it must contain {{host}} for the host, and no other braces"
            raise InputError(text, hint=hint, code="not-a-format", field="via")

    @property
    def seconds(self) -> float | None:
        """The wall clock of ``time``."""
        return None if not self.time else _seconds(self.time)

    def plain(self) -> dict[str, Any]:
        """For ``sweep.json``: of variables the names only, because their values may be secret."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return plain | {"env": list(self.env)}


def load_site(path: Path | None, given: Mapping[str, Any]) -> Site:
    """A site file, and what the command line says instead; empty values were not given."""
    site = Site()
    if path is not None:
        site = site_of(read_layers(path, field="site", anchored=_anchored), path.name)
    changes = {key: value for key, value in given.items() if value not in (None, "", (), {}, False)}
    changes = _anchored(changes | {name: str(changes[name]) for name in FILES if name in changes}, Path())
    if changes.get("env"):
        changes["env"] = {**site.env, **changes["env"]}
    site = replace(site, **changes)
    if site.setup:
        check_readable(site.setup, "setup")
    return site


FILES = ("setup", "container", "python")
"""What may name a file, relative to the site file or to where the command is given."""


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with absolute paths of files, because runs start elsewhere; names of images and commands stay."""
    return raw | {
        name: in_folder(word, folder, always=name == "setup", bare=name != "python")
        for name in FILES
        if isinstance(word := raw.get(name), str) and word
    }


def in_folder(word: str, folder: Path, *, always: bool = False, bare: bool = True) -> str:
    """A relative path as an absolute one where such a file is there, or ``always``. Links stay: an environment's
    interpreter is one. Without ``bare``, a word without a slash is a command."""
    path, slash = folder / word, "/" in word
    there = (
        os.path.exists(path) if slash else bare and os.path.isfile(path)
    )  # a folder beside it has nothing to do with a name
    if not always and ("://" in word or not there):
        return word
    return os.path.abspath(path)


def site_of(raw: Mapping[str, Any], where: str) -> Site:
    """The site of plain data, or SpecError with all its mistakes; ``where`` is what errors call it."""
    return validate(Site, raw, where, hint=f"a site file has the keys {', '.join(all_keys(Site))}", strict=True)


def _is_address(text: str) -> bool:
    """Of the new kind, with or without brackets and a user's name; others are names by their form."""
    host = text.rpartition("@")[2] if HOST.fullmatch(text.partition("@")[0]) else text
    try:
        ipaddress.ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        return False
    return "%" not in host or host.partition("%")[2].isalnum()


def _seconds(time: str) -> float:
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:  # minutes[:seconds]; with days it is days-hours[:minutes[:seconds]]
        parts = [0, *parts]
    hours, minutes, seconds, *_ = [*parts, 0, 0]
    return int(days or 0) * 86_400.0 + hours * 3600.0 + minutes * 60.0 + seconds
