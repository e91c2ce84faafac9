"""On the path of a run's ranks: one of them stops in the middle of training, as a process does that hangs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

run = next((Path(word) for word in sys.orig_argv if f"/runs/{os.environ.get('STOP_RUN')}-" in word), None)


def stop() -> None:
    path = Path(str(run), "heartbeats", f"rank{os.environ['RANK']}.json")
    while True:
        time.sleep(0.05)
        try:
            if json.loads(path.read_text(encoding="utf-8"))["step"] >= 1:
                os.kill(os.getpid(), signal.SIGSTOP)
        except (OSError, ValueError):
            continue


if run is not None and os.environ.get("RANK") == os.environ.get("STOP_RANK", "1"):
    threading.Thread(target=stop, daemon=True).start()
