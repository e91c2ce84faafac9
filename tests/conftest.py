"""What every test stands on: the same signals, environment and random cases on every machine and in every run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings

# The same cases in every run, and no deadline: how long a case takes says how busy the machine is.
settings.register_profile("knee", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("knee")

ENVIRONMENT = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24", "TERM": "dumb"}
"""What times, letters and the width of tables depend on."""
UNSET = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
         "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT")  # fmt: skip
"""What colours, GPUs and torchrun would say of the shell that the tests were started from."""


def pytest_configure() -> None:
    # Under nohup, or as a job in the background of a shell, SIGINT is inherited as ignored, also by what tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)
    os.environ.update(ENVIRONMENT)
    for name in UNSET:
        os.environ.pop(name, None)
    time.tzset()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from the user's caches, and nothing is left in them."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of studies that all of pytest's processes share: what one has simulated, another finds there."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "paper"
