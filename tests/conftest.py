"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal
import sys


def pytest_configure() -> None:
    """Before anything is imported or started."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # the parent ignores it, as that of `nohup make test &`: what tests start would ignore it as well
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # altair's check of specs would take seconds to make grammars of addresses, which nothing here uses
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
