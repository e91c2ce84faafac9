"""``knee.doctor``: what this machine has and what works on it. Looks for packages; loads only nvidia-ml-py."""

from __future__ import annotations

import platform
import shutil
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

import knee
from knee.measure.machine.gpus import NO_DRIVER, NO_PACKAGE, NvidiaDriver, nvml_library
from knee.measure.machine.inventory import Inventory, Software, installed_version, read_inventory
from knee.show.result import Result

# What the parts of knee need, and whether it is here. Looks for packages and imports none of them.

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Something that a part of knee needs, and whether it is here."""

    name: str
    module: str | None = None
    """What is imported, for a Python package."""
    found: str | None = None
    """Version or place; None where it is missing, or was not looked for."""
    why: str
    get: str
    """How to get it."""


BASE, REPORT, TRAIN = "pip install knee", "pip install 'knee[report]'", "pip install 'knee[train]'"
DATA = "pip install 'knee[data]'"
FIT = "pip install 'knee[fit]'"
SERVE = "pip install 'knee[serve]'"
NEEDS = (
    Need(name="numpy", module="numpy", why="every answer", get=BASE),
    Need(name="pydantic", module="pydantic", why="reading models, clusters and jobs", get=BASE),
    Need(name="click", module="click", why="the command line", get=BASE),
    Need(name="rich", module="rich", why="progress bars", get=BASE),
    Need(name="tomli-w", module="tomli_w", why="writing job files", get=BASE),
    Need(name="msgspec", module="msgspec", why="reading traces quickly", get=BASE),
    Need(name="duckdb", module="duckdb", why="SQL over traces", get="pip install 'knee[trace]'"),
    Need(name="altair", module="altair", why="figures", get=REPORT),
    Need(name="vl-convert-python", module="vl_convert", why="figures", get=REPORT),
    Need(name="jinja2", module="jinja2", why="pages", get=REPORT),
    Need(name="torch", module="torch", why="measuring this machine; not needed for simulation", get=TRAIN),
    Need(name="scipy", module="scipy", why="fitting measurements; not needed for simulation", get=FIT),
    Need(name="nvidia-ml-py", module="pynvml", why="reading NVIDIA GPUs; not needed for simulation", get=TRAIN),
    Need(name="safetensors", module="safetensors", why="Hugging Face weights; not needed for simulation", get=TRAIN),
    Need(name="tokenizers", module="tokenizers", why="tokenizing text; not needed for synthetic tokens", get=DATA),
    Need(name="starlette", module="starlette", why="the explorer's server", get=SERVE),
    Need(name="uvicorn", module="uvicorn", why="the explorer's server", get=SERVE),
    Need(name="pyarrow", module="pyarrow", why="reading text from Parquet files", get=DATA),
    Need(name="NVML", why="power of NVIDIA GPUs; not needed for simulation", get="install the NVIDIA driver"),
    Need(name="chromium", why="tests of web pages", get="apt install chromium"),
)
EVERY = ("numpy", "pydantic", "click")
"""What every answer of the simulator needs."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": EVERY,
    "plan": (*EVERY, "tomli-w"),
    "scale": EVERY,
    "budget": EVERY,
    "train": (*EVERY, "torch"),
    "weights": (*EVERY, "torch", "safetensors"),
    "dryrun": (*EVERY, "torch"),
    "compare": EVERY,
    "trace": ("numpy", "msgspec", "click"),
    "study": (*EVERY, "vl-convert-python", "jinja2"),
    "report": (*EVERY, "vl-convert-python", "jinja2"),
    "sweep": (*EVERY, "tomli-w", "torch"),
    "tune": (*EVERY, "tomli-w", "scipy", "torch"),
    "validate": EVERY,
    "calibrate": (*EVERY, "scipy"),
    "data prepare": ("numpy", "click", "rich", "tokenizers"),
    "data show": ("numpy", "click"),
    "catalog": EVERY,
    "serve": (*EVERY, "msgspec", "tomli-w", "starlette", "uvicorn"),
    "probe kernels": (*EVERY, "rich", "torch", "scipy"),
    "probe collectives": (*EVERY, "rich", "torch"),
    "probe power": (*EVERY, "rich", "torch", "nvidia-ml-py", "NVML"),
    "probe steps": (*EVERY, "rich", "torch"),
    "doctor": ("click",),
}
"""Command, with its subcommand where it has some -> what it cannot do without."""


def find(need: Need, software: Software) -> Need:
    """Look for what a part of knee needs."""
    get = need.get
    match need.name:
        case "torch":
            found = f"{software.torch} ({software.torch_build or 'build unknown'})" if software.torch else None
        case "NVML":
            found, trouble = _nvml(software.driver), software.driver.trouble
            # a driver that is there but does not answer is not cured by installing it
            get = get if trouble in (None, NO_DRIVER, NO_PACKAGE) else trouble
        case "chromium":
            found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
        case _:
            here = need.module is not None and find_spec(need.module) is not None
            found = (installed_version(need.name) or "version unknown") if here else None
    return replace(need, found=found, get=get)


def _nvml(driver: NvidiaDriver) -> str | None:
    """Its version where it answers; without nvidia-ml-py nobody asks it, and its library has to do."""
    if driver.trouble is None:
        return driver.nvml or "version unknown"
    return nvml_library() if driver.trouble == NO_PACKAGE else None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MachineCheck(Result):
    """What a machine has, and which commands of knee work on it."""

    knee: str
    python: str
    platform: str
    inventory: Inventory
    needs: tuple[Need, ...]
    missing: dict[str, tuple[str, ...]]
    """Command -> what it lacks here; empty where it is ready."""

    def _data(self) -> dict[str, Any]:
        inventory = asdict(self.inventory)
        del inventory["software"]["torch_backend"]  # torch_build says it too
        return {
            "knee": self.knee,
            "python": self.python,
            "platform": self.platform,
            **inventory,
            "needs": self.rows(),
            "commands": {name: {"ready": not lacking, "missing": lacking} for name, lacking in self.missing.items()},
        }

    def rows(self) -> list[dict[str, Any]]:
        """The software and tools that knee needs, one per row."""
        return [{key: getattr(need, key) for key in ("name", "found", "why", "get")} for need in self.needs]


def doctor() -> MachineCheck:
    """Show what this machine has, which commands work on it, and how to install what is missing.

    It reads GPUs, driver, network and versions if possible, without importing torch or other large packages. It never
    fails.

    >>> import knee
    >>> knee.doctor().missing["simulate"]
    ()
    """
    inventory = read_inventory()
    found = tuple(find(need, inventory.software) for need in NEEDS)
    absent = {result.name for result in found if result.found is None}
    return MachineCheck(
        knee=knee.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        inventory=inventory,
        needs=found,
        missing={name: tuple(need for need in needs if need in absent) for name, needs in COMMANDS.items()},
    )
