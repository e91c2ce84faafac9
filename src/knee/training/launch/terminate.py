"""Ends the ranks of a run on this host: ``python -m knee.training.launch.terminate RUN SIGNAL``.

A signal to what runs a command on another host, such as ssh, ends that alone: the ranks there would keep their GPUs.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from knee.base.processes import alive, send
from knee.training.launch.sweep_folder import ENVIRONMENT
from knee.training.run.run_record import files_of_ranks


def end_ranks(run: Path, number: int) -> int:
    """Send a signal to the ranks of a run that live on this host; returns their number."""
    count = 0
    for _, plain in files_of_ranks(run / ENVIRONMENT):
        pid, began = plain.get("pid"), plain.get("began")
        if plain.get("host") == socket.gethostname() and isinstance(pid, int) and isinstance(began, int):
            process = (pid, began)
            if alive(process):
                send(process, number)
                count += 1
    return count


if __name__ == "__main__":
    end_ranks(Path(sys.argv[1]), signal.Signals[f"SIG{sys.argv[2]}"])
