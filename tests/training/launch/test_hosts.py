"""torchrun over two hosts: two network namespaces of this machine with addresses of their own, one cut off mid-run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lanes import nightly

from .sweeps import FEW, TINY, ended, program, run_folder, start, status, until

pytestmark = [nightly, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]


class Hosts:
    """Two namespaces joined by a cable; what a name stands for is in a file of hosts that only they see."""

    def __init__(self, token: str) -> None:
        number = int(token)
        self.names = [f"knee-{token}-a", f"knee-{token}-b"]
        self.addresses = [f"10.{100 + number % 100}.{number // 100 % 250}.{last}" for last in (1, 2)]

    def up(self) -> None:
        for name, address, wire in zip(self.names, self.addresses, ("k0", "k1"), strict=True):
            ip("netns", "add", name)
            etc = Path("/etc/netns", name)
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(
                "127.0.0.1 localhost\n"
                + "".join(f"{a} {n}\n" for n, a in zip(self.names, self.addresses, strict=True)),
                encoding="utf-8",
            )
            ip("-n", name, "link", "set", "lo", "up")
            if wire == "k0":
                ip("-n", name, "link", "add", "k0", "type", "veth", "peer", "name", "k1")
            else:
                ip("-n", self.names[0], "link", "set", "k1", "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")

    def cable(self, state: str) -> None:
        ip("-n", self.names[1], "link", "set", "k1", state)

    def way(self, path: Path) -> str:
        """What runs a command on a host that is given by its name or by its address."""
        cases = "\n".join(
            f'{name}|{address}) exec ip netns exec {name} "$@";;'
            for name, address in zip(self.names, self.addresses, strict=True)
        )
        return program(path, f'#!/bin/bash\nhost=$1; shift\ncase "$host" in\n{cases}\nesac\n')

    def down(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts(nothing_is_left_over: str) -> Iterator[Hosts]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the apt package iproute2")
    found = Hosts(nothing_is_left_over)
    try:
        found.up()
    except subprocess.CalledProcessError as error:
        found.down()
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        yield found
    finally:
        found.down()


def test_a_host_that_is_cut_off_ends_its_run_with_a_name_and_the_sweep_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    """One host goes by its address, the other by its name."""
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\nseq_len = [32, 64]\n", encoding="utf-8")
    named = [hosts.addresses[0], hosts.names[1]]
    words = [grid, "--out", out, "--launcher", "torchrun", "--hosts", ",".join(named), "--gpus-per-node", "1", *FEW]
    words += ["--via", f"{hosts.way(tmp_path / 'on a host.sh')} {{host}}"]
    words += ["--env", f"PYTHONPATH={Path(__file__).parent}/stuck", "--env", "STUCK_RUN=0001"]
    with start(*words) as process:
        first = until(lambda: next(out.glob("runs/0001-*"), None), "a plan", by=process)
        until(lambda: len(list(first.glob("trains*"))) == 2, "both ranks of the first run train", by=process)
        hosts.cable("down")
        (first / "stuck").touch()
        until(lambda: '"timeout"' in (first / "status.json").read_text(encoding="utf-8"), "it has ended", by=process)
        hosts.cable("up")
        ended(process, code=5)
    found = status(out)
    assert [one["state"] for one in found.values()] == ["timeout", "done"]
    assert found["0001"]["cause"] == "comm_timeout"
    assert all(name in found["0001"]["words"] for name in named), found["0001"]["words"]
    assert found["0002"]["nodes"] == named
    environments = [environment_of(path) for path in sorted((run_folder(out, "0002") / "environment").glob("rank*"))]
    assert [one.get("MASTER_ADDR") for one in environments] == [hosts.addresses[0]] * 2
    # gloo meets on the cable, not on the host's own name, which both hosts share
    assert [one.get("GLOO_SOCKET_IFNAME") for one in environments] == ["k0", "k1"]


def environment_of(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["environment"]
    return found
