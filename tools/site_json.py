"""The keys of what commands print with ``--json``, found by asking each of them a small question."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from knee.commands.main import main
from knee.specs.plan import Plan

JOB = "llama-1b --cluster dgx-h100 --local-batch 2"
RUNS = "layers,hidden,heads,gpu,n_gpus,seq_len,global_batch,tokens_per_s_per_gpu\n32,4096,32,h100-80gb,8,4096,16,7700\n"
QUESTIONS = {
    "plan": "plan llama-1b --cluster dgx-h100 --gpus 8 --global-batch 16 --only pp==1 --json",
    "scale": f"scale {JOB} --gpus 8..32 --tokens 1T --json",
    "budget": "budget --cluster dgx-h100 --gpus 8 --days 1 --params 1B --json",
    "trace": "trace {folder}/step.json --json",
    "trace diff": "trace diff {folder}/step.json {folder}/step.json --json",
    "compare": "compare {folder}/a.json {folder}/a.json --json",
    "validate runs.csv": "validate {folder}/runs.csv --json",
    "sweep run --dry-run": "sweep run {folder}/grid.toml --launcher slurm --out {folder}/runs --dry-run --json",
    "study list": "study list --json",
    "catalog NAME": "catalog dgx-h100 --json",
    "doctor": "doctor --json",
}
"""Command -> a question that takes little time."""
DEEP = 2
"""Objects below this are left out."""
PLAN = {field.name for field in fields(Plan)}


def json_keys() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Command, then each object of its answer with its keys."""
    with tempfile.TemporaryDirectory() as folder:
        _files(Path(folder))
        for command, question in QUESTIONS.items():
            yield command, list(_objects(json.loads(_asked(question.format(folder=folder))), "", 0))


def _files(folder: Path) -> None:
    (folder / "runs.csv").write_text(RUNS, encoding="utf-8")
    grid = 'model = "llama2-7b"\ncluster = "dgx-h100"\nprofile = "knee"\ngpus = [8]\nlocal_batch = 2\n'
    (folder / "grid.toml").write_text(grid, encoding="utf-8")
    text = _asked(f"simulate {JOB} --gpus 8 --json --trace {folder}/step.json")
    (folder / "a.json").write_text(text, encoding="utf-8")


def _asked(question: str) -> str:
    result = CliRunner().invoke(main, question.split())
    assert result.exit_code == 0, (question, result.stderr)
    return result.stdout


def _objects(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """(path, its keys); ``[]`` is each element of a list, ``NAME`` a key that the question decides."""
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            merged = {key: inner for one in reversed(value) for key, inner in one.items()}
            yield from _objects(merged, f"{path}[]", depth)
        return
    if not isinstance(value, dict) or not value or depth > DEEP:
        return
    if set(value) == PLAN:
        yield path, "the fields of `knee.Plan`"
        return
    if _names(value):
        value = {"NAME": next(iter(value.values()))}
    yield path or "(the answer)", ", ".join(f"`{key}`" for key in value)
    for key, inner in value.items():
        yield from _objects(inner, f"{path}.{key}" if path else key, depth + 1)


def _names(value: dict[str, Any]) -> bool:
    """Whether the keys are names of things, not of fields: sentences, or objects that are all alike."""
    alike = {tuple(inner) if isinstance(inner, dict) else None for inner in value.values()}
    return any(not key.isidentifier() for key in value) or (len(alike) == 1 and None not in alike and len(value) > 1)
