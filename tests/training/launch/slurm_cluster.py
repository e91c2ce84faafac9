"""A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, each stopped by its own id."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .sweeps import LIMIT_S

CONF = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
SlurmUser=root
StateSaveLocation={run}/ctld
SlurmdSpoolDir={run}/%n
SlurmctldPidFile={run}/ctld.pid
SlurmdPidFile={run}/%n.pid
SlurmctldLogFile={run}/log/ctld.log
SlurmdLogFile={run}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
# a node is down when a test says so, and not because this machine is slow
SlurmdTimeout=3600
MessageTimeout=100
BatchStartTimeout=1200
KillWait=120
MinJobAge=3600
# what is submitted is started at once
SchedulerParameters=sched_interval=1,sched_min_interval=1,batch_sched_delay=0,bf_interval=1
MaxArraySize={array}
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={n0_port} CPUs=2 State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1_port} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
"""
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
NODES = ("n0", "n1")
ASKED_S = 30.0
"""A daemon that is asked to end and takes longer is killed."""


class CannotStart(Exception):
    """Why there is no cluster here."""


class SlurmCluster:
    """Started by ``start``; what it started is ended by ``stop``."""

    def __init__(self, run: Path, *, array: int = 1001) -> None:
        self.run = run
        self.array = array
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.conf = run / "slurm.conf"
        self.environment = os.environ | {"SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        missing = [name for name in NEEDED if shutil.which(name) is None and not Path("/usr/sbin", name).exists()]
        if missing:
            raise CannotStart(f"Slurm is not installed: {', '.join(missing)} (apt packages slurm-wlm and munge)")
        if os.geteuid() != 0:
            raise CannotStart("Slurm's daemons are started as root")
        for name in ("ctld", "log", *NODES):
            (self.run / name).mkdir(parents=True)
        ports = free_ports(3)
        self.conf.write_text(
            CONF.format(
                host=socket.gethostname(),
                run=self.run,
                array=self.array,
                ctld_port=ports[0],
                n0_port=ports[1],
                n1_port=ports[2],
            ),
            encoding="utf-8",
        )
        key = self.run / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._spawn(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={self.run}/munge.socket",
            f"--pid-file={self.run}/munge.pid",
            f"--log-file={self.run}/log/munge.log",
            f"--seed-file={self.run}/munge.seed",
            "--num-threads=2",
        )
        self._until(lambda: (self.run / "munge.socket").exists(), "munged's socket")
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in NODES:
            self.start_node(node)
        self.until_idle()

    def until_idle(self) -> None:
        """Wait for both nodes to have nothing to do."""
        self._until(lambda: self.states() == dict.fromkeys(NODES, "idle"), "idle nodes")

    def start_node(self, node: str) -> None:
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def mend(self) -> None:
        """Nobody's jobs, and both nodes, whatever the test before has left."""
        self.call("scancel", "--quiet", "--user=root")
        for node in NODES:
            if node not in self.processes:
                self.start_node(node)
        self.until_idle()

    def kill_node(self, node: str) -> None:
        """As if its power was cut: its slurmd and everything that jobs run there."""
        daemon = self.processes.pop(node)
        daemon.kill()
        daemon.wait(timeout=LIMIT_S)
        self._end_jobs(node)
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")

    def pids_on(self, node: str) -> list[int]:
        """Processes of jobs on a node, their slurmstepd included."""
        found: set[int] = set()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "environ").read_bytes().split(b"\0")
                if f"SLURM_CONF={self.conf}".encode() not in words or f"SLURMD_NODENAME={node}".encode() not in words:
                    continue
                found.add(int(path.name))
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if (path.parent / str(parent) / "comm").read_text().startswith("slurmstepd"):
                    found.add(parent)
            except OSError:
                continue
        return sorted(found)

    def _end_jobs(self, node: str) -> None:
        """Again and again, because what is killed may have started more."""
        while pids := self.pids_on(node):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Jobs first, then daemons, each by its own id."""
        if "slurmctld" in self.processes:
            subprocess.run(["scancel", "--quiet", "--user=root"], env=self.environment, check=False, timeout=LIMIT_S)
            for node in NODES:
                self._end_jobs(node)
        for process in reversed(list(self.processes.values())):
            process.terminate()
            try:
                process.wait(timeout=ASKED_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=LIMIT_S)
        self.processes.clear()

    def call(self, *words: str) -> str:
        return subprocess.run(
            words, env=self.environment, check=True, capture_output=True, text=True, timeout=LIMIT_S
        ).stdout

    def states(self) -> dict[str, str]:
        try:
            lines = self.call("sinfo", "--noheader", "--Node", "--format=%N %T").split("\n")
        except subprocess.SubprocessError:
            return {}
        return dict(line.split() for line in lines if line.strip())  # type: ignore[misc]

    def _spawn(self, name: str, program: str, *words: str) -> None:
        path = shutil.which(program) or f"/usr/sbin/{program}"
        # so that a test run that is killed leaves no daemons
        tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        with (self.run / "log" / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*tied, path, *words],
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _until(self, met: object, what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if met():  # type: ignore[operator]
                return
            dead = [name for name, process in self.processes.items() if process.poll() is not None]
            if dead:
                raise CannotStart(f"{dead[0]} ended: {self._last_words(dead[0])}")
            time.sleep(0.1)
        raise CannotStart(f"{what}: not after {LIMIT_S:g} s")

    def _last_words(self, name: str) -> str:
        lines = (self.run / "log" / f"{name}.out").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"


def free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
