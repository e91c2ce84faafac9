"""What a machine has, and what of knee works on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from knee.probe.inventory import Inventory
from knee.probe.requirements import CheckResult
from knee.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCheck(Result):
    """What a machine has, and which commands of knee work on it."""

    knee: str
    python: str
    platform: str
    inventory: Inventory
    needs: tuple[CheckResult, ...]
    missing: dict[str, tuple[str, ...]]
    """Command -> what it lacks here; empty where it is ready."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``knee doctor --json`` prints it."""
        inventory = asdict(self.inventory)
        del inventory["software"]["torch_backend"]  # torch_build says it too
        return {
            "knee": self.knee,
            "python": self.python,
            "platform": self.platform,
            **inventory,
            "needs": self.rows(),
            "commands": {
                name: {"ready": not lacking, "missing": list(lacking)} for name, lacking in self.missing.items()
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """The software and tools that knee needs, one per row."""
        return [asdict(need) for need in self.needs]
