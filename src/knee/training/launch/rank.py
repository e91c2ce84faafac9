"""One rank under torchrun: ``python -m knee.training.launch.rank RUN``.

The run's folder keeps its log and its environment.

It needs what the trainer needs: torch, NumPy and the standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

KEPT = (
    *("NCCL_", "TORCH_", "PYTORCH_", "GLOO_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "OMP_", "MKL_", "UCX_", "FI_"),
    *("MPI_", "OMPI_", "TORCHELASTIC_", "SLURM_", "SLURMD_", "KNEE_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_"),
)
"""Variables that change what a run does; no others are written down, because they may be secret."""
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
SECRET = ("TOKEN", "KEY", "SECRET", "PASS", "PWD", "CREDENTIAL", "AUTH", "JWT")
"""In the name of a variable: it is not written down."""
SIOCGIFADDR = 0x8915


def main(arguments: list[str] | None = None) -> int:
    """Set the rank up, and train; the process' exit code."""
    run = Path((sys.argv[1:] if arguments is None else arguments)[0])
    rank = os.environ.get("RANK", "0")
    redirect(run / "logs" / f"rank{rank}.log")
    choose_interface()
    os.environ.update(settings_of(run))
    environment = run / "environment" / f"rank{rank}.json"
    write_environment(environment)
    from knee.base.errors import KneeError
    from knee.training.run.rank_state import Place
    from knee.training.run.worker import read_job, work

    try:
        return work(read_job(run / "job.json"), Place.of_environment())
    except KneeError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        write_environment(environment, refused=" ".join(error.message.split())[:300])
        return error.exit_code


def settings_of(run: Path) -> dict[str, str]:
    """Variables that this run alone has, such as settings of NCCL that are tried; none where it has none."""
    try:
        asked = json.loads((run / "asked.json").read_text(encoding="utf-8"))
        return {str(name): str(value) for name, value in asked.get("environment", {}).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def redirect(path: Path) -> None:
    """Write standard output and error of this rank to its log, also those of libraries and the interpreter."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        print(f"{path} cannot be written: {error.strerror}", file=sys.stderr)
        return
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


def choose_interface() -> None:
    """Gloo takes the address of the host's name, which other hosts may not reach: let it use the way to the others."""
    several = os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
    if not several or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = interface_towards(os.environ.get("MASTER_ADDR", ""))
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_towards(host: str) -> str | None:
    """The network interface whose address packets to a host are sent from; None where it is not known."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # nothing is sent: the kernel only looks up the way
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                with suppress(OSError):
                    asked = struct.pack("256s", name.encode()[:15])
                    found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)
                    if socket.inet_ntoa(found[20:24]) == own:
                        return name
    except (OSError, UnicodeError):
        return None
    return None


def write_environment(path: Path, *, refused: str = "") -> None:
    """Where this rank is, every setting that may matter, and why it refused its job, where it did.

    Best effort: a full disk must not end the run.
    """
    kept = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in PLACE or (name.startswith(KEPT) and not any(word in name.upper() for word in SECRET))
    }
    plain = {
        "rank": int(os.environ.get("RANK", "0")),
        "node": os.environ.get("KNEE_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        # in the kernel's ticks: with its id, that names a process for good
        "began": int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]),
        "python": sys.executable,
        "started_s": time.time(),
        "environment": kept,
        **({"refused": refused} if refused else {}),
    }
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
