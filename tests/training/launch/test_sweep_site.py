"""What surrounds the runs of a sweep: site files, set-ups, variables, containers, hosts; and that no shell trips."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from knee.training.launch.environment import PACKAGE, write_env
from knee.training.launch.rank import write_environment
from knee.training.launch.site import Site, load_site
from knee.training.launch.sweep_folder import Sweep
from knee.training.launch.torchrun import interpreter_outside, on_hosts, on_slurm, on_this_machine, through
from knee.training.sweeps.slurm import script
from refusals import caught, kind

from .sweeps import an_entry, refused, run_folder, status, sweep


def test_a_site_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    (tmp_path / "set up.sh").write_text("true\n", encoding="utf-8")
    path.write_text(
        'partition = "gpu"\ntime = "1:30:00"\nsetup = "set up.sh"\nenv = { A = "b c" }\n'
        'sbatch = ["--reservation=night"]\n',
        encoding="utf-8",
    )
    site = load_site(path, {"partition": "", "account": "me", "env": {"B": "1"}})
    assert (site.partition, site.account, site.seconds) == ("gpu", "me", 5400.0)
    assert site.env == {"A": "b c", "B": "1"}
    assert site.setup == str(tmp_path / "set up.sh")
    path.write_text('partitoin = "gpu"\ntime = "x y"\n', encoding="utf-8")
    error = refused("fig6", "--out", tmp_path / "o", "--site", path, "--dry-run")
    assert kind(error) == ("unknown-field", "partitoin")


ODD = "a b'c\"d$(touch X)`e`;f"


def test_no_shell_is_fed_an_unquoted_word(tmp_path: Path) -> None:
    """What a script starts gets its words as they are, whatever is in them."""
    told = tmp_path / "told.py"
    told.write_text("import sys; print(repr(sys.argv[1:]))\n", encoding="utf-8")
    folder = tmp_path / ODD
    made = Sweep(
        folder=folder,
        name=f"x\n{ODD}",
        entries=(an_entry(),),
        launcher="slurm",
        options={"timeout_s": 9.0, "program": [sys.executable, str(told), ODD], "pack": 1},
    )
    write_env(folder, {"A": ODD})
    text = script(made, Site(env={"A": ODD}), [[an_entry()]], name="0001.sbatch", job_name="j", on_gpus=True)
    assert "#SBATCH --gpus-per-node=1\n" in text
    fake = text.replace(" -m knee.training.launch.slurm_job", f" {told}").replace('"$SLURM_ARRAY_TASK_ID"', "0")
    out = subprocess.run(
        ["bash", "-c", fake + '\necho "A=$A"'], capture_output=True, text=True, cwd=tmp_path, check=True
    ).stdout.splitlines()
    words = on_slurm(
        Site(), an_entry(), folder / "runs" / "0001-m-g2-0", timeout_s=9.0, program=[sys.executable, str(told), ODD]
    )
    assert out[0] == repr([str(folder / "runs" / "0001-m-g2-0"), "--", *words])
    assert out[1] == f"A={ODD}"
    assert not (tmp_path / "X").exists()
    # ssh joins its words to a line for another shell
    line = through("ssh -p 22 {host}", "h", ["env", f"A={ODD}"])
    assert line[:4] == ["ssh", "-p", "22", "h"]
    assert shlex.split(line[4]) == ["env", f"A={ODD}"]
    # the line that a node's own shell reads: torchrun's words, and the node's number
    one = on_slurm(Site(), an_entry(), folder / "runs" / "r", timeout_s=9.0, program=())[-1]
    assert shlex.split(one)[-1] == str(folder / "runs" / "r")


def test_containers_and_hosts(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    site = Site(container="my image.sif", setup="/a b/setup.sh", python="python3")
    words = on_this_machine(site, an_entry(nodes=1, per_node=2), run, timeout_s=5, program=())
    inner = shlex.split(words[2].rpartition("; exec ")[2])
    assert inner[:6] == ["apptainer", "exec", "--nv", "--bind", f"{tmp_path},{PACKAGE}", "my image.sif"]
    assert inner[6:9] == ["python3", "-m", "torch.distributed.run"]
    pyxis = on_slurm(Site(container="i", container_runtime="pyxis"), an_entry(), run, timeout_s=5, program=())
    assert "--container-image=i" in pyxis
    # ranks have the container's interpreter, their supervisor the node's
    assert "exec python3 -m torch.distributed.run" in pyxis[-1]
    assert interpreter_outside(Site(container="i", python="/opt/python")) == sys.executable
    odd = tmp_path / "a,b" / "runs" / "r"
    error = caught(lambda: on_this_machine(site, an_entry(), odd, timeout_s=5, program=()))
    assert kind(error) == ("not-a-folder-name", "out")
    hosts = ("me@a", "b")
    first, second = on_hosts(Site(hosts=hosts, env={"A": "secret"}), an_entry(), run, hosts, timeout_s=5, program=())
    assert first[:3] == ["ssh", "--", "me@a"]
    assert "--node-rank=1 --master-addr=a" in second[-1]
    assert f"source {tmp_path}/env.sh" in second[-1]
    assert "secret" not in str((first, second))
    assert "\n" not in second[-1]  # a login shell may be none of bash's kind


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=touch /x", "-a", "a b", "a;b", "a\nb", "$(x)", "a@b@c", "@a", "", "::g", "fe80::1%$(x)"]
)
def test_a_host_that_could_be_an_option_or_a_command_is_refused(host: str) -> None:
    assert kind(caught(lambda: Site(hosts=("ok", host)))) == ("not-a-name", "hosts")


def test_hosts_are_names_and_addresses() -> None:
    hosts = ("node-1", "n1.cluster.org", "10.0.0.2", "me@node_2", "::1", "fe80::1%eth0", "[fd00::2]", "me@fd00::2")
    assert Site(hosts=hosts).hosts == hosts


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ('exclusive = "yes"', "wrong-type", "exclusive"),
        ("max_running = true", "wrong-type", "max_running"),
        ('cpus_per_node = "4"', "wrong-type", "cpus_per_node"),
        ("env = { A = 1 }", "wrong-type", "env.A"),
        ('hosts = "a"', "wrong-type", "hosts"),
        ('partitoin = "x"', "unknown-field", "partitoin"),
        ('partitoin = "x"\nhosts = "a"', "several-mistakes", None),
        ('via = "ssh {host.x}"', "not-a-format", "via"),
        ('via = "ssh"', "not-a-format", "via"),
        ('via = "ssh \'{host}"', "not-a-format", "via"),
        ('time = "0"', "out-of-range", "time"),
        ('time = "0-0:00"', "out-of-range", "time"),
        ("max_running = 0", "out-of-range", "max_running"),
        ('setup = "none.sh"', "no-file", "setup"),
        ('setup = "."', "not-a-file", "setup"),
    ],
)
def test_a_site_file_has_what_it_says(line: str, code: str, field: str | None, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(line + "\n", encoding="utf-8")
    assert kind(caught(lambda: load_site(path, {}))) == (code, field)


def test_files_of_a_site_are_looked_up_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    for name in ("torch.sif", "python", "there/other.sif"):
        (tmp_path / name).write_text("", encoding="utf-8")
    path = tmp_path / "site.toml"
    path.write_text('container = "torch.sif"\npython = "./python"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path / "there")
    site = load_site(path, {})
    assert (site.container, site.python) == (str(tmp_path / "torch.sif"), str(tmp_path / "python"))
    assert load_site(path, {"container": "other.sif"}).container == str(tmp_path / "there" / "other.sif")
    (tmp_path / "there" / "ubuntu").mkdir()
    for word in ("docker://torch.sif", "nvcr.io/nvidia/pytorch:24.05-py3", "ubuntu"):
        assert load_site(path, {"container": word}).container == word
    assert load_site(None, {"python": "python"}).python == "python"  # a command of the PATH


SAYS = """#!/bin/bash
# what a run has around it
{ echo "A=$A B=$B"; echo "$PYTHONPATH"; command -v python3; echo "${KNEE_PYTHON-}"; echo "args=$SEEN"; pwd
} > "$1/said.txt"
echo '{"status": "done"}' > "$1/record.json"
"""


@pytest.fixture
def says(tmp_path: Path) -> Path:
    path = tmp_path / "says it.sh"
    path.write_text(SAYS, encoding="utf-8")
    path.chmod(0o755)
    return path


def by_launcher(launcher: str, site: Site, run: Path, program: list[str]) -> subprocess.CompletedProcess[str]:
    """A run's command in its environment, without its supervisor; of Slurm's script the supervisor's is started."""
    folder, entry = run.parents[1], an_entry(id=run.name, nodes=1)
    if launcher == "local":
        words = on_this_machine(site, entry, run, timeout_s=9.0, program=program)
    elif launcher == "torchrun":
        [words] = on_hosts(
            Site(**{**asked(site), "hosts": ("localhost",)}), entry, run, ("localhost",), timeout_s=9.0, program=program
        )
    else:
        made = Sweep(
            folder=folder,
            name="x",
            entries=(entry,),
            launcher="slurm",
            options={"timeout_s": 9.0, "program": program, "pack": 1},
        )
        text = script(made, site, [[entry]], name="1.sbatch", job_name="j", on_gpus=False)
        supervisor = f"{shlex.quote(interpreter_outside(site))} -m knee.training.launch.slurm_job"
        assert supervisor in text
        text = text.replace(supervisor, "fake").replace('"$SLURM_ARRAY_TASK_ID"', "0")
        fake = 'fake() { shift 2; while [ "$1" = srun ] || [[ "$1" = --* ]]; do shift; done; "$@"; }\n'
        words = ["bash", "-c", fake + text]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=run)


def asked(site: Site) -> dict[str, object]:
    return {name: getattr(site, name) for name in ("setup", "env", "python", "container")}


LAUNCHERS = ("local", "torchrun", "slurm")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_set_up_then_variables_then_knee(
    launcher: str, says: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on all launchers: the set-up's words count, --env goes on top, and knee is first on the path."""
    monkeypatch.setenv("PYTHONPATH", "/before")
    run, own, setup = tmp_path / "o ut" / "runs" / "r", tmp_path / "venv" / "bin" / "python3", tmp_path / "set up.sh"
    run.mkdir(parents=True)
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    setup.write_text(
        f'set -eu\nexport A=setup B=setup SEEN="$*" PYTHONPATH=/setup:$PYTHONPATH\n'
        f"export PATH={shlex.quote(str(own.parent))}:$PATH\ncd /\n",
        encoding="utf-8",
    )
    write_env(tmp_path / "o ut", {"A": "it's $HOME"})
    done = by_launcher(launcher, Site(setup=str(setup), env={"A": "..."}), run, [str(says)])
    assert done.returncode == 0, done.stderr
    knee = tmp_path / "o ut" / "python"
    assert (run / "said.txt").read_text(encoding="utf-8").splitlines() == [
        "A=it's $HOME B=setup",
        f"{knee}:/setup:/before",
        str(own),
        "python3",
        "args=",
        str(run),
    ]
    # a set-up that brings no interpreter leaves this one
    setup.write_text("true\n", encoding="utf-8")
    by_launcher(launcher, Site(setup=str(setup)), run, [str(says)])
    assert (run / "said.txt").read_text(encoding="utf-8").splitlines()[3] == sys.executable


def test_the_interpreter_is_that_of_the_set_up(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    line = on_this_machine(Site(setup="s"), an_entry(), run, timeout_s=5, program=())[2]
    assert 'exec "$KNEE_PYTHON" -m torch.distributed.run' in line
    assert (
        'exec "$KNEE_PYTHON" -m torch.distributed.run'
        in on_slurm(Site(setup="s"), an_entry(), run, timeout_s=5, program=())[-1]
    )
    for site in (Site(setup="s", python="/p"), Site(setup="s", container="c")):
        assert "KNEE_PYTHON" not in on_this_machine(site, an_entry(), run, timeout_s=5, program=())[2]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("text", "code"), [("return 3", 3), ("exit 4", 4), ("set -e\nfalse\ntrue", 1), ("exit 0", 0), ("false", 1)]
)
def test_a_set_up_that_fails_ends_the_run_with_a_word(
    launcher: str, text: str, code: int, says: Path, tmp_path: Path
) -> None:
    run, setup = tmp_path / "out" / "runs" / "r", tmp_path / "set up.sh"
    run.mkdir(parents=True)
    setup.write_text(text + "\n", encoding="utf-8")
    write_env(tmp_path / "out", {})
    done = by_launcher(launcher, Site(setup=str(setup)), run, [str(says)])
    assert done.returncode != 0
    assert done.stderr == f"error: the set-up {setup} failed with code {code}\n"
    assert not (run / "said.txt").exists()


def test_a_run_whose_set_up_fails_is_failed(grid: Path, tmp_path: Path, stub: str) -> None:
    setup = tmp_path / "set up.sh"
    setup.write_text("exit 7\n", encoding="utf-8")
    sweep(grid, "--out", tmp_path / "out", "--program", stub, "--set", "gpus=1", "--setup", setup, codes=(5,))
    found = status(tmp_path / "out")["0001"]
    assert found["state"] == "failed"
    assert found["words"].endswith(f"the set-up {setup} failed with code 7")


SECRET = "hf_s3cr3t"


def test_values_of_variables_are_in_one_file_for_its_owner(grid: Path, says: Path, tmp_path: Path) -> None:
    site, out = tmp_path / "site.toml", tmp_path / "out"
    site.write_text(f'env = {{ B = "{SECRET}-b" }}\n', encoding="utf-8")
    sweep(
        grid,
        "--out",
        out,
        "--program",
        shlex.quote(str(says)),
        "--set",
        "gpus=1",
        "--site",
        site,
        "--env",
        f"A={SECRET}-a",
        f"--env=C={SECRET}",
    )
    run = run_folder(out, "0001")
    assert (run / "said.txt").read_text(encoding="utf-8").startswith(f"A={SECRET}-a B={SECRET}-b\n")
    (run / "said.txt").unlink()
    with_it = [
        path
        for path in out.rglob("*")
        if path.is_file() and SECRET in path.read_text(encoding="utf-8") and "python" not in path.relative_to(out).parts
    ]
    assert with_it == [out / "env.sh"]
    assert stat.S_IMODE((out / "env.sh").stat().st_mode) == 0o600
    command = json.loads((out / "sweep.json").read_text(encoding="utf-8"))["command"]
    assert command[-3:] == ["--env", "A=...", "--env=C=..."]
    sweep("retry", out, "--status", "done")
    assert (run / "said.txt").read_text(encoding="utf-8").startswith(f"A={SECRET}-a B={SECRET}-b\n")
    (out / "env.sh").unlink()
    assert kind(refused("retry", out, "--status", "done")) == ("no-file", "env")


def test_names_of_secrets_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PASSPHRASE", "CREDENTIALS", "AUTH", "PASS", "PWD", "Token"):
        monkeypatch.setenv(f"SLURM_{name}", SECRET)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    write_environment(tmp_path / "rank0.json")
    text = (tmp_path / "rank0.json").read_text(encoding="utf-8")
    assert SECRET not in text
    assert "NCCL_DEBUG" in text
