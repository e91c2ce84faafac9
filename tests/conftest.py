"""What every test stands on: the same signals, environment and random cases on every machine and in every run."""

from __future__ import annotations

import gc
import math
import os
import signal
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import shared_studies
from knee.commands.study import api as study
from knee.commands.study import record_store
from knee.show.terminal import progress_bar
from lanes import NIGHTLY

# The same cases in every run, and no deadline: how long a case takes says how busy the machine is.
EXAMPLES = 100 if NIGHTLY else 25
"""Of each property that does not say how many."""
settings.register_profile(
    "knee", derandomize=True, deadline=None, database=None, print_blob=True, max_examples=EXAMPLES
)
settings.load_profile("knee")

ENVIRONMENT = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "80", "LINES": "24", "TERM": "dumb"}
"""What times, letters and the width of tables depend on."""
UNSET = (
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "CUDA_VISIBLE_DEVICES",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What colours, GPUs and torchrun would say of the shell that the tests were started from."""

TESTS = Path(__file__).parent
FAST = "not slow"
"""What ``make check`` asks for."""
SLOW_NAMES = (
    "measure/machine/test_collectives_gloo.py",
    "docs",
    "training/launch",
    "commands/serve/page",
    "training/parallelism",
    "show/web",
    "commands/test_examples.py",
    "commands/test_measured.py",
    "commands/data/test_data_cli.py",
    "commands/train/test_train_cli.py",
    "commands/probe/test_probe_collectives_cli.py",
    "property/test_linear_time.py",
)
SLOW = tuple(TESTS / name for name in SLOW_NAMES)
"""What starts ranks, Slurm, a browser or many processes, or measures. Other tests are marked where they stand."""

LONGEST = (
    "training/launch/test_slurm.py",
    "training/parallelism/test_parity.py",  # with the layouts of test_expert_parity.py and test_fake_ranks.py
    "training/parallelism/test_expert_parity.py",
    "training/parallelism/test_fake_ranks.py",
    "show/web",
    "commands/train/test_train_cli.py",
    "commands/serve/page",
    "training/launch/test_sweep_cli.py",
    "commands/study/test_study_cli.py",
    "golden/test_beyond_studies.py",
)
"""Half a minute and more; work of a processor stands beside what waits for Slurm."""
TOGETHER = {
    "the browser of pages": ("show/web",),
    "the browser of the explorer": ("commands/serve/page",),
    "torch in the process itself": tuple(
        f"training/parallelism/test_{name}.py" for name in ("fp8", "checkpoints", "worker", "expert_rules")
    ),
    "torch": tuple(f"training/parallelism/test_{name}.py" for name in ("parity", "expert_parity", "fake_ranks")),
}
"""Files that share what takes long to make: one of pytest's processes runs them."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == FAST:
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # fast tests pass where torch is not installed
    # Under nohup, or as a job in the background of a shell, SIGINT and SIGHUP are inherited as ignored, also by what
    # tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # altair's check of specs would take seconds to make grammars of addresses, which nothing here uses
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    os.umask(0o022)
    os.environ.update(ENVIRONMENT)
    for name in UNSET:
        os.environ.pop(name, None)
    time.tzset()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only fast tests are asked for, slow files are not even imported: some need torch, which takes seconds."""
    return True if config.getoption("markexpr") == FAST and collection_path in SLOW else None


@cache
def is_slow(path: Path) -> bool:
    return any(path.is_relative_to(slow) for slow in SLOW)


@cache
def group_of(path: Path) -> str:
    """What stays in one of pytest's processes: a file's tests, or those of several files."""
    groups = (name for name, paths in TOGETHER.items() if any(path.is_relative_to(TESTS / one) for one in paths))
    return next(groups, str(path.relative_to(TESTS)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that keeps groups together. A mark of xdist's own would change the names of tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0])

    return Groups(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_slow(item.path):
        item.add_marker("slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, then others with slow tests, so that no long one is left for the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    @cache
    def place(path: Path) -> int:
        found = (number for number, name in enumerate(LONGEST) if path.is_relative_to(TESTS / name))
        return next(found, len(LONGEST) + (path not in slow))

    items.sort(key=lambda item: place(item.path))


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries report at the end what they think was leaked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were skipped and why, each reason once."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    terminalreporter.write_line(f"{len(reports)} skipped" + (":" if reasons else ""))
    for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
        terminalreporter.write_line(f"  {count:>4}  {reason}")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from the user's caches, and nothing is left in them."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def no_progress() -> None:
    """Commands that take seconds say how far they are: on a busy machine that is any of them."""
    progress_bar.EVERY_S = progress_bar.PATIENCE_S = math.inf


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all of pytest's processes: what one has made, another finds there."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def studied(shared: Path) -> Path:
    """A folder of studies."""
    return shared / "paper"


@pytest.fixture(scope="session", autouse=True)
def fidelity_once(shared: Path) -> None:
    """Every page and table of studies has the errors of all carried runs, which take seconds to predict."""
    once = cache(lambda: shared_studies.fidelity(shared / "fidelity", made))
    made, record_store.carried_fidelity = record_store.carried_fidelity, once  # type: ignore[attr-defined]
    study.carried_fidelity = once  # type: ignore[attr-defined]
