"""``knee doctor``: looks, does not load, and never fails."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

import knee
from knee.commands.doctor import api as asked
from knee.commands.doctor import api as doctor
from knee.commands.main import COMMANDS, main
from knee.measure.machine.gpus import LocalGpu, NvidiaDriver
from knee.measure.machine.inventory import Cpu, Inventory, Nic, Software

H100 = LocalGpu(
    index=0,
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=80 * 2.0**30,
    power_limit_w=700.0,
    pcie_generation=5,
    pcie_width=16,
    nvlinks=18,
    nvlink_bytes_per_s=478e9,
    mig=False,
    ecc=True,
    other_processes=0,
)
NODE = Inventory(
    gpus=(H100, replace(H100, index=1), replace(H100, index=2, other_processes=3), replace(H100, index=3)),
    network=(Nic(name="mlx5_0:1", rdma=True, link_layer="InfiniBand", state="active", bytes_per_s=50e9, numa_node=0),),
    cpu=Cpu(model="Xeon", cpus=112, numa_nodes=2),
    software=Software(
        driver=NvidiaDriver(version="580.1", cuda="13.0", nvml="13.580.1"),
        nccl="2.27.5",
        nccl_from="nvidia-nccl-cu13",
        torch="2.11.0+cu130",
        torch_build="CUDA 13.0",
        torch_backend="cuda",
    ),
)
NOTHING = Inventory(
    gpus=(),
    network=(),
    cpu=Cpu(model=None, cpus=None, numa_nodes=None),
    software=Software(
        driver=NvidiaDriver(trouble="no"), nccl=None, nccl_from=None, torch=None, torch_build=None, torch_backend=None
    ),
)
PROBES = ("probe kernels", "probe collectives", "probe power")


def ask(monkeypatch: pytest.MonkeyPatch, inventory: Inventory, *options: str) -> str:
    """The doctor's answer on such a machine."""
    monkeypatch.setattr(asked, "read_inventory", lambda: inventory)
    result = CliRunner().invoke(main, ["doctor", *options])
    assert result.exit_code == 0
    return result.stdout


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def test_it_says_what_is_there() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert result.stderr == ""
    for need in doctor.NEEDS:
        assert need.name in result.stdout
    assert "knee simulate" in result.stdout


def test_json() -> None:
    data = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert data.keys() == {"knee", "python", "platform", "gpus", "network", "cpu", "software", "needs", "commands"}
    found = {need["name"]: need["found"] for need in data["needs"]}
    assert found["numpy"]
    assert data["commands"]["simulate"] == {"ready": True, "missing": []}
    assert json.loads(json.dumps(knee.doctor().to_dict())) == data


def test_it_knows_every_command() -> None:
    assert {name.split()[0] for name in doctor.COMMANDS} == COMMANDS.keys()
    assert {name for needs in doctor.COMMANDS.values() for name in needs} <= {need.name for need in doctor.NEEDS}


def test_scipy_comes_with_fit() -> None:
    assert {need.name: need.get for need in doctor.NEEDS}["scipy"] == "pip install 'knee[fit]'"


def test_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ask(monkeypatch, NODE)
    assert "unknown" not in text
    facts = "80.0 GiB, up to 700 W, PCIe 5, 16 lanes, 18 NVLinks (478 GB/s per direction), MIG off, ECC on"
    assert line_of(text, "0-1,3").split("  ")[-1] == f"{facts}, 0 other processes"
    assert line_of(text, "2 ").endswith(f"{facts}, 3 other processes")
    assert "Xeon, 112 CPUs, 2 NUMA nodes" in text
    assert "NVIDIA 580.1, supports CUDA up to 13.0" in text
    assert "2.27.5 (nvidia-nccl-cu13)" in text
    assert "2.11.0+cu130 (CUDA 13.0)" in text
    assert line_of(text, "mlx5_0:1").endswith("InfiniBand, RDMA, active, 50.0 GB/s per direction, NUMA node 0")


def test_what_is_unknown_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ask(monkeypatch, NOTHING)
    assert text.count("none found") == 2
    assert "unknown: model, number, NUMA nodes" in line_of(text, "CPU")
    gpus = (LocalGpu(index=0), LocalGpu(index=1, name="B200", nvlinks=18), LocalGpu(index=2, trouble="closed"))
    text = ask(monkeypatch, replace(NOTHING, gpus=gpus))
    assert "unknown: memory, power limit, PCIe generation, PCIe lanes, NVLink, MIG, ECC" in line_of(text, "0 ")
    assert "18 NVLinks (rate unknown)" in line_of(text, "1 ")
    assert line_of(text, "2 ").endswith("closed")


def test_json_has_null_for_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(ask(monkeypatch, NODE, "--json"))
    assert data["gpus"][3]["index"] == 3
    assert data["network"][0]["bytes_per_s"] == 50e9
    data = json.loads(ask(monkeypatch, NOTHING, "--json"))
    assert (data["gpus"], data["network"]) == ([], [])
    assert set(data["cpu"].values()) == {None}
    assert data["software"]["torch"] is None


def test_what_the_probes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: True)
    commands = json.loads(ask(monkeypatch, NODE, "--json"))["commands"]
    assert all(commands[probe]["ready"] for probe in PROBES)
    commands = json.loads(ask(monkeypatch, NOTHING, "--json"))["commands"]
    assert commands["probe kernels"]["missing"] == ["torch"]
    assert commands["probe power"]["missing"] == ["torch", "NVML"]


def test_a_driver_that_does_not_answer_is_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = NvidiaDriver(version="550.1", trouble="the versions differ")
    text = ask(monkeypatch, replace(NODE, software=replace(NODE.software, driver=stuck)))
    assert "NVIDIA 550.1; the versions differ" in line_of(text, "driver")
    assert line_of(text, "NVML").endswith(": the versions differ")


def test_it_speaks_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    text = ask(monkeypatch, NODE)
    assert "  0-1,3  NVIDIA H100" in text
    assert line_of(text, "knee simulate").endswith("needs numpy, pydantic, click")


def test_what_is_missing_comes_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "altair" else True)
    text = CliRunner().invoke(main, ["doctor"]).stdout
    line = next(line for line in text.splitlines() if line.split()[:1] == ["altair"])
    assert "not found" in line
    assert "pip install 'knee[report]'" in line


@pytest.mark.parametrize("call", ["knee.commands.main.main(['doctor'])", "knee.doctor()"])
def test_it_loads_nothing_that_it_looks_for(call: str) -> None:
    code = f"import sys, knee.commands.main\ntry: {call}\nfinally: print(*sys.modules)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "torch", "altair", "pydantic"} & set(text.splitlines()[-1].split())
