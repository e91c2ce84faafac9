"""torchrun over two hosts: two network namespaces of this machine with addresses of their own, one cut off mid-run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .sweeps import FEW, TINY, record, run_folder, start, status, step_of, sweep, until

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
TIMEOUT_S = 30
VIA = "ip netns exec {host}"
TWO = (
    TINY
    + """
[[grid]]
gpus = 2
seq_len = [32, 64]
"""
)


class Hosts:
    """Two namespaces joined by a cable; what a name stands for is in a file of hosts that only they see."""

    def __init__(self, number: int) -> None:
        self.names = [f"knee-{number}-a", f"knee-{number}-b"]
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

    def down(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the apt package iproute2")
    found = Hosts(os.getpid())
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
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(TWO, encoding="utf-8")
    with start(
        grid,
        "--out",
        out,
        "--launcher",
        "torchrun",
        "--hosts",
        ",".join(hosts.names),
        "--via",
        VIA,
        "--gpus-per-node",
        "1",
        "--steps",
        "80",
        *FEW,
        "--timeout",
        str(TIMEOUT_S),
    ) as process:
        until(lambda: list(out.glob("runs/0002-*")), "a plan")
        first = run_folder(out, "0001")
        until(lambda: step_of(first) >= 1 and step_of(first, 1) >= 1, "the first run trains")
        hosts.cable("down")
        cut_s = time.monotonic()
        until(lambda: '"timeout"' in (first / "status.json").read_text(encoding="utf-8"), "it has ended")
        took_s = time.monotonic() - cut_s
        hosts.cable("up")
        _, err = process.communicate(timeout=200)
    assert process.returncode == 5, err
    found = status(out)
    assert [one["state"] for one in found.values()] == ["timeout", "done"]
    assert found["0001"]["cause"] == "comm_timeout"
    assert all(name in found["0001"]["words"] for name in hosts.names), found["0001"]["words"]
    assert took_s < 2 * TIMEOUT_S
    assert found["0002"]["nodes"] == hosts.names
    # gloo meets on the cable, not on the host's own name, which both hosts share
    environments = sorted((run_folder(out, "0002") / "environment").glob("rank*.json"))
    assert len(environments) == 2
    assert ['"k0"' in path.read_text(encoding="utf-8") for path in environments] == [True, False]


def test_addresses_do_as_well_as_names(hosts: Hosts, tmp_path: Path) -> None:
    grid, out, via = tmp_path / "grid.toml", tmp_path / "out", tmp_path / "on a host.sh"
    grid.write_text(TINY + "[[grid]]\ngpus = 2\nplan = { tp = 2 }\n", encoding="utf-8")
    names = dict(zip(hosts.addresses, hosts.names, strict=True))
    cases = "\n".join(f'{address}) exec ip netns exec {name} "$@";;' for address, name in names.items())
    via.write_text(f'#!/bin/bash\nhost=$1; shift\ncase "$host" in\n{cases}\nesac\n', encoding="utf-8")
    via.chmod(0o755)
    sweep(
        grid,
        "--out",
        out,
        "--launcher",
        "torchrun",
        "--hosts",
        ",".join(hosts.addresses),
        "--via",
        f"'{via}' {{host}}",
        "--gpus-per-node",
        "1",
        "--steps",
        "6",
        *FEW,
    )
    run = run_folder(out, "0001")
    assert record(run)["status"] == "done"
    assert [
        one["environment"].get("MASTER_ADDR") for one in map(environment_of, sorted(run.glob("environment/*")))
    ] == [hosts.addresses[0]] * 2


def environment_of(path: Path) -> dict[str, dict[str, str]]:
    import json

    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return found
