"""``knee doctor``: what works on this machine. Looks for things; imports none of them."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec

import click

import knee
from knee.cli import available

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that a part of knee needs."""

    name: str
    module: str | None = None
    """What is imported, for a Python package."""
    why: str
    get: str
    """How to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether it is there."""

    name: str
    found: str | None
    """Version or place; None where it is missing."""
    why: str
    get: str


BASE = "pip install knee"
NEEDS = (
    Need(name="numpy", module="numpy", why="every answer", get=BASE),
    Need(name="pydantic", module="pydantic", why="reading models, clusters and jobs", get=BASE),
    Need(name="click", module="click", why="the command line", get=BASE),
    Need(name="rich", module="rich", why="tables", get=BASE),
    Need(name="altair", module="altair", why="figures", get="pip install 'knee[report]'"),
    Need(name="vl-convert-python", module="vl_convert", why="figures", get="pip install 'knee[report]'"),
    Need(name="torch", module="torch", why="real runs; no simulation needs it", get="pip install torch"),
    Need(name="NVML", why="power of this machine's GPUs; no simulation needs it", get="install the NVIDIA driver"),
    Need(name="chromium", why="tests of web pages", get="apt install chromium"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": ("numpy", "pydantic", "click", "rich"),
    "study": ("numpy", "pydantic", "click", "rich", "altair", "vl-convert-python"),
    "catalog": ("numpy", "pydantic", "click", "rich"),
    "doctor": ("click", "rich"),
}
"""Command -> what it cannot do without."""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Say what works on this machine, and how to get what is missing.

    Looks for packages, the NVIDIA driver and a browser without loading them. Always exits with 0.
    """
    findings = [_find(need) for need in NEEDS]
    missing = {finding.name: finding.get for finding in findings if finding.found is None}
    ready = {name: [need for need in needs if need in missing] for name, needs in COMMANDS.items()
             if name in available()}
    if as_json:
        click.echo(json.dumps({
            "knee": knee.__version__, "python": platform.python_version(), "platform": platform.platform(),
            "needs": [asdict(finding) for finding in findings],
            "commands": {name: {"ready": not lacking, "missing": lacking} for name, lacking in ready.items()},
        }, indent=2))
        return
    _print(findings, ready)


def _print(findings: list[Finding], ready: dict[str, list[str]]) -> None:
    rows = [[f.name, f.found or "not found", f.why if f.found else f"{f.why}: {f.get}"] for f in findings]
    commands = [[f"knee {name}", f"needs {', '.join(lacking)}" if lacking else "ready"]
                for name, lacking in ready.items()]
    if find_spec("rich") is None:  # the doctor speaks without it
        for row in (*rows, *commands):
            click.echo("  ".join(row))
        return
    from knee.cli.table import print_heading, print_rows

    print_heading("this machine")
    print_rows([["knee", knee.__version__], ["python", f"{platform.python_version()} ({sys.executable})"],
                ["platform", platform.platform()]])
    print_heading("parts")
    print_rows(rows, dim=(2,))
    print_heading("commands")
    print_rows(commands)


def _find(need: Need) -> Finding:
    look = {"NVML": _nvml, "chromium": _chromium}.get(need.name)
    found = look() if look is not None else _package(need)
    return Finding(name=need.name, found=found, why=need.why, get=need.get)


def _package(need: Need) -> str | None:
    if need.module is None or find_spec(need.module) is None:
        return None
    try:
        return metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return "version unknown"


def _nvml() -> str | None:
    """NVML comes with the driver, whose library loads in a millisecond."""
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return shutil.which("nvidia-smi") or "libnvidia-ml.so.1"


def _chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
