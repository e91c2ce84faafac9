"""What all tests need of the process that they run in, and which of them share one."""

from __future__ import annotations

import signal
import sys

import pytest

AFTER = {"web": "golden~"}
"""Pages use the simulations of the paper's tests again; and what takes long should not come last."""


def pytest_configure() -> None:
    """Before anything is imported or started."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # the parent ignores it, as that of `nohup make test &`: what tests start would ignore it as well
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # altair's check of specs would take seconds to make grammars of addresses, which nothing here uses
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For ``--dist loadgroup``: a file's tests share a process; all tests of pages do, and one browser."""
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder in AFTER else f"{folder}/{item.path.name}"))
    items.sort(key=lambda item: AFTER.get(item.path.parent.name, item.path.parent.name))
