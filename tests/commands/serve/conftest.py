"""One server for all tests that do not need one of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from knee.commands.serve.app import ServeOptions
from serve.served import FEW, Served, serving


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records, with a secret beside them that links point at."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.json").write_text('{"secret": 1}')
    inside = outside / "records"
    (inside / "deep").mkdir(parents=True)
    record = {
        "kind": "measured", "model": "llama2-7b", "cluster": "dgx-h100", "profile": "eager", "gpus": 8,
        "global_batch": 16, "seq_len": 4096, "plan": {"tp": 1}, "tokens_per_s_per_gpu": 8000.0, "step_s": 1.0,
    }  # fmt: skip
    (inside / "deep" / "run.json").write_text(json.dumps(record))
    (inside / "<script>alert(1)<.json").write_text(json.dumps(record | {"model": "../secret.json"}))
    (inside / "link.json").symlink_to(outside / "secret.json")
    (inside / "out").symlink_to(outside)
    return inside


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of `knee study run`."""
    found = tmp_path_factory.mktemp("study")
    (found / "index.html").write_text("<!doctype html><title>t</title><style>p{}</style><script>var a=1</script><p>x")
    return found


@pytest.fixture(scope="session")
def server(folder: Path, study: Path) -> Iterator[Served]:
    with serving(ServeOptions(limits=FEW, records=folder, study=study)) as found:
        yield found
