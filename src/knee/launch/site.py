"""What is particular to a site: how jobs are asked for, and what surrounds the processes of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from knee.errors import InputError
from knee.specs.catalog import did_you_mean, read_toml

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{1,2}){0,2}")
"""As Slurm takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours ..."""
SSH = "ssh {host}"
PLAIN = re.compile(r"[^\s\x00-\x1f\x7f'\"\\`$]+")
"""What stands in a script's #SBATCH line, which has no quotes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Options of a launcher; all can be left out."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    """Wall clock of an allocation, as Slurm takes it; of a run where there is no Slurm."""
    exclusive: bool = False
    exclude: str = ""
    """Nodes that are not to be used."""
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    """Processes a node, where they are not as many as the cluster's description says."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch, one a string: "--reservation=weekend"."""
    gres: bool = True
    """Whether GPUs are asked for by --gpus-per-node; some sites give whole nodes."""
    max_queued: int | None = None
    """Jobs, or tasks of arrays, that may be in the queue at once."""
    max_running: int | None = None
    """Tasks of an array that may run at once."""
    hosts: tuple[str, ...] = ()
    """Names or addresses, for torchrun without Slurm; the first is where ranks meet."""
    via: str = SSH
    """What runs a command on a host."""
    setup: str = ""
    """A file of shell commands that are run before anything else: modules, limits, a virtual environment."""
    env: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    container_runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    python: str = ""
    """The interpreter that starts torchrun; this one, or the container's python3, if left out."""

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos", "time", "exclude"):
            value = getattr(self, name)
            if value and not PLAIN.fullmatch(value):
                raise InputError(f"{name} is {value!r}; Slurm's names have no blanks and no quotes")
        for option in self.sbatch:
            if not PLAIN.fullmatch(option) or not option.startswith("-"):
                raise InputError(f"sbatch has {option!r}; it should be an option such as --reservation=weekend")
        if self.time and not TIME.fullmatch(self.time):
            raise InputError(f"time is {self.time!r}", hint="give it as Slurm takes it: 30 (minutes), 1:30:00 or 2-12")
        for key, value in self.env.items():
            if not NAME.fullmatch(key) or "\0" in value:
                raise InputError(f"env {key!r} is no name of a variable", hint="--env NAME=VALUE")
        for name in ("cpus_per_node", "gpus_per_node", "max_queued", "max_running"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be at least 1")
        if self.container_runtime == "pyxis" and self.hosts:
            raise InputError("pyxis is a part of Slurm: it starts no containers on --hosts")

    @property
    def seconds(self) -> float | None:
        """The wall clock of ``time``."""
        return None if not self.time else _seconds(self.time)

    def plain(self) -> dict[str, Any]:
        """For ``sweep.json``."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def load_site(path: Path | None, given: Mapping[str, Any]) -> Site:
    """A site file, and what the command line says instead; empty values were not given."""
    raw = {} if path is None else read_toml(path)
    if path is not None and raw.get("setup"):
        raw["setup"] = str((path.parent / str(raw["setup"])).resolve())
    site = site_of(raw, "the command line" if path is None else path.name)
    said = {key: value for key, value in given.items() if value not in (None, "", (), {}, False)}
    if said.get("setup"):
        said["setup"] = str(Path(said["setup"]).resolve())
    if said.get("env"):
        said["env"] = {**site.env, **said["env"]}
    site = replace(site, **said)
    if site.setup and not Path(site.setup).is_file():
        raise InputError(f"setup {site.setup} is no file")
    return site


def site_of(raw: Mapping[str, Any], where: str) -> Site:
    """From plain data, refused with all its mistakes."""
    listed = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    try:
        return _adapter().validate_python(listed)
    except ValidationError as error:
        known = [f.name for f in fields(Site)]
        words = []
        for mistake in error.errors():
            name = ".".join(map(str, mistake["loc"]))
            close = did_you_mean(name, known) if name not in known else None
            words.append(f"{name} is not known" + (f" (did you mean {close}?)" if close else "") if name not in known
                         else f"{name}: {mistake['msg'][:1].lower()}{mistake['msg'][1:]}")  # fmt: skip
        raise InputError(f"{where}: {'; '.join(words)}", hint=f"a site has {', '.join(known)}") from None


@cache
def _adapter() -> TypeAdapter[Site]:
    return TypeAdapter(Site)


def _seconds(time: str) -> float:
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # days-hours[:minutes[:seconds]]
        parts += [0] * (3 - len(parts))
        return int(days) * 86_400.0 + parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]
    if len(parts) == 1:
        return parts[0] * 60.0
    return parts[0] * 60.0 + parts[1] if len(parts) == 2 else parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]
