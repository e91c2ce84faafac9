"""``knee.doctor``: what this machine has and what works on it. Looks for packages; loads only nvidia-ml-py."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import knee
from knee.measure.machine.inventory import Inventory, read_inventory
from knee.measure.machine.requirements import COMMANDS, NEEDS, CheckResult, find
from knee.show.result import Result


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MachineCheck(Result):
    """What a machine has, and which commands of knee work on it."""

    knee: str
    python: str
    platform: str
    inventory: Inventory
    needs: tuple[CheckResult, ...]
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
        return [asdict(need) for need in self.needs]


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
