"""``knee.doctor``: what this machine has and what works on it. Looks for packages; loads only nvidia-ml-py."""

from __future__ import annotations

import platform

import knee
from knee.probe.inventory import read_inventory
from knee.probe.requirements import COMMANDS, NEEDS, find
from knee.results.doctor_result import MachineCheck


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
